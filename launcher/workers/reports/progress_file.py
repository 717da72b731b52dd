"""The file in which a script without our library writes its step (ELASTIC_PROGRESS_FILE).

The file is the script's: whatever stands there, and whatever kind of file it is, reading it costs a moment and never
fails.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from launcher.system import descriptors

BYTES_MAX = 64
STEP_MAX = 2**62
"""As in the documents of the store; no training makes more."""


def read_step(path: str | os.PathLike[str]) -> int:
    """The step, -1 if there is none that could be one."""
    try:
        fd = os.open(Path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1
    try:
        text = os.read(fd, BYTES_MAX) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
        step = int(text)
    except (OSError, ValueError):
        return -1
    finally:
        descriptors.close(fd)
    return step if -1 <= step <= STEP_MAX else -1
