"""Writes the stack traces of all threads of this process on a signal, even if the worker hangs."""

from __future__ import annotations

import faulthandler
import io
import signal
import sys

_registered: list[int] = []


def register() -> int:
    """Register a real-time signal that writes the stack traces of all threads to stderr.

    Returns the number of the signal, one without a handler, or 0 if none is free or stderr is not a file; a second
    call returns the same. It works while the main thread is in a collective: the handler is C code and does not take
    the GIL.
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
        return 0  # stderr is not a file, as in a notebook.
    return number


def _taken(number: int) -> bool:
    return signal.getsignal(number) is not signal.SIG_DFL
