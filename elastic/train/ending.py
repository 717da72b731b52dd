"""The last moment of a script: what gloo's threads still hold is let go before python ends.

A thread of gloo's lets the tensors of a collective go only after the script has been told that it is done, and for
that it needs python's lock. A script that ends right then keeps the lock until the interpreter is taken down, and the
process aborts ("terminate called without an active exception"): with torch 2.13 in 5 of 8 runs of three processes. To
the launcher that is a failure of training that was done. So the lock is given away for a moment first.
"""

from __future__ import annotations

import atexit
import time
from typing import Final

MOMENT_S: Final = 0.05
"""A thread that waits for the lock gets it within microseconds, on a machine that is not overloaded."""

_registered: list[bool] = []


def let_threads_end() -> None:
    """Have python wait for `MOMENT_S` at its exit. A second call changes nothing."""
    if not _registered:
        _registered.append(True)
        atexit.register(time.sleep, MOMENT_S)
