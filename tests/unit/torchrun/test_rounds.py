"""What torch's agent does, as events for the core; and what the core wants, as nodes that wait."""

from __future__ import annotations

from elastic.core.agent.actions import StartWorkers, StopWorkers
from elastic.core.agent.events import WorkerExited, WorkersGone
from elastic.core.failure_class import FailureClass
from elastic.core.model import ANY_RANK, Budget, ChangeReason, Generation, GenerationMember, Go, WorkerExit
from launcher.torchrun.rounds import RoundTracker


def world(g: int, *nodes: str) -> Generation:
    places = tuple(GenerationMember(node, "h", (7000,), (8000,)) for node in nodes)
    return Generation(g=g, run=1, leader="", why=ChangeReason.FIRST, reason="", members=places, slots=1)


def started(g: int, *nodes: str, m_id: int = 0) -> StartWorkers:
    return StartWorkers(world(g, *nodes), Go(g=g, master="h:7000", budget=Budget()), m_id, "i", 3)


def stopped(g: int) -> StopWorkers:
    return StopWorkers(g, 2.0, "because a was lost")


def taken(g: int = 1, *nodes: str, m_id: int = 0) -> RoundTracker:
    rounds = RoundTracker()
    rounds.start(started(g, *(nodes or ("a", "b")), m_id=m_id))
    assert rounds.take() is not None
    return rounds


def test_nothing_is_taken_before_it_has_started() -> None:
    rounds = RoundTracker()
    assert rounds.take() is None
    assert rounds.taken is None
    assert rounds.waiting() == 0


def test_a_round_is_taken_once() -> None:
    rounds = RoundTracker()
    rounds.start(started(1, "a"))
    assert rounds.take() == rounds.taken == started(1, "a")
    assert rounds.take() is None


def test_nobody_waits_while_a_world_runs() -> None:
    assert taken().waiting() == 0


def test_one_waits_when_a_member_was_lost_although_no_node_is_new() -> None:
    rounds = taken()
    assert rounds.stop(stopped(1), world(2, "b")) == []
    assert rounds.stops
    assert rounds.waiting() == 1


def test_one_waits_when_nobody_knows_what_comes_next() -> None:
    rounds = taken()
    rounds.stop(stopped(1), None)
    assert rounds.waiting() == 1


def test_as_many_wait_as_are_new() -> None:
    rounds = taken()
    rounds.stop(stopped(1), world(2, "a", "b", "c", "d"))
    assert rounds.waiting() == 2


def test_a_stop_of_another_round_is_none_of_this_one() -> None:
    rounds = taken(2)
    assert rounds.stop(stopped(1), world(3, "a")) == []
    assert not rounds.stops


def test_a_round_that_is_stopped_before_it_is_taken_is_over_at_once() -> None:
    rounds = RoundTracker()
    rounds.start(started(1, "a"))
    assert rounds.stop(stopped(1), None) == [WorkersGone(1)]
    assert rounds.take() is None


def test_an_agent_that_comes_back_because_it_was_asked_to_has_stopped_its_workers() -> None:
    rounds = taken()
    rounds.stop(stopped(1), world(2, "b"))
    assert rounds.rejoin() == [WorkersGone(1)]
    assert rounds.waiting() == 0


def test_an_agent_that_comes_back_by_itself_has_a_worker_that_failed_or_lost_a_peer() -> None:
    exited, gone = taken(1, "a", "b", m_id=1).rejoin()
    assert isinstance(exited, WorkerExited)
    assert (exited.exit.rank, exited.exit.code, exited.exit.secondary, exited.own) == (ANY_RANK, 1, True, True)
    assert gone == WorkersGone(1)


def test_the_first_call_says_nothing_of_workers() -> None:
    assert RoundTracker().rejoin() == []


def test_an_agent_that_ends_well_has_workers_that_ended_well() -> None:
    exited, gone = taken().finish()
    assert isinstance(exited, WorkerExited)
    assert exited.exit.code == 0
    assert gone == WorkersGone(1)


def test_workers_that_failed_for_good_are_told_one_by_one() -> None:
    exits = [
        WorkerExit(rank=rank, code=1, words="exit 1", failure=FailureClass.UNRECOVERABLE, why="no restart left")
        for rank in (2, 3)
    ]
    assert taken().fail(exits) == [
        WorkerExited(1, exits[0], own=True),
        WorkerExited(1, exits[1], own=True),
        WorkersGone(1),
    ]


def test_who_leaves_has_no_workers_any_more_of_a_round_that_was_taken_or_offered() -> None:
    rounds = RoundTracker()
    assert rounds.leave() == []
    rounds.start(started(1, "a"))
    assert rounds.leave() == [WorkersGone(1)]
    assert taken(4).leave() == [WorkersGone(4)]


def test_a_round_begins_without_the_stop_of_the_one_before() -> None:
    rounds = taken()
    rounds.stop(stopped(1), world(2, "a"))
    rounds.rejoin()
    rounds.start(started(2, "a"))
    rounds.take()
    assert not rounds.stops
