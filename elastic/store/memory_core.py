"""The store as plain values in memory, with the complete rules of etcd (pure).

`MemoryCore` is synchronous and deterministic, and takes the time as an argument. The simulation drives it directly, and
`elastic.store.memory` wraps it as a `Store`. Its rules are etcd's, as the contract suite verifies:

- the revision starts at 1 and grows by one with each transaction that changes something;
- compares of a range hold if they hold for every key in it; an empty range compares like one absent key;
- a transaction that puts a key twice, or puts a key that it also deletes, is refused;
- a lease that ends deletes its keys, in one separate revision; without keys it makes no revision;
- a history that was compacted at R can still be read from R on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from elastic.core.kv import (
    Compare,
    CompareTarget,
    Delete,
    KeyChange,
    KeyRange,
    KeyValue,
    Lease,
    Listing,
    Operation,
    Put,
    TxnResult,
    WatchBatch,
    check_txn,
)
from elastic.errors import Compacted, StoreError

_Keys = list[str]  # inside the class `list` is the method


@dataclass(slots=True)
class _LeaseState:
    """A lease: its TTL, when it ends, and its keys (in the order in which they were put)."""

    ttl_s: float
    ends: float
    keys: dict[str, None] = field(default_factory=dict)


class MemoryCore:
    """A complete etcd in memory, without a clock. Entries are shared, never copied; all are frozen."""

    def __init__(self) -> None:
        """Start empty, at revision 1."""
        self.revision = 1
        """The store's revision; an empty etcd has 1."""
        self._compacted = 0
        self._keys: list[str] = []
        self._entries: dict[str, KeyValue] = {}
        self._leases: dict[int, _LeaseState] = {}
        self._lease_last = 0
        self._batches: list[WatchBatch] = []
        """Every revision since the compaction."""
        self._readers: dict[Callable[[], None], None] = {}

    @property
    def leases(self) -> tuple[Lease, ...]:
        """All valid leases, in the order in which they were granted."""
        return tuple(Lease(id_, lease.ttl_s) for id_, lease in self._leases.items())

    def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
    ) -> Listing:
        """Read a range; see `Store.list`."""
        entries = tuple([self._entries[key] for key in self._select(range)[: limit or None]])
        if keys_only:
            entries = tuple(KeyValue(e.key, b"", e.create_revision, e.mod_revision, e.lease) for e in entries)
        return Listing(self.revision, entries)

    def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """Run `then` if every compare holds; see `Store.txn`. A refused transaction changes nothing."""
        check_txn(compares, then)
        if not all(self._holds(compare) for compare in compares):
            return TxnResult(False, self.revision)
        for operation in then:
            if isinstance(operation, Put) and operation.lease and operation.lease not in self._leases:
                raise StoreError(f"lease {operation.lease:x} of {operation.key!r} does not exist")
        revision = self.revision + 1
        changes: list[KeyChange] = []
        for operation in then:
            match operation:
                case Put():
                    changes.append(self._put(operation, revision))
                case Delete():
                    changes += [self._remove(key, revision) for key in self._select(operation.range)]
        self._record(changes)
        return TxnResult(True, self.revision)

    def grant(self, ttl_s: float, now: float) -> Lease:
        """Grant a lease that ends at `now + ttl_s` unless it is refreshed. Lease ids count up from 1."""
        if ttl_s <= 0:
            raise StoreError(f"a lease of {ttl_s} s")
        self._lease_last += 1
        self._leases[self._lease_last] = _LeaseState(ttl_s, now + ttl_s)
        return Lease(self._lease_last, ttl_s)

    def refresh(self, lease_id: int, now: float) -> float:
        """Refresh a lease for its whole TTL from `now`; return the TTL, 0.0 if the lease is gone or has expired.

        An expired lease is not refreshed, even before `expire` has deleted it.
        """
        lease = self._leases.get(lease_id)
        if lease is None or lease.ends <= now:
            return 0.0
        lease.ends = now + lease.ttl_s
        return lease.ttl_s

    def revoke(self, lease_id: int) -> None:
        """End a lease and delete its keys in one revision. A lease that is already gone is no error."""
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        revision = self.revision + 1
        self._record([self._remove(key, revision) for key in sorted(lease.keys)])

    def expire(self, now: float) -> tuple[int, ...]:
        """End every expired lease, the earliest first, each in a separate revision; return their ids."""
        over = sorted((lease.ends, id_) for id_, lease in self._leases.items() if lease.ends <= now)
        for _, lease_id in over:
            self.revoke(lease_id)
        return tuple(lease_id for _, lease_id in over)

    def next_expiry(self) -> float | None:
        """Return when the next lease ends, None without leases."""
        return min((lease.ends for lease in self._leases.values()), default=None)

    def renew_all_leases(self, now: float) -> None:
        """Renew every lease for its whole TTL from `now`, as a new leader of etcd does."""
        for lease in self._leases.values():
            lease.ends = now + lease.ttl_s

    def history(self, ranges: Sequence[KeyRange], from_revision: int) -> tuple[WatchBatch, ...]:
        """Return every change in the ranges from `from_revision` on, one batch for each revision that changed them.

        Raises `Compacted` if that part of the history is gone. A future revision has no changes.
        """
        if from_revision < self._compacted:
            raise Compacted(self._compacted)
        matching: list[WatchBatch] = []
        for batch in self._batches[self._batch_index(from_revision) :]:
            changes = tuple(change for change in batch.changes if any(change.entry.key in span for span in ranges))
            if len(changes) == len(batch.changes):
                matching.append(batch)
            elif changes:
                matching.append(WatchBatch(batch.revision, changes))
        return tuple(matching)

    def compact(self, revision: int) -> None:
        """Drop the history before `revision`. Raises `Compacted` if it is gone, `StoreError` for a future revision."""
        if revision <= self._compacted:
            raise Compacted(self._compacted)
        if revision > self.revision:
            raise StoreError(f"revision {revision} is still to come: the store is at {self.revision}")
        self._compacted = revision
        del self._batches[: self._batch_index(revision)]

    def _batch_index(self, revision: int) -> int:
        return bisect_left(self._batches, revision, key=lambda batch: batch.revision)

    def subscribe(self, reader: Callable[[], None]) -> None:
        """Have `reader` called after each new revision."""
        self._readers[reader] = None

    def unsubscribe(self, reader: Callable[[], None]) -> None:
        """Call `reader` no longer."""
        self._readers.pop(reader, None)

    def _select(self, span: KeyRange) -> _Keys:
        keys = self._keys
        if span.end == span.start + "\0":
            return [span.start] if span.start in self._entries else []
        return keys[bisect_left(keys, span.start) : bisect_left(keys, span.end)]

    def _holds(self, compare: Compare) -> bool:
        entries = [self._entries[key] for key in self._select(compare.range)]
        if not entries:  # An absent key has revisions 0, and no value.
            return compare.target is not CompareTarget.VALUE and compare.operand == 0
        return all(getattr(entry, compare.target) == compare.operand for entry in entries)

    def _put(self, put: Put, revision: int) -> KeyChange:
        held = self._entries.get(put.key)
        if held is None:
            insort(self._keys, put.key)
            created = revision
        else:
            created = held.create_revision
            if held.lease != put.lease:
                self._detach(held)
        if put.lease:
            self._leases[put.lease].keys[put.key] = None
        entry = self._entries[put.key] = KeyValue(put.key, put.value, created, revision, put.lease)
        return KeyChange(entry)

    def _remove(self, key: str, revision: int) -> KeyChange:
        entry = self._entries.pop(key)
        del self._keys[bisect_right(self._keys, key) - 1]
        self._detach(entry)
        return KeyChange(KeyValue(key, b"", 0, revision), deleted=True)

    def _detach(self, entry: KeyValue) -> None:
        """Take a key off its lease; a lease that is ending is already out of the table."""
        lease = self._leases.get(entry.lease)
        if lease is not None:
            lease.keys.pop(entry.key, None)

    def _record(self, changes: Sequence[KeyChange]) -> None:
        """Make a revision of the changes, if there are any."""
        if changes:
            self.revision += 1
            self._batches.append(WatchBatch(self.revision, tuple(changes)))
            for reader in tuple(self._readers):
                reader()
