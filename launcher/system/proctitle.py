"""Sets the command line that `ps` shows for a forked process, instead of that of its parent.

Linux lets a process set the location of its arguments, so they are shown in full. If it refuses, they overwrite those
of the parent: longer ones are truncated, and the rest is empty.

The package setproctitle is not suitable: it joins the arguments, overwrites /proc/PID/environ, by which the launcher
finds processes of a job, and truncates what does not fit into the parent's arguments and environment.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from launcher.system.processes import stat_fields

STAT_ARG_START, STAT_ARG_END = 48, 49
STAT_MAP = (26, 27, 45, 46, 47, None, 28, STAT_ARG_START, STAT_ARG_END, 50, 51)
"""Fields of /proc/self/stat with the location of the arguments, and those of a `prctl_mm_map`, counted from 1 as in
proc(5). None is the end of the heap, which has no field."""
ARG_START, ARG_END, HEAP_END = map(STAT_MAP.index, (STAT_ARG_START, STAT_ARG_END, None))
PR_SET_MM, PR_SET_MM_MAP = 35, 14
"""Options of prctl(2). Unlike its single fields, the map needs no privilege."""
KEEP_PROGRAM = 0xFFFFFFFF
"""The value that replaces the descriptor of another program file."""

_elsewhere: ctypes.Array[ctypes.c_char] | None = None
"""Arguments that are longer than those of the parent; they live as long as the process."""


def show(argv: Sequence[str]) -> None:
    """Show `argv` as the arguments of this process. No effect if the kernel does not report their location."""
    global _elsewhere
    fields = stat_fields("self")  # The third field comes first.
    if len(fields) < max(filter(None, STAT_MAP)) - 2:
        return
    places = [0 if number is None else int(fields[number - 3]) for number in STAT_MAP]
    text = b"".join(os.fsencode(argument) + b"\0" for argument in argv)
    start, room = places[ARG_START], places[ARG_END] - places[ARG_START]
    if start <= 0 or room <= 1:
        return
    ctypes.memmove(start, text[: room - 1].ljust(room, b"\0"), room)
    if len(text) > room:
        _elsewhere = ctypes.create_string_buffer(text, len(text))
        start = ctypes.addressof(_elsewhere)
    _set_mm_map(places, start, start + len(text))


def _set_mm_map(places: list[int], start: int, end: int) -> None:
    """Set the location of the arguments. If the kernel refuses, `ps` shows what overwrote the old ones."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    places[HEAP_END] = libc.sbrk(0) or 0
    places[ARG_START], places[ARG_END] = start, end
    made = struct.pack("=11QQII", *places, 0, 0, KEEP_PROGRAM)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, made, ctypes.c_ulong(len(made)), ctypes.c_ulong(0))
