"""The end of a worker's process, in an order that torch survives.

torch 2.13 with gloo aborts now and then when a process ends whose group was not destroyed ("terminate called without an
active exception"), and can hang when the group is destroyed before the DDP models that use it are gone: the threads of
gloo and the interpreter wait for each other. So at a normal end the reducers of DDP go first, then the group.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from typing import Final

_armed: Final[set[int]] = set()
"""Processes that end like this; a process that was forked from one does not."""


def arm() -> None:
    """See to it that the group of this process is destroyed at a normal end."""
    if os.getpid() not in _armed:
        _armed.add(os.getpid())
        atexit.register(_end)


def _end() -> None:
    """Nothing is done after an exception: peers may be gone, and the exit must be quick."""
    import torch.distributed as dist

    if os.getpid() not in _armed or getattr(sys, "last_value", None) is not None or not dist.is_initialized():
        return
    ddp = sys.modules.get("torch.nn.parallel.distributed")
    if ddp is not None:
        for thing in gc.get_objects():
            if issubclass(type(thing), ddp.DistributedDataParallel):
                for name in ("reducer", "logger"):
                    thing.__dict__[name] = None
    dist.destroy_process_group()
