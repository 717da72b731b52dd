"""How many descriptors a process may have: the agent takes all that it can get, its workers have what the user gave.

The proposer of n nodes has n links, and most systems give a process 1,024 descriptors and let it ask for far more.
Workers do not get those: programs that use `select`, or that close every number up to the limit, would break.
"""

from __future__ import annotations

import resource


def raise_limit() -> int:
    """Raise this process's limit as far as it goes; what it was, or 0 if it stays as it is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # The hard one is more than this machine allows by now.
        return 0
    return 0 if soft == hard else soft


def put_back(soft: int) -> None:
    """Have the limit that `raise_limit` told, here and in every child; 0 changes nothing."""
    if soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
