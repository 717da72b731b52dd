"""What only the in-memory core has: time as an argument."""

from __future__ import annotations

import pytest

from elastic.core.kv import Compare, Delete, KeyChange, KeyRange, KeyValue, Put, WatchBatch
from elastic.errors import Compacted, StoreError
from elastic.store.memory_core import MemoryCore

EVERYTHING = [KeyRange("", "\U0010ffff")]


def test_leases_end_in_the_order_of_their_time_each_in_a_revision_of_its_own() -> None:
    core = MemoryCore()
    late, early, empty = core.grant(5, now=0), core.grant(3, now=1), core.grant(2, now=0)
    core.txn((), [Put("/b", b"", late.id), Put("/a", b"", late.id), Put("/c", b"", early.id)])
    assert core.next_expiry() == 2
    assert core.expire(now=1.9) == ()
    assert core.expire(now=10) == (empty.id, early.id, late.id)
    assert [[c.entry.key for c in batch.changes] for batch in core.history(EVERYTHING, 3)] == [["/c"], ["/a", "/b"]]
    assert core.revision == 4
    assert core.next_expiry() is None


def test_a_lease_whose_time_is_over_cannot_be_refreshed_even_before_it_is_collected() -> None:
    core = MemoryCore()
    lease = core.grant(5, now=0)
    assert core.refresh(lease.id, now=4.9) == 5
    assert core.refresh(lease.id, now=9.9) == 0.0
    assert core.expire(now=9.9) == (lease.id,)


def test_a_new_leader_gives_every_lease_its_full_time_again() -> None:
    core = MemoryCore()
    lease = core.grant(5, now=0)
    core.renew_all_leases(now=4)
    assert core.expire(now=8.9) == ()
    assert core.expire(now=9) == (lease.id,)


def test_the_history_has_one_batch_for_each_revision_that_touched_the_ranges() -> None:
    core = MemoryCore()
    core.txn((), [Put("/a/1", b"x"), Put("/b/1", b"y")])
    core.txn((), [Put("/c/1", b"")])
    core.txn((), [Delete(KeyRange.prefix("/a/"))])
    assert core.history([KeyRange.prefix("/a/"), KeyRange.prefix("/z/")], 1) == (
        WatchBatch(2, (KeyChange(KeyValue("/a/1", b"x", 2, 2)),)),
        WatchBatch(4, (KeyChange(KeyValue("/a/1", b"", 0, 4), deleted=True),)),
    )
    assert core.history(EVERYTHING, 5) == core.history(EVERYTHING, 100) == ()


def test_a_compacted_history_can_be_read_from_the_compaction_on_and_not_before() -> None:
    core = MemoryCore()
    for _ in range(4):
        core.txn((), [Put("/a", b"")])
    core.compact(3)
    assert [batch.revision for batch in core.history(EVERYTHING, 3)] == [3, 4, 5]
    with pytest.raises(Compacted) as caught:
        core.history(EVERYTHING, 2)
    assert caught.value.revision == 3
    with pytest.raises(Compacted):
        core.compact(3)
    with pytest.raises(StoreError):
        core.compact(6)
    core.compact(5)
    assert [batch.revision for batch in core.history(EVERYTHING, 5)] == [5]
    core.txn((), [Put("/a", b"")])
    assert [batch.revision for batch in core.history(EVERYTHING, 6)] == [6]


def test_readers_are_told_of_each_new_revision_and_of_nothing_else() -> None:
    core = MemoryCore()
    told: list[int] = []

    def reader() -> None:
        told.append(core.revision)

    core.subscribe(reader)
    core.txn((), [Put("/a", b"")])
    core.txn([Compare.absent("/a")], [Put("/b", b"")])
    core.txn((), [Delete(KeyRange.key("/z"))])
    core.txn((), [Delete(KeyRange.key("/a"))])
    core.unsubscribe(reader)
    core.txn((), [Put("/c", b"")])
    assert told == [2, 3]
