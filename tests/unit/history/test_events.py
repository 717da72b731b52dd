"""The history of a job in the store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastic.core.agent.actions import NoteSilence, SilenceStep
from elastic.core.kv import KeyRange, KeyValue, Put
from elastic.core.model import Budget, Cause, ChangeReason, FinalStatus, Generation, GenerationMember, Go, Verdict
from elastic.core.transactions import Transaction, deregister
from elastic.core.view import encode
from elastic.errors import StoreUnavailable
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.agent.history_writer import HistoryWriter
from launcher.history import events
from launcher.history.events import (
    KEPT,
    LINE_MAX,
    NODES_MAX,
    TAIL_MAX,
    TEXT_MAX,
    EventKind,
    FailureRecord,
    HistoryEvent,
    events_of,
    of_eviction,
    of_recovery,
    remember,
)
from launcher.history.recovery import PhaseEnd, Recovery
from launcher.job.history import event_line, read_history
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from tests.support.job_transcript import worker_exit
from tests.support.strategies import KEYS

CAUSE = Cause(g=1, host="h", node="a", exits=(worker_exit(3),), ranks=(3,), world_size=8)


def proposal(number: int = 1, reason: str = "2 of 2 nodes are here") -> Transaction:
    places = (GenerationMember("a", "h", (7000,), (8000,)), GenerationMember("b", "h", (7000,), (8000,)))
    generation = Generation(g=number, run=1, leader="t", why=ChangeReason.FIRST, reason=reason, members=places, slots=1)
    return Transaction("form", (), (Put(KEYS.generation, encode(generation)),))


def said(document: Go | Verdict, key: str) -> HistoryEvent:
    (event,) = events_of(KEYS, Transaction("x", (), (Put(key, encode(document)),)), "a", 12.3456)
    return event


def test_a_generation_without_members_tells_that_all_stop() -> None:
    empty = Generation(
        g=2, run=1, leader="t", why=ChangeReason.STOP, reason="an operator stopped the job", members=(), slots=1
    )
    (event,) = events_of(KEYS, Transaction("form", (), (Put(KEYS.generation, encode(empty)),)), "a", 1.0)
    assert (event.text, event.world) == ("all workers stop: an operator stopped the job", 0)


def test_a_generation_a_go_and_a_verdict_become_one_sentence_each() -> None:
    (formed,) = events_of(KEYS, proposal(), "a", 12.3456)
    assert (formed.at, formed.node, formed.what, formed.g) == (12.346, "a", EventKind.GENERATION, 1)
    assert formed.text == "2 nodes, world size 2: 2 of 2 nodes are here"
    go = Go(g=2, master="h:1", budget=Budget(charged=1), cause=CAUSE, note="restart 1 of 3")
    assert said(go, KEYS.go).text == ("rank=[3] failed on host h, see workerlog.3; restart 1 of 3; 1 restart used")
    verdict = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=2, at=0.0, cause=CAUSE)
    assert said(verdict, KEYS.verdict).text == (
        "failed: no restart is left; rank=[3] failed on host h, see workerlog.3"
    )


def test_programs_find_in_fields_what_a_sentence_says() -> None:
    (formed,) = events_of(KEYS, proposal(), "a", 1.0)
    assert (formed.run, formed.why, formed.reason) == (1, ChangeReason.FIRST, "2 of 2 nodes are here")
    assert (formed.nodes, formed.more, formed.world) == (("a", "b"), 0, 2)
    go = said(Go(g=2, master="h:1", budget=Budget(charged=1), cause=CAUSE, note="restart 1 of 3"), KEYS.go)
    assert (go.charged, go.reason) == (1, "restart 1 of 3")
    verdict = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=2, at=0.0, cause=CAUSE)
    ended = said(verdict, KEYS.verdict)
    assert (ended.status, ended.reason, ended.run) == (FinalStatus.FAILED, "no restart is left", 1)
    assert ended.failure == go.failure
    assert ended.failure == FailureRecord(g=1, host="h", node="a", rank=3, code=1, words="exit code 1")


def test_a_large_world_names_its_first_nodes_and_says_how_many_more_there_are() -> None:
    places = tuple(GenerationMember(f"n{number}", "h", (), (8000,)) for number in range(NODES_MAX + 5))
    world = Generation(g=1, run=1, leader="t", why=ChangeReason.FIRST, reason="", members=places, slots=1)
    (event,) = events_of(KEYS, Transaction("form", (), (Put(KEYS.generation, encode(world)),)), "a", 0.0)
    assert (event.nodes[0], len(event.nodes), event.more, event.world) == ("n0", NODES_MAX, 5, NODES_MAX + 5)


def test_of_a_log_the_last_lines_are_kept_and_not_more_of_each_than_a_person_reads() -> None:
    tail = tuple(f"{number} {'x' * 5000}" for number in range(2 * TAIL_MAX))
    cause = msgspec.structs.replace(CAUSE, exits=(worker_exit(3, log="l" * 9000, tail=tail),))
    go = said(Go(g=2, master="h:1", budget=Budget(), cause=cause), KEYS.go)
    assert go.failure is not None
    assert [len(line) for line in go.failure.tail] == [LINE_MAX] * TAIL_MAX
    assert go.failure.tail[-1].startswith("39 ")
    assert events.read(KEYS, [KeyValue(KEYS.events + "1", msgspec.json.encode(go), 1, 1)]) == [go]


def test_a_recovery_says_when_it_began_on_the_wall_clock() -> None:
    found = Recovery(
        ChangeReason.NODE_LOST,
        "b was lost",
        1,
        2,
        100.0,
        ((PhaseEnd.DETECTED, 0.5), (PhaseEnd.STEPPED, 1.5)),
        last_step=9,
        last_at=99.0,
    )
    event = of_recovery(found, "a", 5000.0, 103.0)
    assert (event.began, event.last_at, event.last_step, event.restored_step) == (4997.0, 4996.0, 9, None)
    assert (event.before, event.why, event.reason, event.complete) == (1, ChangeReason.NODE_LOST, "b was lost", True)


@pytest.mark.parametrize(
    ("by", "words"),
    [
        (("b",), "b cannot connect to it either"),
        (("b", "c"), "b and c cannot connect to it either"),
        ((), "there was no other node to ask, and a reached etcd meanwhile"),
    ],
)
def test_an_eviction_says_who_heard_nothing_for_how_long_and_who_confirmed_it(by: tuple[str, ...], words: str) -> None:
    event = of_eviction(NoteSilence(SilenceStep.EVICTED, "n3", "h3", 1.2843, by), 4, "a", 12.3456)
    assert (event.at, event.node, event.what, event.g) == (12.346, "a", EventKind.EVICTION, 4)
    assert event.text == f"a received nothing from n3 (host h3) for 1.3 s and cannot connect; {words}"
    assert (event.of, event.host, event.silent_s, event.by) == ("n3", "h3", 1.284, by)
    assert events.read(KEYS, [KeyValue(KEYS.events + "1", msgspec.json.encode(event), 1, 1)]) == [event]


def test_an_event_of_an_older_version_is_read() -> None:
    old = b'{"at":12.5,"node":"n","what":"recovery","g":2,"text":"b was lost","phases":{"step":0.5},"rev":0,"of":""}'
    (event,) = events.read(KEYS, [KeyValue(KEYS.events + "1", old, 1, 1)])
    assert (event.text, event.began, event.nodes) == ("b was lost", None, ())


def test_a_first_generation_that_comes_with_its_go_is_two_events_in_their_order() -> None:
    go = Go(g=1, master="h:1", budget=Budget())
    together = Transaction("form", (), (*proposal().then, Put(KEYS.go, encode(go))))
    assert [event.what for event in events_of(KEYS, together, "a", 0.0)] == [EventKind.GENERATION, EventKind.GO]


def test_other_transactions_are_no_events() -> None:
    assert events_of(KEYS, deregister(KEYS, "a", 4, None), "a", 0.0) == []


def test_a_long_reason_is_cut() -> None:
    (event,) = events_of(KEYS, proposal(reason="x" * 5000), "a", 0.0)
    assert len(event.text) == TEXT_MAX


def test_an_event_whose_time_no_calendar_has_is_left_out() -> None:
    """Somebody else wrote it: `elastic-ctl events` shows the others."""
    entries = [
        KeyValue(f"{KEYS.events}{number}", b'{"at":%s,"node":"n","what":"go","g":1}' % at, number, number)
        for number, at in enumerate((b"1e300", b"-1e300", b"253402300800", b"253402300799"), 1)
    ]
    assert [event_line(event)[:4] for event in events.read(KEYS, entries)] == ["9999"]


class Kept:
    """A store with the history of one job, and the node that writes it."""

    def __init__(self, folder: Path) -> None:
        self.core = MemoryCore()
        self.store = MemoryStore(self.core, time.monotonic)
        with (folder / "console").open("w") as file:
            self.console = Console(file.fileno())
        self.agent_log = AgentLog("a", self.console, level=Verbosity.VERBOSE)
        self.history = HistoryWriter(self.store, KEYS, "a", self.agent_log)
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
        assert [event.g for event in await read_history(kept.store, KEYS)] == numbers[-KEPT:]

    asyncio.run(main())
    assert kept.core.revision == 1 + len(numbers)


def test_a_clock_that_is_behind_does_not_change_the_order() -> None:
    ahead = HistoryEvent(at=2_000_000_000.0, node="a", what=EventKind.GO, g=1)
    (first,) = remember(KEYS, ahead, [])
    behind = HistoryEvent(at=1_000_000_000.0, node="b", what=EventKind.GO, g=2)
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
        assert [event.g for event in await read_history(kept.store, KEYS)] == [7]

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
        assert [event.g for event in await read_history(kept.store, KEYS)] == [2]

    asyncio.run(main())
    assert (
        "cannot write the event of generation 1 (generation) to the history: nobody is there" in kept.output.read_text()
    )


def test_a_history_that_nobody_writes_has_a_bound_and_settles_in_time(kept: Kept) -> None:
    async def main() -> None:
        for number in range(1, 1000):
            kept.history.add(proposal(number))
        await kept.history.settle(0.01)
        await kept.write()

    asyncio.run(main())
    assert kept.core.list(KeyRange.prefix(KEYS.events)).entries == ()
