"""The training library, which a training script imports as `elastic`.

Users import its names from `elastic` (`elastic.init`, `elastic.State` …), which loads these modules at their first use.
Two modules are imported by name: `checkpoint`, for scripts without a State, and `ps`, for parameter servers. Importing
this package imports neither torch nor grpc; `ps` imports both.
"""
