"""The store as the rest of the project sees it: keys, revisions, transactions, leases, watches.

The words are etcd's. Two implementations keep this contract (`memory` and `etcd`), under one test suite.

Times are seconds; revisions are the store's own counter, which grows by one with each transaction that writes.
Keys and range ends are text; values are bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

from elastic.core.kv import (
    Compare,
    ElseBranch,
    EndpointStatus,
    KeyRange,
    Lease,
    Listing,
    Operation,
    RefreshResult,
    TxnResult,
    WatchBatch,
)


class WatchExtension:
    """Given to a watch, it lets the watch's reader have it take on ranges later."""

    def __init__(self) -> None:
        """No watch has it yet."""
        self._take: Callable[[Sequence[KeyRange], int], Awaitable[None]] | None = None
        self._waiting: list[tuple[Sequence[KeyRange], int]] = []

    async def offer_extension(self, take: Callable[[Sequence[KeyRange], int], Awaitable[None]]) -> None:
        """Be the watch that takes them, as soon as it stands; it gets at once what was added before."""
        while self._waiting:
            await take(*self._waiting.pop(0))
        self._take = take

    async def add(self, ranges: Sequence[KeyRange], from_revision: int) -> None:
        """Watch these too, from that revision on. They must not overlap what is watched; errors end the watch.

        What has happened to them before now may come after newer changes of the others.
        """
        if self._take is None:
            self._waiting.append((ranges, from_revision))
        else:
            await self._take(ranges, from_revision)


class Store(Protocol):
    """A linearizable key-value store with leases and watches.

    Every call has its own deadline and raises `StoreUnavailable` when nobody answered, `StoreDenied` when the answer
    was no, and, for writes only, `OutcomeUnknown` when the answer was lost.
    """

    async def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
        created_before: int = 0,
        newest_first: bool = False,
    ) -> Listing:
        """Read a range, linearizably.

        `created_before` R keeps keys with a create revision below R; `newest_first` orders by create revision,
        falling; `limit` 0 means all.
        """
        ...

    async def txn(
        self, compares: Sequence[Compare], then: Sequence[Operation], otherwise: ElseBranch = ()
    ) -> TxnResult:
        """Run `then` if every compare holds, else `otherwise`; all or nothing. At most `OPERATIONS_MAX` in all."""
        ...

    def watch(
        self, ranges: Sequence[KeyRange], from_revision: int, more: WatchExtension | None = None
    ) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change in the ranges, and in those of `more`, from `from_revision` on, in order, until closed.

        `NOW`: from the moment on at which the watch begins; the first batch has a revision of which nothing later is
        missing. Each batch has changes of one revision; the changes of one revision to several ranges may come in two
        batches. The first batch is empty and says that the watch stands. Ends only by an error: `Compacted`,
        `WatchLost`, `StoreUnavailable` or `StoreDenied`.
        """
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Make a lease of at least `ttl_s` seconds (whole seconds in etcd). Never raises `OutcomeUnknown`."""
        ...

    async def refresh(self, lease_id: int) -> RefreshResult:
        """Prolong a lease."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. A lease that is already gone is no error."""
        ...

    async def statuses(self) -> tuple[EndpointStatus, ...]:
        """One status for each endpoint that answers."""
        ...

    @property
    def revision_seen(self) -> int:
        """The highest revision that a linearizable answer or a watch carried.

        A refresh does not count: a follower answers it, which may be a little behind. A linearizable answer lower than
        what was seen before it was asked for comes from another store; the count then begins anew there.
        """
        ...

    async def close(self) -> None:
        """Let go of every connection. Ends all watches."""
        ...
