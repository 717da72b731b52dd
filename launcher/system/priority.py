"""Raises the priority of the agent and its fork server, which must answer even if data loaders use every core.

If the kernel divides the CPU between sessions (`/proc/sys/kernel/sched_autogroup_enabled`, for processes in no CPU
cgroup), nice values apply only within a session. The agent then has the share of a session, and each worker another.

Standard library only.
"""

from __future__ import annotations

import os
from typing import Final

RAISED_NICE: Final = -10
"""About nine times the share of a core of a process at 0. Not the highest: essential daemons of the host, such as
that of its network, may have more."""
USUAL_NICE: Final = 0


def raise_priority() -> bool:
    """Raise the priority of the calling thread if it has the default one; False if that has no effect.

    Processes and threads that it starts afterwards have the default priority: the kernel resets it at each fork, so
    that no worker can inherit the raised one. A priority that the user has chosen stays, for workers too.
    """
    policy = os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK
    if policy != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) != USUAL_NICE:
        return False
    try:
        os.setpriority(os.PRIO_PROCESS, 0, RAISED_NICE)
    except OSError:
        return False
    try:
        os.sched_setscheduler(0, os.SCHED_OTHER | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    except OSError:  # A sandbox may not support the flag. Workers must not inherit the priority.
        os.setpriority(os.PRIO_PROCESS, 0, USUAL_NICE)
        return False
    return True
