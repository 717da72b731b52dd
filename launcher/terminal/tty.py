"""Whether this process may draw on a terminal: what the shell has in the foreground does."""

from __future__ import annotations

import os
from pathlib import Path


def in_foreground(terminal: int) -> bool:
    """Whether the job of this process, or of its parent, is in the foreground of the terminal that `terminal` is.

    An agent that another process of ours started is in a session of its own, which has no terminal.
    """
    try:
        device = os.fstat(terminal).st_rdev
    except OSError:
        return False
    return any(_in_front(pid, device) for pid in (os.getpid(), os.getppid()))


def _in_front(pid: int, device: int) -> bool:
    try:
        # Its name stands in brackets and may have any sign in it.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        group, terminal, front = int(fields[2]), int(fields[4]), int(fields[5])
    except (OSError, ValueError, IndexError):
        return False
    return terminal == device and group == front
