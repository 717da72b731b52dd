"""What `ps` shows of a forked process: the command that it stands for, instead of that of its parent."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

STAT_ARG_START, STAT_ARG_END = 48, 49
"""Which fields of /proc/self/stat say where the arguments lie, counted from 1 as in proc(5)."""


def show(argv: Sequence[str]) -> None:
    """Write `argv` over the arguments that this process was started with; what has no room there is cut.

    Where the kernel does not say where they are, nothing is changed.
    """
    with open("/proc/self/stat", "rb") as stat:
        fields = stat.read().rpartition(b")")[2].split()  # The third field comes first.
    if len(fields) < STAT_ARG_END - 2:
        return
    start, end = int(fields[STAT_ARG_START - 3]), int(fields[STAT_ARG_END - 3])
    room = end - start
    if start <= 0 or room <= 1:
        return
    text = b"\0".join(map(os.fsencode, argv))[: room - 1]
    ctypes.memmove(start, text.ljust(room, b"\0"), room)
