"""The end of a worker's process, in an order that torch survives.

torch 2.13 with gloo aborts now and then at the end of a process ("terminate called without an active exception"): its
threads let go of the tensors of a collective after the script was told that it is done, and need python's lock for
that. A script that ends right then keeps the lock until the interpreter is taken down. It can also hang when the group
is destroyed before the DDP models that use it are gone, for the same reason. So at a normal end the threads get the
lock for a moment, then the reducers of DDP go, then the group.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from typing import Final

MOMENT_S: Final = 0.05
"""A thread that waits for the lock gets it within microseconds, on a machine that is not overloaded."""

_let_go: Final[set[int]] = set()
"""Processes that have waited for others since their last collective: the threads have had their moment."""
_armed: Final[set[int]] = set()
"""Processes that end like this; a process that was forked from one does not."""


def arm() -> None:
    """See to it that the group of this process is destroyed at a normal end."""
    if os.getpid() not in _armed:
        _armed.add(os.getpid())
        atexit.register(_end)


def mark_gil_released_wait() -> None:
    """Say that this process has waited for others, without python's lock, since its last collective."""
    _let_go.add(os.getpid())


def _end() -> None:
    """After an exception the group stays: peers may be gone, and the exit must be quick."""
    import torch.distributed as dist

    if os.getpid() not in _armed:
        return
    if os.getpid() not in _let_go:
        time.sleep(MOMENT_S)
    if getattr(sys, "last_value", None) is not None or not dist.is_initialized():
        return
    ddp = sys.modules.get("torch.nn.parallel.distributed")
    if ddp is not None:
        for thing in gc.get_objects():
            if issubclass(type(thing), ddp.DistributedDataParallel):
                for name in ("reducer", "logger"):
                    thing.__dict__[name] = None
    dist.destroy_process_group()
