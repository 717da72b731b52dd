"""The history of a job in the store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from elastic import history
from elastic.errors import StoreUnavailable
from elastic.history import KEPT, TEXT_MAX, Event, What, events_of, remember
from elastic.keys import encode
from elastic.model import Budget, Cause, Generation, Go, Place, Status, Verdict, Why
from elastic.proposals import Transaction, leave
from elastic.store.base import Entry, Put, Range
from elastic.store.memory import MemoryCore
from elastic.store.memory_store import MemoryStore
from launcher.console import Console
from launcher.history import History, in_words, read
from launcher.logs import Level, Narrator
from tests.unit.documents import KEYS
from tests.unit.views import worker_exit

CAUSE = Cause(g=1, host="h", node="a", exits=(worker_exit(3),), ranks=(3,), world_size=8)


def proposal(number: int = 1, reason: str = "2 of 2 nodes are here") -> Transaction:
    places = (Place("a", "h", (7000,), (8000,)), Place("b", "h", (7000,), (8000,)))
    generation = Generation(g=number, run=1, tag="t", why=Why.FIRST, reason=reason, members=places, slots=1)
    return Transaction("form", (), (Put(KEYS.generation, encode(generation)),))


def said(document: Go | Verdict, key: str) -> Event:
    (event,) = events_of(KEYS, Transaction("x", (), (Put(key, encode(document)),)), "a", 12.3456)
    return event


def test_a_generation_a_go_and_a_verdict_become_one_sentence_each() -> None:
    formed = Event(at=12.346, node="a", what=What.GENERATION, g=1, text="2 nodes, world size 2: 2 of 2 nodes are here")
    assert events_of(KEYS, proposal(), "a", 12.3456) == [formed]
    go = Go(g=2, tag="", master="h:1", budget=Budget(charged=1), cause=CAUSE, note="restart 1 of 3")
    assert said(go, KEYS.go).text == ("rank=[3] failed on host h, see workerlog.3; restart 1 of 3; 1 restarts charged")
    verdict = Verdict(status=Status.FAILED, reason="no restart is left", run=1, g=2, tag="", at=0.0, cause=CAUSE)
    assert said(verdict, KEYS.verdict).text == (
        "failed: no restart is left; rank=[3] failed on host h, see workerlog.3"
    )


def test_a_first_generation_that_comes_with_its_go_is_two_events_in_their_order() -> None:
    go = Go(g=1, tag="", master="h:1", budget=Budget())
    together = Transaction("form", (), (*proposal().then, Put(KEYS.go, encode(go))))
    assert [event.what for event in events_of(KEYS, together, "a", 0.0)] == [What.GENERATION, What.GO]


def test_other_transactions_are_no_events() -> None:
    assert events_of(KEYS, leave(KEYS, "a", 4), "a", 0.0) == []


def test_a_long_reason_is_cut() -> None:
    (event,) = events_of(KEYS, proposal(reason="x" * 5000), "a", 0.0)
    assert len(event.text) == TEXT_MAX


def test_an_event_whose_time_no_calendar_has_is_left_out() -> None:
    """Somebody else wrote it: `elastic-ctl events` shows the others."""
    entries = [
        Entry(f"{KEYS.events}{number}", b'{"at":%s,"node":"n","what":"go","g":1}' % at, number, number)
        for number, at in enumerate((b"1e300", b"-1e300", b"253402300800", b"253402300799"), 1)
    ]
    assert [in_words(event)[:4] for event in history.read(KEYS, entries)] == ["9999"]


class Kept:
    """A store with the history of one job, and the node that writes it."""

    def __init__(self, folder: Path) -> None:
        self.core = MemoryCore()
        self.store = MemoryStore(self.core, time.monotonic)
        with (folder / "console").open("w") as file:
            self.console = Console(file.fileno())
        self.narrator = Narrator("a", self.console, level=Level.VERBOSE)
        self.history = History(self.store, KEYS, "a", self.narrator)
        self.output = folder / "console"

    async def write(self, *numbers: int) -> None:
        running = asyncio.create_task(self.history.run())
        for number in numbers:
            self.history.add(proposal(number))
            await self.history.settle(10)
        running.cancel()
        await asyncio.wait([running])

    def close(self) -> None:
        self.console.close()


@pytest.fixture
def kept(tmp_path: Path) -> Any:
    it = Kept(tmp_path)
    yield it
    it.close()


def test_the_newest_are_kept_in_order_with_one_write_each(kept: Kept) -> None:
    numbers = list(range(1, KEPT + 50))

    async def main() -> None:
        await kept.write(*numbers)
        assert [event.g for event in await read(kept.store, KEYS)] == numbers[-KEPT:]

    asyncio.run(main())
    assert kept.core.revision == 1 + len(numbers)


def test_a_clock_that_is_behind_does_not_change_the_order() -> None:
    ahead = Event(at=2_000_000_000.0, node="a", what=What.GO, g=1)
    (first,) = remember(KEYS, ahead, [])
    behind = Event(at=1_000_000_000.0, node="b", what=What.GO, g=2)
    assert isinstance(first, Put)
    (second,) = remember(KEYS, behind, [first.key])
    assert isinstance(second, Put)
    assert first.key < second.key
    assert second.key.endswith("-b")


def test_what_others_left_under_events_is_neither_read_nor_in_the_way(kept: Kept) -> None:
    for key in ("rubbish", "99999-x", "0000000000000x-y"):
        kept.core.txn((), (Put(KEYS.events + key, b"\xff"),))

    async def main() -> None:
        await kept.write(7)
        assert [event.g for event in await read(kept.store, KEYS)] == [7]

    asyncio.run(main())


def test_a_store_that_does_not_answer_costs_the_event_and_nothing_else(
    kept: Kept, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("nobody is there")

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(kept.store, "list", silent)
            await kept.write(1)
        await kept.write(2)
        assert [event.g for event in await read(kept.store, KEYS)] == [2]

    asyncio.run(main())
    assert "the event of generation 1 (generation) is not kept: nobody is there" in kept.output.read_text()


def test_a_history_that_nobody_writes_has_a_bound_and_settles_in_time(kept: Kept) -> None:
    async def main() -> None:
        for number in range(1, 1000):
            kept.history.add(proposal(number))
        await kept.history.settle(0.01)
        await kept.write()

    asyncio.run(main())
    assert kept.core.list(Range.prefix(KEYS.events)).entries == ()
