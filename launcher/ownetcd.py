"""The etcd that a parent of nodes runs is started again when it dies: in an empty one the job forms again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from elastic.errors import StoreUnavailable
from elastic.store.embedded import EmbeddedEtcd
from launcher import exits

STARTS_MAX: Final = 5
"""An etcd that dies more often dies of something that stays, such as a full disk."""


async def tend(etcd: EmbeddedEtcd, say: Callable[[str], None]) -> None:
    """Start `etcd`, which runs, anew at its port whenever it has ended.

    Never returns. Raises `StoreUnavailable` or `ConfigError` when that does not help.
    """
    for _ in range(STARTS_MAX):
        how = exits.describe(await etcd.ended())
        say(f"the etcd of this job has ended ({how}); another one starts, empty, and the job forms again in it")
        await etcd.start_again()
    how = exits.describe(await etcd.ended())
    raise StoreUnavailable(
        f"the etcd of this job has ended {STARTS_MAX + 1} times, now with: {how}; see whether disk and memory are "
        "full, or use an etcd of your own with --elastic_server"
    )
