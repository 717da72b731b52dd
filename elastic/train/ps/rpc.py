"""gRPC as this package uses it: with its fork handlers switched off, and quiet.

A training script forks: `DataLoader` does it for its workers. With gRPC's handlers such a child crashes while another
thread of its parent is inside gRPC (tried: grpcio 1.85, a segmentation fault in most runs). Without them the child has
a gRPC that nothing runs in; it must not use it, and it does not. gRPC reads the variable when it is imported, so that
everybody here takes gRPC from this module. Its own news, such as a server that says goodbye, are not shown: ours are.
"""

from __future__ import annotations

import os

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

import grpc  # type: ignore[import-untyped, unused-ignore]
import grpc.aio  # type: ignore[import-untyped, unused-ignore]

__all__ = ["grpc"]
