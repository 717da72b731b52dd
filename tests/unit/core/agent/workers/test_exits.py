"""How an agent's workers end, what it records of that, and how it leaves."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elastic.core.agent.actions import StopWorkers
from elastic.core.agent.events import DrainRequested, WorkerExited, WorkersHung
from elastic.core.agent.state import Phase
from elastic.core.failure_class import FailureClass
from elastic.core.model import PLANNED, ChangeReason, FinalStatus, MemberState, OutcomeKind, Predecessor, WorkerExit
from elastic.core.run_deadline import margin_s
from tests.support.agent_harness import done, joining, leaving, running, serving, spare, stopping
from tests.support.job_transcript import worker_exit

TTL_S = 5.0
OWN_S = TTL_S - margin_s(TTL_S)
"""How long a node may run after a good refresh, by its own lease."""
BOTH = Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST)

# --- workers end --------------------------------------------------------------------------------------------------


def test_a_failure_is_recorded_at_once_and_again_when_all_workers_are_gone() -> None:
    bench = running(slots=2)
    bench.exit(0)
    bench.tell(WorkerExited(1, worker_exit(3, 7), own=True))
    assert bench.stops == [(1, 2.0)]
    first = bench.outcomes[1]
    assert (first.ended, first.over, [worker.code for worker in first.exits]) == (OutcomeKind.FAILED, False, [7])
    bench.gone(step=12)
    last = bench.outcomes[1]
    assert (last.ended, last.over, last.step) == (OutcomeKind.FAILED, True, 12)


def test_the_first_exit_that_is_shown_is_not_the_echo_of_another() -> None:
    bench = running(slots=2)
    bench.tell(WorkerExited(1, worker_exit(2, 1, failure=FailureClass.SECONDARY), own=True))
    bench.tell(WorkerExited(1, worker_exit(3, 7), own=True))
    bench.gone()
    assert [worker.rank for worker in bench.outcomes[1].exits] == [3, 2]


def test_ok_is_recorded_only_when_every_worker_ended_well_and_every_process_is_gone() -> None:
    bench = running(slots=2)
    bench.exit(0)
    assert bench.outcomes == {}
    bench.exit(0)
    assert bench.outcomes == {}
    bench.gone(step=99)
    assert (bench.outcomes[1].ended, bench.outcomes[1].over, bench.outcomes[1].step) == (OutcomeKind.OK, True, 99)
    assert bench.phase is Phase.DONE


def test_workers_that_ended_well_while_they_were_being_stopped_are_ok() -> None:
    bench = stopping()
    bench.exits(0)
    assert bench.outcomes[1].ended is OutcomeKind.OK


def test_workers_that_vanish_without_an_exit_were_stopped_by_force() -> None:
    bench = running()
    bench.gone()
    assert (bench.outcomes[1].ended, bench.outcomes[1].forced) == (OutcomeKind.STOPPED, True)


def test_the_time_that_the_workers_ran_is_recorded() -> None:
    bench = running()
    bench.now = 3.25
    bench.exits(0)
    assert bench.outcomes[1].ran_s == 3.25


def test_an_outcome_whose_answer_was_lost_is_recorded_again() -> None:
    bench = running()
    bench.offline = True
    bench.exits(0)
    assert bench.outcomes == {}
    bench.offline = False
    bench.look()
    assert bench.outcomes[1].ended is OutcomeKind.OK


def test_a_planned_change_gives_the_workers_their_grace_and_a_loss_does_not() -> None:
    for why, stop_timeout_s in (
        (ChangeReason.DRAIN, 15.0),
        (ChangeReason.SCALE_UP, 15.0),
        (ChangeReason.SCALE_DOWN, 15.0),
        (ChangeReason.JOINED, 15.0),
        (ChangeReason.LEFT, 15.0),
        (ChangeReason.NODE_LOST, 2.0),
        (ChangeReason.FAILURE, 2.0),
        (ChangeReason.STOPPED, 2.0),
        (ChangeReason.REFORMED, 2.0),
    ):
        bench = running()
        bench.world(2, "a b", why=why, before=BOTH)
        assert bench.stops == [(1, stop_timeout_s)]


def test_only_a_planned_change_asks_the_workers_to_leave() -> None:
    for why in ChangeReason:
        bench = running()
        bench.world(2, "a b", why=why, before=BOTH)
        assert [stop.planned for stop in bench.every(StopWorkers)] == [why in PLANNED]


def test_a_loss_in_the_middle_of_a_planned_stop_ends_it_at_once() -> None:
    bench = running()
    bench.world(2, "a b", why=ChangeReason.SCALE_UP, before=BOTH)
    bench.world(3, "a b", why=ChangeReason.NODE_LOST, before=BOTH)
    assert bench.stops == [(1, 15.0), (1, 2.0)]
    assert [stop.planned for stop in bench.every(StopWorkers)] == [True, False]


def test_a_worker_that_fails_in_a_planned_stop_ends_it_at_once_and_is_recorded_at_once() -> None:
    bench = running(slots=2)
    bench.world(2, "a b", why=ChangeReason.SCALE_UP, before=BOTH)
    bench.exit(7)
    assert [(stop.stop_timeout_s, stop.planned) for stop in bench.every(StopWorkers)] == [(15.0, True), (2.0, False)]
    assert (bench.outcomes[1].ended, bench.outcomes[1].over) == (OutcomeKind.FAILED, False)
    bench.gone()
    assert (bench.outcomes[1].ended, bench.outcomes[1].over) == (OutcomeKind.FAILED, True)


def test_a_worker_that_ends_well_in_a_planned_stop_does_not_hurry_the_others() -> None:
    bench = running(slots=2)
    bench.world(2, "a b", why=ChangeReason.SCALE_UP, before=BOTH)
    bench.exit(0)
    assert bench.stops == [(1, 15.0)]


def test_a_worker_that_hangs_is_a_failure_of_its_own_and_the_one_behind_comes_first() -> None:
    bench = running(slots=2)
    words = "no progress for 1800 s (--hang-timeout)"
    behind, waiting = (WorkerExit(rank=rank, code=-15, words=words) for rank in (1, 0))
    bench.tell(WorkersHung(1, (behind, waiting)))
    assert bench.stops == [(1, 2.0)]
    assert bench.lines[-1] == f"rank 1 hangs: {words}; stopping this node's workers"
    bench.tell(WorkerExited(1, waiting, own=False), WorkerExited(1, behind, own=False))
    bench.gone()
    assert bench.outcomes[1].ended is OutcomeKind.FAILED
    assert bench.outcomes[1].exits == (behind, waiting)


def test_a_stopped_workers_log_gets_words_that_fit_the_reason() -> None:
    for why, words in (
        (ChangeReason.DRAIN, "for a planned change: because of drain"),
        (ChangeReason.NODE_LOST, "because because of node lost"),
        (ChangeReason.FAILURE, "because because of failure"),
    ):
        bench = running()
        bench.world(2, "a b", why=why, before=BOTH)
        assert [stop.why for stop in bench.every(StopWorkers)] == [words]


def test_the_other_workers_of_a_node_where_one_fails_read_which_it_was() -> None:
    bench = running(slots=2)
    bench.exit(0, 3)
    assert [stop.why for stop in bench.every(StopWorkers)] == [
        "because rank=[1] failed on host host-b, see workerlog.1"
    ]


def test_a_worker_that_had_raised_before_it_was_stopped_is_recorded_beside_the_outcome() -> None:
    bench = running()
    bench.world(2, "a b", why=ChangeReason.FAILURE, before=BOTH)
    late = worker_exit(1, -15)
    bench.tell(WorkerExited(1, late, own=False, also=True))
    bench.gone()
    assert (bench.outcomes[1].ended, bench.outcomes[1].exits, bench.outcomes[1].also) == (
        OutcomeKind.STOPPED,
        (),
        (late,),
    )


@pytest.mark.parametrize("why", [ChangeReason.SCALE_UP, ChangeReason.DRAIN, ChangeReason.JOINED, ChangeReason.LEFT])
@pytest.mark.parametrize(("broken", "stop_timeout_s"), [(False, 15.0), (True, 2.0)])
def test_an_agent_that_slept_through_a_generation_gives_grace_if_nothing_was_broken(
    why: ChangeReason, broken: bool, stop_timeout_s: float
) -> None:
    bench = running()
    bench.world(3, "a b", why=why, before=replace(BOTH, broken=broken))
    assert bench.stops == [(1, stop_timeout_s)]


def test_an_agent_that_slept_through_a_whole_world_gives_no_grace() -> None:
    bench = running()
    bench.world(3, "a b", why=ChangeReason.SCALE_UP, before=replace(BOTH, g=2))
    assert bench.stops == [(1, 2.0)]


@pytest.mark.parametrize("why", [ChangeReason.JOINED, ChangeReason.LEFT, ChangeReason.DRAIN])
def test_who_comes_or_goes_while_others_save_hurries_nobody(why: ChangeReason) -> None:
    bench = running()
    bench.world(2, "a b", why=ChangeReason.SCALE_UP, before=BOTH)
    bench.world(3, "a b", why=why, before=BOTH)
    assert bench.stops == [(1, 15.0)]


def test_a_verdict_of_others_stops_the_workers_with_grace() -> None:
    bench = running()
    bench.verdict(FinalStatus.FAILED)
    assert bench.stops == [(1, 15.0)]
    bench.gone()
    assert bench.exit_code == 1


def test_a_node_that_is_done_stays_until_the_verdict_is_there() -> None:
    bench = done()
    bench.at(1e6)
    assert bench.phase is Phase.DONE
    assert bench.registered
    bench.verdict()
    assert bench.exit_code == 0


# --- drain --------------------------------------------------------------------------------------------------------


def test_a_running_member_says_that_it_drains_and_goes_on_until_the_next_generation() -> None:
    bench = running()
    bench.drain()
    assert bench.phase is Phase.RUNNING
    stored = bench.shelf.view.members["b"].value
    assert (stored.state, stored.drain_reason) == (MemberState.DRAINING, "SIGTERM")
    assert bench.stops == []


def test_a_member_that_drained_records_its_outcome_before_it_leaves() -> None:
    bench = running()
    bench.drain()
    bench.world(2, "a", why=ChangeReason.DRAIN, before=Predecessor(1, ("a", "b"), ChangeReason.DRAIN))
    assert bench.stops == [(1, 15.0)]
    bench.gone(step=7)
    assert (bench.phase, bench.exit_code) == (Phase.ENDED, 143)
    assert (bench.outcomes[1].ended, bench.outcomes[1].step) == (OutcomeKind.STOPPED, 7)
    assert not bench.registered
    assert bench.lines[-1] == "left; the job stays open"


def test_a_drain_that_nobody_notices_stops_the_workers_after_5_s() -> None:
    bench = running()
    bench.drain()
    bench.now = 4.9
    bench.refreshed()
    assert bench.stops == []
    bench.at(5.0)
    assert bench.stops == [(1, 15.0)]
    bench.gone()
    assert bench.exit_code == 143
    assert bench.outcomes[1].forced


def test_a_member_that_was_done_when_it_drains_keeps_its_ok() -> None:
    bench = done()
    bench.drain()
    assert bench.exit_code == 143
    assert bench.outcomes[1].ended is OutcomeKind.OK


@pytest.mark.parametrize(("signal", "code"), [(2, 130), (15, 143)])
def test_an_agent_that_was_ended_by_a_signal_exits_with_128_plus_its_number(signal: int, code: int) -> None:
    bench = spare()
    bench.tell(DrainRequested(128 + signal, "a signal"))
    assert bench.exit_code == code
    assert bench.shelf.view.verdict is None


def test_ctrl_c_works_while_the_store_does_not_answer() -> None:
    bench = joining()
    bench.drain()
    assert bench.exit_code == 143
    assert bench.lines == ["SIGTERM: leaving, the job stays open"]


def test_a_leaving_node_that_does_not_reach_the_store_ends_after_5_s() -> None:
    bench = leaving()
    bench.at(5.0)
    assert bench.exit_code == 143


def test_a_node_says_at_the_next_gate_that_it_never_began_its_newest_start() -> None:
    bench = serving()
    bench.exits(1, 0)
    assert bench.outcomes[1].since == 0
    bench.expire()
    bench.offline = True
    bench.roster(2, "a b", since=2)
    bench.offline = False
    bench.world(2, "a", why=ChangeReason.REFORMED, before=Predecessor(1, ("a", "b"), ChangeReason.REFORMED, (0, 2)))
    assert bench.outcomes[1].since == 2
    assert bench.outcomes[1].ended is OutcomeKind.STOPPED
