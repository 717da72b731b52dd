"""The store as the rest of the project sees it: keys, revisions, transactions, leases, watches.

The words are etcd's. Two implementations keep this contract (`memory` and `etcd`), under one test suite.

Times are seconds; revisions are the store's own counter, which grows by one with each transaction that writes.
Keys and range ends are text; values are bytes.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

from elastic.core.kv import (
    Compare,
    EndpointStatus,
    KeyRange,
    Lease,
    Listing,
    Operation,
    RefreshResult,
    TxnResult,
    WatchBatch,
)


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
    ) -> Listing:
        """Read a range, linearizably: its first `limit` keys, or all of them if that is 0."""
        ...

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """Run `then`, all or nothing, if every compare holds. At most `OPERATIONS_MAX` of both together."""
        ...

    def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change in the ranges from `from_revision` on, in order, until closed.

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
