"""The interface of the store: keys, revisions, transactions, leases and watches.

The terms are etcd's. Two implementations satisfy this contract (`memory` and `etcd`), under one test suite.

Times are in seconds. Revisions are a counter of the store, which grows by one with each transaction that writes. Keys
and range ends are text; values are bytes.
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

    Every call has its own timeout. It raises `StoreUnavailable` if no server answered, `StoreDenied` if the server
    refused it, and, for writes only, `OutcomeUnknown` if the answer was lost.
    """

    async def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
    ) -> Listing:
        """Read a range, linearizably: its first `limit` keys, or all of them if `limit` is 0."""
        ...

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """Apply `then` atomically if every compare holds. At most `OPERATIONS_MAX` compares and operations together."""
        ...

    def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change in the ranges from `from_revision` on, in order, until closed.

        `NOW`: from the start of the watch; no change after the revision of the first batch is missing. Each batch has
        changes of one revision; the changes of one revision to several ranges may come in two batches. The first batch
        is empty and shows that the watch has begun. The watch only ends by an error: `Compacted`, `WatchLost`,
        `StoreUnavailable` or `StoreDenied`.
        """
        ...

    async def grant(self, ttl_s: float) -> Lease:
        """Grant a lease of at least `ttl_s` seconds (whole seconds in etcd). Never raises `OutcomeUnknown`."""
        ...

    async def refresh(self, lease_id: int) -> RefreshResult:
        """Refresh a lease for its whole TTL. A lost lease is no error: the result has 0 seconds."""
        ...

    async def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys. A lease that is already gone is no error."""
        ...

    async def statuses(self) -> tuple[EndpointStatus, ...]:
        """Return one status for each endpoint that answers."""
        ...

    @property
    def revision_seen(self) -> int:
        """The highest revision of any linearizable answer or watch.

        A refresh does not count: a follower, which may lag a little, can answer it. A linearizable answer with a lower
        revision than one seen before its request comes from another store; the count then starts again from it.
        """
        ...

    async def close(self) -> None:
        """Close every connection. Ends all watches."""
        ...
