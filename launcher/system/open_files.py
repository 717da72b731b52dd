"""How many files a process may have open: more for an agent, and as the user had it for what it starts.

The agent that proposes has a link to every node. 1024, which is usual, would be used up by a thousand nodes, and then
etcd, logs and workers would have none.
"""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

OPEN_MAX: Final = 65_536
"""Links are at most 8192 in each direction; some kernels keep a table of the length of the limit."""
GIVEN: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit that this process was started with."""


def raise_own() -> None:
    """Let this process have as many as it may, up to `OPEN_MAX`. A limit that is higher already stays."""
    soft, hard = GIVEN
    if soft == resource.RLIM_INFINITY:
        return
    most = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def as_given(pid: int) -> None:
    """Give a process that this one has just started, and whatever it starts, the limits of before."""
    with suppress(OSError):  # It has ended, or nobody may do this here; it keeps ours then.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, GIVEN)
