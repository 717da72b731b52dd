"""Detects that the reader of stdout has gone, for commands that may write nothing for a long time."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from launcher.system.descriptors import discard_stream
from launcher.system.stdout import StdoutClosed

_Result = TypeVar("_Result")


async def while_stdout_is_open(work: Coroutine[Any, Any, _Result]) -> _Result:
    """Return the result of `work`. Raises `StdoutClosed` as soon as stdout is a pipe without a reader (`| head`)."""
    fd = sys.stdout.fileno()
    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
        return await work
    loop = asyncio.get_running_loop()
    task, gone = asyncio.ensure_future(work), asyncio.Event()
    waiting = asyncio.ensure_future(gone.wait())
    loop.add_reader(fd, gone.set)  # Nothing can be read there: only its end wakes us up.
    try:
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        loop.remove_reader(fd)
        ended = task.done()
        for future in (task, waiting):
            future.cancel()
        await asyncio.wait({task, waiting})
    if ended:
        return task.result()
    discard_stream(sys.stdout)
    raise StdoutClosed
