"""What `ps` shows of a forked process: the command that it stands for, instead of that of its parent.

Linux lets a process say where its arguments lie, so they are shown whole. Where it refuses, they are written over those
of the parent: what has no room there is cut, and what is left over is empty.

The package setproctitle does not do: it joins the arguments to one, writes over /proc/PID/environ, by which processes
of a job are found, and cuts what has no room in the parent's arguments and environment.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from launcher.system.processes import stat_fields

STAT_ARG_START, STAT_ARG_END = 48, 49
STAT_MAP = (26, 27, 45, 46, 47, None, 28, STAT_ARG_START, STAT_ARG_END, 50, 51)
"""Which fields of /proc/self/stat say where the arguments lie, and which fill a `prctl_mm_map`, counted from 1 as in
proc(5). None is the end of the heap, which is not among them."""
ARG_START, ARG_END, HEAP_END = map(STAT_MAP.index, (STAT_ARG_START, STAT_ARG_END, None))
PR_SET_MM, PR_SET_MM_MAP = 35, 14
"""Of prctl(2). Unlike its single fields, the map needs no privilege."""
KEEP_PROGRAM = 0xFFFFFFFF
"""In place of a descriptor of another program file."""

_elsewhere: ctypes.Array[ctypes.c_char] | None = None
"""Arguments that are longer than those of the parent: they last as long as the process."""


def show(argv: Sequence[str]) -> None:
    """Show `argv` as the arguments of this process. Where the kernel does not say where they are, nothing changes."""
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
    """Tell the kernel where the arguments lie. If it refuses, what was written over the old ones is shown."""
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    places[HEAP_END] = libc.sbrk(0) or 0
    places[ARG_START], places[ARG_END] = start, end
    made = struct.pack("=11QQII", *places, 0, 0, KEEP_PROGRAM)
    libc.prctl(PR_SET_MM, PR_SET_MM_MAP, made, ctypes.c_ulong(len(made)), ctypes.c_ulong(0))
