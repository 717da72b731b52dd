"""Where the time of a recovery went in a job with parameter servers: that of the seats that start again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elastic.core.agent.actions import SendTransaction
from elastic.core.agent.events import ProcessProvenDead, Tick, TransactionAnswered, WorkersGone
from elastic.core.agent.state import Phase
from elastic.core.membership.decision import FormGeneration, Reason
from elastic.core.model import ChangeReason, Outcome, OutcomeKind, Predecessor
from elastic.core.ps.model import ClusterSpec, PsLayout, Role, Task, TaskMember
from elastic.core.transactions import Transaction
from launcher.history.events import EventKind, beginning, of_beginning, of_recovery
from launcher.history.failure_signals import ProposalTracker
from launcher.history.ps_recovery_recorder import PsRecoveryRecorder
from launcher.history.recorder_base import START_PATIENCE_S, RecoveryBeginning
from launcher.history.recovery import PhaseEnd, begun
from tests.support.agent_harness import Bench
from tests.support.recorder_harness import NotedAgent
from tests.support.strategies import KEYS

SERVER, WORKER, SECOND = Task(Role.SERVER, 0), Task(Role.WORKER, 0), Task(Role.WORKER, 1)
APART = PsLayout(server_num=1, worker_num=1, separate=True)
ONE_MACHINE = PsLayout(server_num=1, worker_num=1)


class Noted(NotedAgent[PsRecoveryRecorder]):
    """The agent of node b in a job with parameter servers, with the notes of its timeline."""

    def __init__(self, np: str, roles: PsLayout, after: str = "") -> None:
        super().__init__(PsRecoveryRecorder("b", -1.0))
        self.bench = Bench(np=np, after=after, slots=2, watch=self.watch, layout=roles)
        if not after:
            self.bench.others("")
            self.bench.look()

    def publishes(
        self,
        rev: int,
        places: dict[str, Any],
        *,
        by: str,
        g: int = 1,
        reason: str = "because",
        why: ChangeReason = ChangeReason.NODE_LOST,
    ) -> None:
        """Another node publishes a revision: seats by node, with the revision that gave them and whether it leaves."""
        members = tuple(
            TaskMember(node, f"host-{node}", (7000,), (8000, 8001)[: len(tasks)], tuple(tasks), since, leaving)
            for node, (tasks, since, leaving) in places.items()
        )
        before = Predecessor(g - 1, ("a", "b"), ChangeReason.REFORMED, (0, 0)) if g > 1 else None
        why = ChangeReason.REFORMED if g > 1 else why if rev else ChangeReason.FIRST
        generation = ClusterSpec(
            g=g, run=1, leader=by, why=why, reason=reason, members=members, slots=2, rev=rev, before=before
        )
        self.agent.shelf.put(KEYS.cluster_spec, generation)
        self.agent.look()


def has(*tasks: Task, since: int = 0, leaving: bool = False) -> tuple[tuple[Task, ...], int, bool]:
    return tasks, since, leaving


def milliseconds(phases: tuple[tuple[PhaseEnd, float], ...]) -> dict[str, int]:
    return {str(name): round(length * 1000) for name, length in phases}


def trains() -> Noted:
    """Node a serves, b has worker 0 and trains; they have the whole job between them."""
    noted = Noted("1", APART, after="a")
    noted.publishes(0, {"a": has(SERVER), "b": has(WORKER)}, by="a")
    noted.agent.go(1)
    assert noted.agent.phase is Phase.RUNNING
    noted.timeline.spawned(1, 0.1)
    noted.timeline.working(1, 0, 0.3, 0.3)
    assert noted.over(0.3, tells=False).start, "a tells of the first start, which was this node's, too"
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
    noted.timeline.working(1, 0, 0.2, 0.2)
    noted.timeline.working(1, 1, 0.4, 0.4)
    first = noted.told(0.4)
    assert (first.start, first.end) == (True, PhaseEnd.STEPPED)
    noted.timeline.failed(1, 2.0, 2.004)
    noted.agent.now = 2.004
    noted.agent.exit(3)
    noted.agent.now = 2.05
    noted.agent.gone()
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 2.1)
    noted.timeline.restored(1, 7, 2.15, 2.15)
    noted.timeline.working(1, 0, 2.2, 2.2)
    assert noted.timeline.due_at is None, "its worker will make a step"
    noted.timeline.working(1, 1, 2.3, 2.3)
    found = noted.told(2.3)
    assert (found.began, found.end, found.rev, found.foreign, found.start) == (2.0, PhaseEnd.STEPPED, 1, False, False)
    assert found.total_s == pytest.approx(0.3)
    assert found.line.startswith("b (server 0, worker 0) failed and starts again")
    assert ": back in 0.30 s: detect 4 ms · stop 46 · " in found.line
    assert found.line.endswith(" · restore 50 · step 150")
    assert list(milliseconds(found.phases)) == [
        "detect", "stop", "assign", "decide", "publish", "barrier", "spawn", "restore", "step",
    ]  # fmt: skip


def test_seats_that_had_to_stop_are_counted_from_their_stop() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.timeline.spawned(1, 0.1)
    noted.timeline.working(1, 0, 0.2, 0.2)
    noted.timeline.working(1, 1, 0.4, 0.4)
    assert noted.told(0.4).start
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
    noted.agent.tell(ProcessProvenDead("a", created, "host-a", closed_at=2.0))
    noted.agent.shelf.delete(KEYS.member("a"))
    noted.agent.look()
    generation = noted.agent.facts.generation
    assert isinstance(generation, ClusterSpec)
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
    assert list(lengths) == ["detect", "assign", "decide", "publish"]
    assert lengths["detect"] == 4
    assert lengths["assign"] > 5000, "its lease, and what its processes may take to end"
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
    noted.timeline.working(1, 0, 5.12, 5.12)
    found = noted.told(5.12)
    assert (found.foreign, found.rev, found.end, found.began) == (True, 2, PhaseEnd.SERVED, 2.0)
    assert found.line.startswith("a was lost; b joins: back in 3.12 s: ")
    lengths = ((PhaseEnd.DETECTED, 0.004), (PhaseEnd.ASSIGNED, 3.09), (PhaseEnd.PUBLISHED, 0.003))
    another, mine = (
        RecoveryBeginning(1, 2, "d", "another's", lengths),
        RecoveryBeginning(1, 2, "b", "a died; b joins", lengths),
    )
    events = [of_beginning(another, "c", 1.0), of_beginning(mine, "c", 1.0), of_recovery(found, "b", 2.0, 2.0)]
    assert (events[1].what, events[1].rev, events[1].of, events[1].node) == (EventKind.TASKS, 2, "b", "c")
    there = beginning(events, found, "b")
    assert there is not None
    whole = begun(found, there.text, there.phases)
    assert whole.line == (
        "a died; b joins: back in 3.22 s: detect 4 ms · assign 3090 · publish 3 · spawn 20 · restore 80 · serve 20"
    )
    assert beginning(events, found, "c") is None


def test_a_newcomer_whose_seat_nobody_had_is_a_start_and_counted_from_its_command() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"a": has(SERVER), "b": has(SECOND, since=1), "c": has(WORKER)}, by="a", reason="b joins")
    noted.timeline.spawned(1, 2.1)
    noted.timeline.working(1, 0, 2.5, 2.5)
    found = noted.told(2.5)
    assert found.start
    assert found.total_s == pytest.approx(3.5)
    assert found.line.startswith("b joins: first step 3.50 s after the command: join ")


def test_a_start_that_fails_before_it_is_done_is_one_recovery_with_the_next() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"b": has(SERVER, since=1), "c": has(WORKER)}, by="c", reason="a was lost, b joins")
    noted.agent.lose("a")
    noted.timeline.spawned(1, 2.1)
    noted.timeline.failed(1, 2.3, 2.3)
    noted.agent.now = 2.3
    noted.agent.exits(1)
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 2.5)
    noted.timeline.working(1, 0, 2.6, 2.6)
    found = noted.told(2.6)
    assert found.text.startswith("a was lost, b joins; b (server 0) failed and starts again")
    assert (found.began, found.foreign, found.rev, found.asked_at) == (2.0, True, 1, 2.0)
    assert milliseconds(found.phases)["earlier"] == 300
    assert found.total_s == pytest.approx(0.6)
    whole = begun(found, "a died; again", {"detect": 0.01, "assign": 1.0, "decide": 0.01, "publish": 0.01})
    assert milliseconds(whole.phases)["earlier"] == 1330
    assert whole.total_s == pytest.approx(0.6 + 1.03)


def test_a_newcomer_whose_first_try_fails_is_counted_from_the_loss_that_the_proposer_saw() -> None:
    noted = spare()
    noted.agent.now = 2.0
    reason = "a (server 0) is gone and its tasks are free, b (server 0) joins"
    noted.publishes(1, {"c": has(WORKER), "b": has(SERVER, since=1)}, by="c", reason=reason)
    noted.timeline.spawned(1, 2.1)
    noted.agent.now = 2.3
    noted.agent.exits(1)
    noted.agent.now = 2.4
    noted.publishes(2, {"c": has(WORKER), "b": has(SERVER, since=2)}, by="c", reason="b failed and starts again")
    noted.timeline.spawned(1, 2.5)
    noted.timeline.working(1, 0, 2.6, 2.6)
    found = noted.told(2.6)
    assert (found.foreign, found.rev, found.asked_at) == (True, 1, 2.0)
    whole = begun(found, "a was lost; b joins", {"detect": 0.004, "assign": 2.0, "decide": 0.001, "publish": 0.002})
    assert not whole.start
    assert whole.total_s == pytest.approx(0.6 + 2.007)


def test_a_first_start_that_fails_stays_a_start_until_it_is_done() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.timeline.spawned(1, 0.1)
    noted.agent.now = 0.5
    noted.agent.exits(1)
    noted.timeline.spawned(1, 0.7)
    for local_rank in (0, 1):
        noted.timeline.working(1, local_rank, 1.0, 1.0)
    found = noted.told(1.0)
    assert found.start
    assert found.total_s == pytest.approx(2.0), "from the command"


def test_a_node_that_failed_and_did_not_propose_its_start_has_the_wait_under_seat() -> None:
    noted = trains()
    noted.timeline.failed(1, 2.0, 2.004)
    noted.agent.now = 2.004
    noted.agent.exit(1)
    noted.agent.now = 2.05
    noted.agent.gone()
    noted.agent.now = 4.0
    noted.agent.refreshed()
    noted.agent.now = 6.0
    noted.agent.refreshed()
    places = {"a": has(SERVER), "b": has(WORKER, since=1)}
    noted.publishes(1, places, by="a", reason="b failed and starts again")
    assert noted.agent.starts == [1, 1]
    noted.timeline.spawned(1, 6.1)
    noted.timeline.working(1, 0, 6.3, 6.3)
    found = noted.told(6.3)
    assert milliseconds(found.phases)["assign"] == 3950
    whole = begun(found, "", {"detect": 0.0, "assign": 3.5, "decide": 0.002, "publish": 0.008})
    assert whole.line == (
        "b failed and starts again: back in 4.30 s: detect 4 ms · stop 46 · assign 3940 · decide 2 · publish 8 · "
        "spawn 100 · step 200"
    )
    assert whole.began == 2.0
    assert whole.total_s == pytest.approx(4.3)


def test_the_word_of_an_older_start_is_no_sign_against_a_newer_one() -> None:
    noted = trains()
    noted.agent.others("c d")
    noted.agent.shelf.delete(KEYS.member("a"))
    noted.agent.now = 1.0
    noted.agent.look()
    stale = Outcome(ended=OutcomeKind.STOPPED, over=True, host="host-c")
    noted.agent.shelf.put(KEYS.outcome(1, "c"), stale)
    noted.publishes(5, {"b": has(WORKER), "c": has(SERVER, since=5)}, by="b")
    noted.agent.now = 2.0
    noted.agent.refreshed()
    noted.agent.look()
    assert noted.timeline._signs.of("c") is None


def test_a_recovery_that_is_over_is_told_although_the_next_revision_is_there_before() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(1, {"c": has(WORKER), "b": has(SERVER, since=1)}, by="c", reason="first")
    noted.timeline.spawned(1, 2.1)
    noted.timeline.working(1, 0, 2.2, 2.2)
    noted.agent.now = 2.2
    noted.agent.exits(1)
    noted.publishes(2, {"c": has(WORKER), "b": has(SERVER, since=2)}, by="c", reason="second")
    assert noted.timeline.due_at == 0.0
    first = noted.timeline.take(2.2)
    assert first is not None
    assert (first.text, first.end) == ("first", PhaseEnd.SERVED)
    assert noted.timeline.take(2.2) is None


def test_a_worker_that_left_by_a_plan_is_not_missed_and_a_server_is() -> None:
    noted = spare()
    noted.agent.now = 2.0
    leaving = {"a": has(SERVER, leaving=True), "c": has(WORKER, leaving=True)}
    noted.publishes(1, leaving, by="a", reason="both drain", why=ChangeReason.DRAIN)
    noted.agent.now = 3.0
    noted.publishes(2, {"b": has(SERVER, WORKER, since=2)}, by="d", reason="b joins")
    noted.timeline.spawned(1, 3.1)
    found = noted.timeline.end()
    assert found is not None
    assert (found.began, found.text) == (2.0, "both drain; b joins")
    again = spare()
    again.agent.now = 2.0
    again.publishes(
        1, {"a": has(SERVER), "c": has(WORKER, leaving=True)}, by="a", reason="c drains", why=ChangeReason.DRAIN
    )
    again.publishes(2, {"a": has(SERVER), "b": has(WORKER, since=2)}, by="a", reason="b joins")
    again.timeline.spawned(1, 2.1)
    newcomer = again.timeline.end()
    assert newcomer is not None
    assert newcomer.start


def test_two_proposals_after_each_other_have_each_its_own_moments() -> None:
    proposing = ProposalTracker()
    bench = spare().agent
    assert bench.facts.generation is not None
    facts = bench.facts
    generations = [msgspec.structs.replace(bench.facts.generation, g=g) for g in (2, 3)]
    first, second = (Transaction("form", (), ()) for _ in range(2))
    facts.succession.decision = FormGeneration(Reason.LOST, "", generations[0])
    proposing.observe(facts, Tick(), [SendTransaction(first)], arrived=1.0, now=1.1)
    facts.succession.decision = FormGeneration(Reason.LOST, "", generations[1])
    proposing.observe(facts, Tick(), [SendTransaction(second)], arrived=2.0, now=2.1)
    proposing.observe(facts, TransactionAnswered(first, True), [], arrived=2.2, now=2.2)
    found = [proposing.of(generation) for generation in generations]
    assert [(one.evidence_at, one.sent_at, one.published_at) for one in found if one is not None] == [
        (1.0, 1.1, 2.2),
        (2.0, 2.1, None),
    ]
    assert proposing.of(generations[0]) is None, "it is given once"


def test_of_a_proposal_that_was_made_twice_the_one_counts_that_was_carried_out() -> None:
    proposing, bench = ProposalTracker(), spare().agent
    assert bench.facts.generation is not None
    for number in (1, 2):
        transaction = Transaction("form", (), ())
        bench.facts.succession.decision = FormGeneration(Reason.LOST, "", bench.facts.generation)
        proposing.observe(bench.facts, Tick(), [SendTransaction(transaction)], arrived=number, now=number + 0.1)
        answer = TransactionAnswered(transaction, None if number == 1 else True)
        proposing.observe(bench.facts, answer, [], arrived=number + 0.2, now=number + 0.2)
    found = proposing.of(bench.facts.generation)
    assert found is not None
    assert (found.sent_at, found.published_at) == (2.1, 2.2)
    assert proposing.of(bench.facts.generation) is None


def test_a_start_of_which_one_process_says_nothing_is_told_after_some_patience() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.timeline.spawned(1, 0.1)
    noted.timeline.working(1, 1, 0.4, 0.4)
    assert noted.timeline.due_at == pytest.approx(0.4 + START_PATIENCE_S), "the server says nothing of itself"
    assert noted.told(99.0).end is PhaseEnd.SPAWNED


def test_a_process_that_ended_well_has_done_its_work() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.timeline.spawned(1, 0.1)
    noted.timeline.working(1, 0, 0.2, 0.2)
    noted.agent.now = 0.4
    noted.agent.exit(0)
    assert noted.told(0.4).end is PhaseEnd.STEPPED


def test_a_server_in_a_process_group_is_no_worker() -> None:
    noted = Noted("1", ONE_MACHINE)
    noted.timeline.spawned(1, 0.1)
    noted.timeline.grouped(1, 0, 0.2, 0.2)
    noted.timeline.grouped(1, 1, 0.5, 0.5)
    found = noted.timeline.end()
    assert found is not None
    assert found.end is PhaseEnd.GROUPED
    assert found.total_s == pytest.approx(1.5)


def test_a_generation_that_follows_one_of_which_nobody_was_left_is_a_recovery() -> None:
    noted = spare()
    noted.agent.now = 2.0
    noted.publishes(0, {"b": has(SERVER), "c": has(WORKER)}, by="b", g=2, reason="a, c left")
    noted.agent.go(2)
    noted.timeline.spawned(2, 2.1)
    noted.timeline.working(2, 0, 2.2, 2.2)
    found = noted.told(2.2)
    assert (found.start, found.before, found.g, found.began) == (False, 1, 2, 2.0)


def test_processes_that_say_nothing_are_followed_to_their_start() -> None:
    noted = spare()
    noted.publishes(1, {"b": has(SERVER, since=1), "c": has(WORKER)}, by="c")
    noted.timeline.spawned(1, 2.1)
    assert noted.timeline.due_at == pytest.approx(2.1 + START_PATIENCE_S)
    assert noted.told(2.1 + START_PATIENCE_S).end is PhaseEnd.SPAWNED


def test_who_keeps_its_seats_says_nothing_whatever_becomes_of_the_others() -> None:
    noted = trains()
    noted.agent.now = 2.0
    noted.publishes(1, {"a": has(SERVER, leaving=True), "b": has(WORKER)}, by="a")
    noted.publishes(2, {"b": has(WORKER), "c": has(SERVER, since=2)}, by="c")
    assert noted.timeline.end() is None
    assert noted.timeline.beginnings == []


def test_no_order_of_words_raises() -> None:
    timeline = PsRecoveryRecorder("b", 0.0)
    timeline.spawned(1, 1.0)
    timeline.failed(1, 1.0, 1.0)
    timeline.grouped(1, 0, 0.0, 1.0)
    timeline.restored(1, -1, 0.0, 1.0)
    timeline.working(1, 0, 0.0, 1.0)
    assert timeline.take(9.0) is None
    assert timeline.end() is None
    noted = trains()
    noted.timeline.working(1, 7, 0.0, 1.0)
    noted.agent.tell(WorkersGone(1), WorkersGone(1), WorkersGone(9))
