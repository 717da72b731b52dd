"""The training library, which a training script imports as `elastic`.

Its names are those of `elastic` itself (`elastic.init`, `elastic.State` …), which load the modules here when they are
used. Two modules are imported by name: `checkpoint`, for scripts without a State, and `ps`, for parameter servers.
Importing this package imports neither torch nor grpc; `ps` imports both.
"""
