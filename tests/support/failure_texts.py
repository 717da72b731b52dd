"""What a job says of a worker's failure."""

from __future__ import annotations

import re

TRACEBACK = (
    'Traceback (most recent call last):\n  File "train.py", line 12\n    raise\nOSError: [Errno 5] Input/output error'
)
SIGNAL_INFO = re.compile(
    r"\[SignalInfo: \*\*\* SIGTERM \(@0x([0-9a-f]+)\) received by PID (\d+) \(TID 0x[0-9a-f]+\) from PID (\d+) \*\*\*\]"
)


def abort(world_size: int, ranks: str) -> str:
    return (
        f"ABORT!!! Out of all {world_size} trainers, the trainer process with rank=[{ranks}] was aborted. "
        "Please check its log."
    )
