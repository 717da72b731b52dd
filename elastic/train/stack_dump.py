"""The stacks of all threads of this process, on a signal: for a worker that hangs and can say nothing by itself."""

from __future__ import annotations

import faulthandler
import io
import signal
import sys

_registered: list[int] = []


def register() -> int:
    """Have a real-time signal write the stacks of all threads to stderr; its number, or 0 if that cannot be.

    It works while the main thread sits in a collective: the writer is C and takes no lock of Python's. The number is
    one that nobody has a handler for. A second call gives the same.
    """
    if not _registered:
        _registered.append(_register())
    return _registered[0]


def _register() -> int:
    free = (number for number in range(signal.SIGRTMAX, signal.SIGRTMIN - 1, -1) if not _taken(number))
    number = next(free, 0)
    try:
        if number:
            faulthandler.register(number, sys.stderr.fileno(), all_threads=True, chain=False)
    except (AttributeError, io.UnsupportedOperation, ValueError, OSError, RuntimeError):
        return 0  # stderr is no file here, as in a notebook.
    return number


def _taken(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_DFL
