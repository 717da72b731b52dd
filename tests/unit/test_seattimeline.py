"""Where the time of a recovery went in a job with parameter servers: that of the seats that start again."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.agentevents import Action, Event, Gone, ProvenGone, Send
from elastic.agentfacts import Facts, Phase
from elastic.history import What, beginning, of_beginning, of_recovery
from elastic.model import Before, Generation, Mode, Place, Role, Roles, Seat, Why
from elastic.recovery import Mark, Recovery, begun
from elastic.seattimeline import Beginning, SeatTimeline
from elastic.timeline import START_PATIENCE_S
from tests.unit.bench import Bench
from tests.unit.documents import KEYS

THINKS_S = 0.001
"""What the core takes to answer."""
STORE_S = 0.002
"""What the store takes to answer."""
SERVER, WORKER, SECOND = Seat(Role.SERVER, 0), Seat(Role.WORKER, 0), Seat(Role.WORKER, 1)
APART = Roles(server_num=1, worker_num=1, apart=True)
ONE_MACHINE = Roles(server_num=1, worker_num=1)


class Noted:
    """The agent of node b in a job with parameter servers, with the notes of its timeline."""

    def __init__(self, np: str, roles: Roles, after: str = "") -> None:
        self.timeline = SeatTimeline("b", -1.0)
        self.bench: Bench | None = None
        self.bench = Bench(np=np, after=after, slots=2, watch=self._watch, mode=Mode.PS, roles=roles)
        if not after:
            self.bench.others("")
            self.bench.look()

    def _watch(self, facts: Facts, event: Event, actions: list[Action]) -> None:
        self.timeline.observe(facts, event, actions, arrived=facts.now, now=facts.now + THINKS_S)
        if self.bench is not None and any(isinstance(action, Send) for action in actions):
            self.bench.now += THINKS_S + STORE_S

    @property
    def agent(self) -> Bench:
        assert self.bench is not None
        return self.bench

    def publishes(self, rev: int, places: dict[str, Any], *, by: str, g: int = 1, reason: str = "because") -> None:
        """Another node publishes a revision: seats by node, with the revision that gave them and whether it leaves."""
        members = tuple(
            Place(node, f"host-{node}", (7000,), (8000, 8001)[: len(seats)], tuple(seats), since, leaving)
            for node, (seats, since, leaving) in places.items()
        )
        before = Before(g - 1, ("a", "b"), Why.REFORMED, (0, 0)) if g > 1 else None
        why = Why.REFORMED if g > 1 else Why.LOSS if rev else Why.FIRST
        generation = Generation(
            g=g, run=1, tag=f"{by}/1/{rev}", why=why, reason=reason, members=members, slots=2, rev=rev, before=before
        )
        self.agent.shelf.put(KEYS.generation, generation)
        self.agent.look()

    def told(self, at: float) -> Recovery:
        found = self.timeline.take(at)
        assert found is not None
        assert self.timeline.due_at is None, "it is told once"
        return found


def has(*seats: Seat, since: int = 0, leaving: bool = False) -> tuple[tuple[Seat, ...], int, bool]:
    return seats, since, leaving


def milliseconds(phases: tuple[tuple[Mark, float], ...]) -> dict[str, int]:
    return {str(name): round(length * 1000) for name, length in phases}


def trains() -> Noted:
    """Node a serves, b has worker 0 and trains; they have the whole job between them."""
    noted = Noted("1", APART, after="a")
    noted.publishes(0, {"a": has(SERVER), "b": has(WORKER)}, by="a")
    noted.agent.go(1)
    assert noted.agent.phase is Phase.RUNNING
    noted.timeline.spawned(1, 0.1)
    noted.timeline.stood(1, 0, 0.3, 0.3)
    assert noted.timeline.take(0.3) is None, "a tells of the first start"
    return noted


def spare() -> Noted:
    """Node a serves, c trains, and b waits for a seat."""
    noted = Noted("1", APART, after="a c")
    noted.publishes(0, {"a": has(SERVER), "c": has(WORKER)}, by="a")
    noted.agent.go(1)
    assert noted.agent.phase is Phase.SPARE
    return noted


def test_processes_that_failed_and_start_again_are_counted_from_the_first_ones_end() -> None:
    noted = Noted("1", ONE_MACHINE)
    assert noted.agent.starts == [1]
    noted.timeline.spawned(1, 0.1)
    noted.timeline.stood(1, 0, 0.2, 0.2)
    noted.timeline.stood(1, 1, 0.4, 0.4)
    first = noted.told(0.4)
    assert (first.start, first.end) == (True, Mark.STEPPED)
    noted.timeline.failed(1, 2.0, 2.004)
    noted.agent.now = 2.004
    noted.agent.exit(3)
    noted.agent.now = 2.05
    noted.agent.gone()
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 2.1)
    noted.timeline.restored(1, 7, 2.15, 2.15)
    noted.timeline.stood(1, 0, 2.2, 2.2)
    assert noted.timeline.due_at is None, "its worker will make a step"
    noted.timeline.stood(1, 1, 2.3, 2.3)
    found = noted.told(2.3)
    assert (found.began, found.end, found.rev, found.foreign, found.start) == (2.0, Mark.STEPPED, 1, False, False)
    assert found.total_s == pytest.approx(0.3)
    assert found.line.startswith("b (server 0, worker 0) failed and starts again")
    assert ": back in 0.30 s: notice 4 ms · stop 46 · " in found.line
    assert found.line.endswith(" · restore 50 · step 150")
    assert list(milliseconds(found.phases)) == [
        "notice", "stop", "seat", "decide", "publish", "go", "spawn", "restore", "step",
    ]  # fmt: skip


def test_seats_that_had_to_stop_are_counted_from_their_stop() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.agent.at(50.0)
    assert noted.agent.stops, "the right to run has ended"
    noted.agent.now = 50.2
    noted.agent.gone()
    noted.agent.now = 51.0
    noted.agent.refreshed()
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 51.1)
    found = noted.timeline.end()
    assert found is not None
    assert (found.began, found.foreign) == (50.0, False)
    assert found.text == "b (server 0, worker 0) had to stop and starts again"
    assert milliseconds(found.phases)["stop"] == 200


def test_who_proposes_notes_how_the_recovery_began_of_seats_that_start_elsewhere() -> None:
    noted = trains()
    noted.agent.others("c")
    created = noted.agent.shelf.view.members["a"].create_revision
    noted.agent.now = 2.004
    noted.agent.tell(ProvenGone("a", created, "host-a", closed_at=2.0))
    noted.agent.shelf.delete(KEYS.member("a"))
    noted.agent.look()
    generation = noted.agent.facts.generation
    assert generation is not None
    assert [place.leaving for place in generation.members] == [True, False], "a may still run"
    assert noted.timeline.beginnings == []
    while noted.agent.facts.generation is generation:
        noted.agent.refreshed()
        wake_at = noted.agent.core.wake_at
        assert wake_at is not None
        noted.agent.at(wake_at)
    (found,) = noted.timeline.beginnings
    assert noted.timeline.beginnings == [], "it is given once"
    assert (found.g, found.rev) == (1, 2)
    assert found.text.startswith("a (server 0) was lost; ")
    assert found.text.endswith("c (server 0) joins")
    lengths = milliseconds(found.phases)
    assert list(lengths) == ["notice", "seat", "decide", "publish"]
    assert lengths["notice"] == 4
    assert lengths["seat"] > 5000, "its lease, and what its processes may take to end"
    assert (lengths["decide"], lengths["publish"]) == (1, 2)
    assert noted.timeline.take(99.0) is None, "nothing of b starts"


def test_who_starts_the_seats_tells_and_the_proposer_knows_how_it_began() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"a": has(SERVER, leaving=True), "c": has(WORKER)}, by="c", reason="a was lost")
    noted.agent.now = 5.0
    noted.agent.refreshed()
    noted.publishes(2, {"b": has(SERVER, since=2), "c": has(WORKER)}, by="c", reason="b joins")
    assert noted.agent.phase is Phase.RUNNING
    noted.timeline.spawned(1, 5.02)
    noted.timeline.restored(1, 40, 5.1, 5.1)
    noted.timeline.stood(1, 0, 5.12, 5.12)
    found = noted.told(5.12)
    assert (found.foreign, found.rev, found.end, found.began) == (True, 2, Mark.SERVED, 2.0)
    assert found.line.startswith("a was lost; b joins: back in 3.12 s: ")
    noted_there = Beginning(
        1, 2, "a died; b joins", ((Mark.NOTICED, 0.004), (Mark.SEATED, 2.9), (Mark.PUBLISHED, 0.003))
    )
    events = [of_beginning(noted_there, "c", 1.0), of_recovery(found, "b", 2.0)]
    assert (events[0].what, events[0].rev) == (What.SEATS, 2)
    there = beginning(events, found)
    assert there is not None
    whole = begun(found, there.text, there.phases)
    assert whole.line == (
        "a died; b joins: back in 3.03 s: notice 4 ms · seat 2900 · publish 3 · spawn 20 · restore 80 · serve 20"
    )
    assert beginning(events[1:], found) is None


def test_a_newcomer_whose_seat_nobody_had_is_a_start_and_counted_from_its_command() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"a": has(SERVER), "b": has(SECOND, since=1), "c": has(WORKER)}, by="a", reason="b joins")
    noted.timeline.spawned(1, 2.1)
    noted.timeline.stood(1, 0, 2.5, 2.5)
    found = noted.told(2.5)
    assert found.start
    assert found.total_s == pytest.approx(3.5)
    assert found.line.startswith("b joins: first step 3.50 s after the command: join ")


def test_a_start_that_fails_before_it_is_done_is_one_recovery_with_the_next() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"b": has(SERVER, since=1), "c": has(WORKER)}, by="c", reason="a was lost, b joins")
    noted.timeline.spawned(1, 2.1)
    noted.timeline.failed(1, 2.3, 2.3)
    noted.agent.now = 2.3
    noted.agent.exits(1)
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 2.5)
    noted.timeline.stood(1, 0, 2.6, 2.6)
    found = noted.told(2.6)
    assert found.text.startswith("a was lost, b joins; b (server 0) failed and starts again")
    assert (found.began, found.foreign) == (2.0, False)
    assert milliseconds(found.phases)["earlier"] == 300
    assert found.total_s == pytest.approx(0.6)


def test_a_generation_that_follows_one_of_which_nobody_was_left_is_a_recovery() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(0, {"b": has(SERVER), "c": has(WORKER)}, by="b", g=2, reason="a, c left")
    noted.agent.go(2)
    noted.timeline.spawned(2, 2.1)
    noted.timeline.stood(2, 0, 2.2, 2.2)
    found = noted.told(2.2)
    assert (found.start, found.before, found.g, found.began) == (False, 1, 2, 2.0)


def test_processes_that_say_nothing_are_followed_to_their_start() -> None:
    noted = spare()
    noted.publishes(1, {"b": has(SERVER, since=1), "c": has(WORKER)}, by="c")
    noted.timeline.spawned(1, 2.1)
    assert noted.timeline.due_at == pytest.approx(2.1 + START_PATIENCE_S)
    assert noted.told(2.1 + START_PATIENCE_S).end is Mark.SPAWNED


def test_who_keeps_its_seats_says_nothing_whatever_becomes_of_the_others() -> None:
    noted = trains()
    noted.agent.now = 2.0
    noted.publishes(1, {"a": has(SERVER, leaving=True), "b": has(WORKER)}, by="a")
    noted.publishes(2, {"b": has(WORKER), "c": has(SERVER, since=2)}, by="c")
    assert noted.timeline.end() is None
    assert noted.timeline.beginnings == []


def test_no_order_of_words_raises() -> None:
    timeline = SeatTimeline("b", 0.0)
    timeline.spawned(1, 1.0)
    timeline.failed(1, 1.0, 1.0)
    timeline.grouped(1, 0, 0.0, 1.0)
    timeline.restored(1, -1, 0.0, 1.0)
    timeline.stood(1, 0, 0.0, 1.0)
    assert timeline.take(9.0) is None
    assert timeline.end() is None
    noted = trains()
    noted.timeline.stood(1, 7, 0.0, 1.0)
    noted.agent.tell(Gone(1), Gone(1), Gone(9))
