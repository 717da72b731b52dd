"""gRPC without its own log and without its fork handlers. Modules that use gRPC import this one first.

gRPC logs a line to stderr for each failed handshake, several per second; our errors already contain the reason. Its
fork handlers crash a process that forks while `grpc.aio` runs in another thread (with grpcio 1.85, a segmentation fault
in most runs): torch's agent forks its workers with `start_method="fork"`, and `DataLoader` forks its own. Without the
handlers, the child has a gRPC in which nothing runs, and does not use it.

gRPC reads both variables when it is imported. They are removed again at once, because children inherit our environment
and may use gRPC in their own way. Values that the user has set are kept.
"""

from __future__ import annotations

import os

_WANTED = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}

_unset = [name for name in _WANTED if name not in os.environ]
for name in _unset:
    os.environ[name] = _WANTED[name]
try:
    import grpc  # type: ignore[import-untyped, unused-ignore]
    import grpc.aio  # type: ignore[import-untyped, unused-ignore]
finally:
    for name in _unset:
        del os.environ[name]

__all__ = ["grpc"]
