"""What a training script imports from us.

Today this is `checkpoint`: folders that are whole or not there, fenced by generation; and `ps`: parameter servers.
State, sampler and epochs come to stand beside it. Importing this package imports neither torch nor grpc; `ps` imports
both.
"""
