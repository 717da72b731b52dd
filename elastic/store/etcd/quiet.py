"""gRPC is loaded without its own log: it writes a line to stderr for each handshake that fails, several in a second.

What went wrong is in our errors. gRPC reads the variable when it is imported; it is taken back at once, since workers
and whatever else is started later get our environment. A user's own GRPC_VERBOSITY stays.
"""

from __future__ import annotations

import os

_VARIABLE = "GRPC_VERBOSITY"

_unset = _VARIABLE not in os.environ
if _unset:
    os.environ[_VARIABLE] = "NONE"
try:
    import grpc.aio  # type: ignore[import-untyped, unused-ignore]  # noqa: F401
finally:
    if _unset:
        del os.environ[_VARIABLE]
