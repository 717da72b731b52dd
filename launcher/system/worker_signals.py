"""Stops workers: the signals, their targets, and their senders. Standard library only.

========================================= ============================== ===============================================
when                                      signal, sent by                to
========================================= ============================== ===============================================
a stop with a grace                       `STOP`, the nursery            the worker's process group, once
the grace is over                         SIGKILL, the nursery           the worker's process group; with the last ones
                                                                         all that descends from the nursery
a stop without a grace, the run deadline  SIGKILL, the nursery           the process groups of all workers, and all that
has passed, the agent has ended                                          descends from the nursery
a worker has ended                        SIGKILL, the nursery           its process group; with the last one, all that
                                                                         descends from the nursery
the nursery has died                      SIGKILL, the kernel            each worker (parent-death signal)
the nursery has died                      SIGKILL, the agent             the sessions of the workers, and orphans that
                                                                         the kernel gave to the agent
========================================= ============================== ===============================================

The core chooses the grace (`elastic.core.agent.workers.stop`: --stop-timeout, --failure-stop-timeout, what a drain
leaves), and the nursery keeps it (`launcher.nursery.supervisor`). Workers that accept a planned stop are asked over
their channel
before any signal (`launcher.workers.planned_stop`).
"""

from __future__ import annotations

import ctypes
import signal
from collections.abc import Iterable
from typing import Final

from launcher.system.processes import Process, signal_group, signal_one

STOP: Final = signal.SIGTERM
"""Asks a worker to exit."""
STOP_EXIT_CODE: Final = 128 + STOP
"""The exit code of a worker that exits because of `STOP` or of a planned stop."""
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def stop_group(leader: int) -> None:
    """Ask a worker's process group to exit."""
    signal_group(leader, STOP)


def kill_group(leader: int) -> None:
    """Kill a worker's process group."""
    signal_group(leader, signal.SIGKILL)


def kill_processes(found: Iterable[Process]) -> list[int]:
    """Kill these processes; return the PIDs of those that belong to another user and cannot be killed."""
    return [one.pid for one in found if not one.zombie and not signal_one(one.pid, signal.SIGKILL)]


def on_parent_death(number: signal.Signals) -> None:
    """Have the kernel send this process a signal when its parent's thread ends. Raises `OSError`."""
    if _LIBC.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(number)) != 0:
        raise OSError(ctypes.get_errno(), "prctl refused the parent-death signal")
