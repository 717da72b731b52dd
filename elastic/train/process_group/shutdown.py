"""Ends a worker's process in an order in which torch neither aborts nor hangs.

torch 2.13 with gloo sometimes aborts at the end of a process ("terminate called without an active exception"): its
threads release the tensors of a collective after the collective has returned to the script, and need the GIL for that.
A script that ends right then holds the GIL until the interpreter is finalized. For the same reason it can hang when the
group is destroyed before the DDP models that use it. So at a normal end this module releases the GIL for a moment, then
drops the reducers of DDP, then destroys the group.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import time
from typing import Final

MOMENT_S: Final = 0.05
"""A thread that waits for the GIL gets it within microseconds, unless the machine is overloaded."""

_released_gil: Final[set[int]] = set()
"""Processes that have waited for others, without the GIL, since their last collective."""
_armed: Final[set[int]] = set()
"""Processes that run `_end` at exit; a fork of one does not."""


def arm() -> None:
    """Destroy the group of this process at its normal end."""
    if os.getpid() not in _armed:
        _armed.add(os.getpid())
        atexit.register(_end)


def mark_gil_released_wait() -> None:
    """Record that this process has waited for others, without the GIL, since its last collective."""
    _released_gil.add(os.getpid())


def _end() -> None:
    """Destroy the group, except after an exception: peers may be gone then, and the exit must be quick."""
    import torch.distributed as dist

    if os.getpid() not in _armed:
        return
    if os.getpid() not in _released_gil:
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
