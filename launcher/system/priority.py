"""The scheduling priority of the agent and of its fork server, which must answer where data loaders take every core.

Where the kernel shares a machine out by session (`/proc/sys/kernel/sched_autogroup_enabled`, for processes in no CPU
cgroup), nice values count within a session alone. The agent then has the share of a session, and each worker another.

Standard library only.
"""

from __future__ import annotations

import os
from typing import Final

RAISED_NICE: Final = -10
"""A share of a core about nine times that of a process at 0. Not the highest: what keeps the machine itself alive,
such as a daemon for its network, may have more."""
USUAL_NICE: Final = 0


def raise_priority() -> bool:
    """Give the calling thread a higher priority if it has the usual one; False if that changes nothing.

    Processes and threads that it starts afterwards have the usual priority: the kernel sees to that at each fork, so
    that no worker can inherit this one. Where the user has chosen a priority, that one stays, for workers too.
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
    except OSError:  # A sandbox may know no such flag. Workers come first.
        os.setpriority(os.PRIO_PROCESS, 0, USUAL_NICE)
        return False
    return True
