"""The agent's table: it is sound as it stands, and every row is taken by the situation that it is named for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import msgspec
import pytest

from elastic.core.agent import table
from elastic.core.agent.events import (
    DrainRequested,
    Event,
    LeaseRefreshed,
    LinksChanged,
    MemberFound,
    PeersUnreachable,
    SessionLost,
    Tick,
    TransactionAnswered,
    WorkerExited,
    WorkersGone,
    WorkersHung,
    WorkersListen,
)
from elastic.core.agent.state import Phase
from elastic.core.agent.table import ROWS, TABLE
from elastic.core.model import ChangeReason, FinalStatus, Outcome, Predecessor
from elastic.core.transactions import Transaction
from tests.support.agent_harness import (
    IN_PHASE,
    Bench,
    done,
    ended,
    gated,
    joining,
    leaving,
    running,
    serving,
    spare,
    stopping,
    vouched,
)
from tests.support.job_transcript import worker_exit
from tests.support.strategies import KEYS

BOTH = Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST)


def hurried() -> Bench:
    """While it stops its workers for a drain, somebody is lost."""
    bench = running()
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    return look_after(bench, lambda told: told.world(3, "a", why=ChangeReason.NODE_LOST, before=BOTH))


# --- the table as it stands ---------------------------------------------------------------------------------------


def test_every_row_has_a_name_of_its_own_that_begins_with_its_phase() -> None:
    names = [row.name for row in TABLE]
    assert len(set(names)) == len(names)
    assert all(row.name.startswith(f"{row.phase}: ") for row in TABLE)


def test_every_phase_but_the_last_has_a_way_out_and_the_last_has_none() -> None:
    ways_out = {phase: [row for row in ROWS[phase] if row.to is not phase] for phase in Phase}
    assert [phase for phase, rows in ways_out.items() if not rows] == [Phase.ENDED]
    assert ROWS[Phase.ENDED] == ()


def reachable(start: Phase) -> set[Phase]:
    """Every phase that the rows lead to from one."""
    found, fresh = {start}, [start]
    while fresh:
        for row in ROWS[fresh.pop()]:
            if row.to not in found:
                found.add(row.to)
                fresh.append(row.to)
    return found


def test_every_phase_can_be_reached_and_from_every_phase_the_end_can_be_reached() -> None:
    assert reachable(Phase.JOINING) == set(Phase)
    assert all(Phase.ENDED in reachable(phase) for phase in Phase)


def test_the_rows_of_a_phase_are_those_of_the_table_in_their_order() -> None:
    assert sorted((row for rows in ROWS.values() for row in rows), key=TABLE.index) == list(TABLE)
    for phase, rows in ROWS.items():
        assert list(rows) == [row for row in TABLE if row.phase is phase]


def test_the_page_above_the_table_names_every_phase() -> None:
    page = table.__doc__ or ""
    assert all(f"\n{phase} " in page for phase in Phase)


# --- every row ----------------------------------------------------------------------------------------------------


def told(bench: Bench, *events: Event) -> Bench:
    bench.tell(*events)
    return bench


def look_after(bench: Bench, change: Callable[[Bench], Any]) -> Bench:
    change(bench)
    return bench


def late_for(status: FinalStatus) -> Bench:
    """The job has ended before this node comes."""
    bench = joining()
    bench.offline = False
    bench.verdict(status)
    return bench


def refused() -> Bench:
    """The job uses another number of cards."""
    bench = joining(slots=2)
    bench.offline = False
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, msgspec.structs.replace(bench.spec, slots=8))
    bench.others("a")
    bench.at(bench.core.wake_at or 0.0)
    return bench


def drained() -> Bench:
    """A running member drained, nobody took notice, and its workers stopped."""
    bench = unheard()
    bench.gone()
    return bench


def unheard() -> Bench:
    """A running member drains, and nobody takes notice."""
    bench = running()
    bench.drain()
    bench.now = 4.0
    bench.refreshed()
    bench.at(5.0)
    return bench


def asked_to_leave() -> Bench:
    """Its workers are being stopped for a planned change."""
    bench = running()
    bench.world(2, "a b", why=ChangeReason.SCALE_UP, before=Predecessor(1, ("a", "b"), ChangeReason.SCALE_UP))
    return bench


def out_of_time_while_they_save() -> Bench:
    """The machine of a member goes before its workers have saved."""
    bench = asked_to_leave()
    bench.tell(DrainRequested(4, "its machine goes", 7.0))
    bench.at(4.0)
    return bench


SITUATIONS: dict[str, Callable[[], Bench]] = {
    "joining: the job has ended": lambda: late_for(FinalStatus.COMPLETED),
    "joining: refused": refused,
    "joining: drain": lambda: look_after(joining(), Bench.drain),
    "joining: gave up": lambda: look_after(joining(join_timeout_s=10.0), lambda bench: bench.at(10.0)),
    "joining: registered": spare,
    "spare: verdict": lambda: look_after(spare(), Bench.verdict),
    "spare: drain": lambda: look_after(spare(), Bench.drain),
    "spare: registration lost": lambda: look_after(spare(), Bench.unregister),
    "spare: chosen": gated,
    "spare: gave up": lambda: look_after(spare(join_timeout_s=10.0), lambda bench: bench.at(10.0)),
    "gated: verdict": lambda: look_after(gated(), Bench.verdict),
    "gated: drain": lambda: look_after(gated(), Bench.drain),
    "gated: registration lost": lambda: look_after(gated(), Bench.unregister),
    "gated: passed over": lambda: look_after(gated(), lambda bench: bench.world(2, "a")),
    "gated: newer generation": lambda: look_after(gated(), lambda bench: bench.world(2, "a b")),
    "gated: go": running,
    "gated: gave up": lambda: look_after(gated(join_timeout_s=10.0), lambda bench: bench.at(10.0)),
    "running: right ended": lambda: look_after(running(), lambda bench: bench.at(5.0)),
    "running: failed": lambda: look_after(running(), lambda bench: bench.exit(1)),
    "running: ok": done,
    "running: only servers left": lambda: look_after(serving(), lambda bench: bench.exit(0)),
    "running: superseded": stopping,
    "running: verdict": lambda: look_after(running(), lambda bench: bench.verdict(FinalStatus.FAILED)),
    "running: killed": lambda: look_after(running(), Bench.gone),
    "running: drain unheard": unheard,
    "stopping: out of time": out_of_time_while_they_save,
    "stopping: a loss": hurried,
    "stopping: failed": lambda: look_after(asked_to_leave(), lambda bench: bench.exit(1)),
    "stopping: gone": lambda: look_after(stopping(), Bench.gone),
    "done: verdict": lambda: look_after(done(), Bench.verdict),
    "done: drained": drained,
    "done: registration lost": lambda: look_after(done(), Bench.unregister),
    "done: chosen": lambda: look_after(done(), lambda bench: bench.world(2, "a b", before=BOTH)),
    "done: passed over": lambda: look_after(done(), lambda bench: bench.world(2, "a", before=BOTH)),
    "leaving: left": ended,
}


def test_every_row_has_its_situation() -> None:
    assert list(SITUATIONS) == [row.name for row in TABLE]


@pytest.mark.parametrize("name", SITUATIONS)
def test_each_row_is_taken_in_its_situation(name: str) -> None:
    assert name in SITUATIONS[name]().rows


@pytest.mark.parametrize("phase", Phase)
def test_each_phase_is_reached_by_events_alone(phase: Phase) -> None:
    assert IN_PHASE[phase]().phase is phase


# --- events that come late, twice, or for somebody else -----------------------------------------------------------


STRANGE: dict[str, Event] = {
    "an exit of an older generation": WorkerExited(0, worker_exit(), own=True),
    "an exit of a newer generation": WorkerExited(9, worker_exit(), own=True),
    "workers of a newer generation that hang": WorkersHung(9, (worker_exit(),)),
    "workers of a newer generation that listen": WorkersListen(9),
    "workers of a newer generation that wait for nodes out of reach": PeersUnreachable(9, ("c",), (worker_exit(),)),
    "the end of a newer generation's workers": WorkersGone(9, step=1000),
    "a refresh of another lease": LeaseRefreshed(999, 1000.0, 1e6, 1),
    "the loss of another lease": SessionLost(999, "TTL 0"),
    "a vouch for another generation": vouched(1e6, 9),
    "the answer to a transaction of nobody": TransactionAnswered(Transaction("go", (), ()), True),
    "a call at no time in particular": Tick(),
    "the same that is heard": LinksChanged(frozenset()),
}


def known(bench: Bench) -> dict[str, Any]:
    """Everything that the agent knows but the time."""
    return {name: value for name, value in _values(bench.facts) if name not in ("now", "actions", "wake_at", "memory")}


def _values(record: Any) -> list[tuple[str, Any]]:
    values = [(each.name, getattr(record, each.name)) for each in fields(record)]
    return [
        (name, _values(value) if is_dataclass(value) else list(value) if isinstance(value, list) else value)
        for name, value in values
    ]


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.JOINING])
@pytest.mark.parametrize("event", STRANGE.values(), ids=STRANGE.keys())
def test_a_strange_event_changes_nothing(event: Event, phase: Phase) -> None:
    bench = IN_PHASE[phase]()
    bench.asked.clear()
    before = known(bench)
    bench.tell(event)
    assert bench.phase is phase
    assert known(bench) == before
    assert bench.asked == []


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase is not Phase.JOINING])
@pytest.mark.parametrize("exists", [True, False, None])
def test_that_members_exist_concerns_only_a_node_that_is_about_to_register(exists: bool | None, phase: Phase) -> None:
    bench = IN_PHASE[phase]()
    bench.asked.clear()
    bench.tell(MemberFound(exists))
    assert bench.phase is phase
    assert bench.asked == []


@pytest.mark.parametrize("phase", [Phase.STOPPING, Phase.DONE])
def test_a_late_vouch_for_workers_that_are_gone_or_going_starts_nothing(phase: Phase) -> None:
    bench = IN_PHASE[phase]()
    bench.tell(vouched(1e6))
    assert bench.phase is phase
    assert bench.starts == [1]


def test_an_exit_that_our_own_signal_caused_is_no_failure() -> None:
    bench = stopping()
    bench.tell(WorkerExited(1, worker_exit(code=-15), own=False))
    bench.gone()
    assert bench.outcomes[1] == Outcome(ended=bench.outcomes[1].ended, over=True, host="host-b")
    assert bench.outcomes[1].ended == "stopped"


def test_the_end_of_the_workers_that_is_told_twice_is_recorded_once() -> None:
    bench = done()
    recorded = bench.shelf.view.outcomes[1, "b"]
    bench.tell(WorkersGone(1, step=70), WorkerExited(1, worker_exit(), own=True))
    assert bench.shelf.view.outcomes[1, "b"] == recorded


def test_the_first_drain_counts() -> None:
    bench = running()
    bench.drain()
    bench.now = 1.0
    bench.tell(DrainRequested(130, "SIGINT"))
    assert bench.facts.leaving.drain is not None
    assert (bench.facts.leaving.drain.at, bench.facts.leaving.drain.exit_code) == (0.0, 143)


@pytest.mark.parametrize("event", [*STRANGE.values(), DrainRequested(143, "SIGTERM")])
def test_after_the_end_nothing_is_asked_any_more(event: Event) -> None:
    bench = ended()
    bench.asked.clear()
    bench.tell(event)
    assert bench.asked == []
    assert bench.core.wake_at is None


def test_a_clock_that_runs_back_is_not_believed() -> None:
    bench = running()
    bench.at(3.0)
    bench.at(1.0)
    assert bench.facts.now == 3.0


def test_leaving_waits_for_the_store_for_5_s_and_no_longer() -> None:
    bench = leaving()
    bench.at(4.9)
    assert bench.phase is Phase.LEAVING
    assert bench.core.wake_at == 5.0
    bench.at(5.0)
    assert (bench.phase, bench.exit_code) == (Phase.ENDED, 143)


def test_names_of_duties_are_unique() -> None:
    names = [duty.name for duty in (*table.REPORTS, *table.DUTIES)]
    assert len(names) == len(set(names))


def test_after_the_end_no_time_is_waited_for() -> None:
    assert table.TIMES[Phase.ENDED] == ()
    assert all(table.TIMES[phase] for phase in Phase if phase is not Phase.ENDED)
