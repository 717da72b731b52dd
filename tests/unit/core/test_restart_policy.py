"""What the end of a generation costs the job: cause, charge, pause, and when the job has failed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elastic.core.failure_class import FAILURE_CLASSES, Cost, FailureClass
from elastic.core.model import (
    ANY_RANK,
    Budget,
    ChangeReason,
    JobSpec,
    Np,
    OtherFailure,
    Outcome,
    OutcomeKind,
    Predecessor,
    WorkerExit,
)
from elastic.core.ps.model import Role
from elastic.core.restart_policy import (
    BACKOFF_MAX_S,
    CRASH_LOOP_MAX,
    MACHINE_FAULTS_MAX,
    PROGRESS_RUN_S,
    RETRY,
    RULES,
    Judgement,
    judge,
)
from elastic.core.root_cause import OTHERS_MAX, root_cause_of
from elastic.core.view import StoredDocument
from tests.support.job_transcript import worker_exit

SPEC = JobSpec(np=Np(low=1, high=3, first=1), slots=2, restarts_max=3, fatal_exit_codes=(42, -6))


def failed(*exits: WorkerExit, host: str = "h", **others: Any) -> Outcome:
    """Workers failed."""
    return Outcome(ended=OutcomeKind.FAILED, over=True, host=host, exits=exits, **others)


def stopped(**others: Any) -> Outcome:
    """Workers were stopped."""
    return Outcome(ended=OutcomeKind.STOPPED, over=True, host="h", **others)


def judged(
    *outcomes: Outcome | None,
    budget: Budget | None = None,
    why: ChangeReason = ChangeReason.FAILURE,
    healthy: bool = False,
) -> Judgement:
    """Judge generation 4 of nodes a, b, …, which recorded these outcomes in this order (None: it was lost).

    What it says of hosts is left out here: that is in test_quarantine.py.
    """
    names = "abcdefgh"[: len(outcomes)]
    stored = {
        name: StoredDocument(outcome, 10 + number, 10 + number)
        for number, (name, outcome) in enumerate(zip(names, outcomes, strict=True))
        if outcome is not None
    }
    lost = frozenset(name for name in names if name not in stored)
    found = judge(Predecessor(4, tuple(names), why), stored, lost, budget or Budget(), SPEC, healthy=healthy)
    kept = msgspec.structs.replace(found.budget, hosts=())
    return replace(found, budget=kept, suspects=(), budget_if_excluded=Budget())


# --- what is charged ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("failure", FailureClass)
def test_a_failure_alone_costs_what_the_table_of_the_classes_says_and_its_rules_exist(failure: FailureClass) -> None:
    row = FAILURE_CLASSES[failure]
    found = judged(failed(worker_exit(failure=failure, why="why")))
    assert row.cost is (Cost.JOB if found.fatal else Cost.RESTART if found.budget.charged else Cost.FREE)
    assert set(row.rules) <= {rule.__name__ for rule in RULES}


def test_a_failure_is_charged_and_told() -> None:
    result = judged(stopped(), failed(worker_exit(2)))
    assert result.budget == Budget(charged=1, consecutive_failures=1)
    assert (result.note, result.pause_s, result.fatal) == ("restart 1 of 3", 0.0, "")


def test_failures_of_several_nodes_in_one_generation_are_one_restart() -> None:
    assert judged(failed(worker_exit(0)), failed(worker_exit(2)), failed(worker_exit(4))).budget.charged == 1


def test_the_budget_is_exhausted_by_one_failure_more_than_max_restarts() -> None:
    assert judged(failed(worker_exit()), budget=Budget(charged=2)).note == "restart 3 of 3"
    result = judged(failed(worker_exit()), budget=Budget(charged=3))
    assert result.fatal == "no restart is left (--max-restarts 3)"
    assert result.cause is not None


def test_a_worker_that_sees_no_hope_in_a_restart_fails_the_job_at_once_also_beside_a_loss() -> None:
    unrecoverable = failed(worker_exit(failure=FailureClass.UNRECOVERABLE, why="there is no step 11"))
    for result in (
        judged(stopped(), unrecoverable),
        judged(unrecoverable, None),
        judged(unrecoverable, why=ChangeReason.SCALE_UP),
    ):
        assert result.fatal == "permanent error: there is no step 11"
        assert result.cause is not None


def test_a_script_that_cannot_start_fails_the_job_at_once_with_the_first_error() -> None:
    here = failed(worker_exit(1, failure=FailureClass.STARTUP, why="ImportError: no a"))
    there = failed(worker_exit(0, failure=FailureClass.STARTUP, why="ImportError: no b"), host="h2")
    result = judged(here, there, stopped())
    assert result.fatal == f"the script cannot start: ImportError: no a ({RETRY})"
    assert result.budget == Budget()
    assert judged(here, failed(worker_exit(2, failure=FailureClass.SECONDARY))).fatal == result.fatal, (
        "it only lost the first"
    )


def test_a_script_that_started_somewhere_or_long_ago_is_restarted() -> None:
    cannot = worker_exit(failure=FailureClass.STARTUP, why="ImportError: no a")
    for results in (
        judged(failed(cannot), failed(worker_exit(1))),
        judged(failed(cannot, worker_exit(1))),
        judged(failed(cannot, ran_s=PROGRESS_RUN_S)),
    ):
        assert (results.fatal, results.note) == ("", "restart 1 of 3")


def test_progress_does_not_make_a_failure_free() -> None:
    result = judged(failed(worker_exit(), step=90), budget=Budget(charged=3, step=10))
    assert result.fatal == "no restart is left (--max-restarts 3)"


# --- what is free -------------------------------------------------------------------------------------------------


def test_a_loss_alone_costs_nothing_and_has_no_cause() -> None:
    result = judged(stopped(), None, budget=Budget(charged=3), why=ChangeReason.NODE_LOST)
    assert (result.budget.charged, result.cause, result.fatal) == (3, None, "")


def test_a_failure_that_was_the_echo_of_a_loss_is_free_and_not_the_cause() -> None:
    result = judged(
        failed(worker_exit(failure=FailureClass.SECONDARY)), None, budget=Budget(charged=3), why=ChangeReason.NODE_LOST
    )
    assert (result.budget.charged, result.cause, result.fatal) == (3, None, "")
    assert result.note == "does not count against --max-restarts: b was lost"


def test_a_failure_beside_a_loss_is_free_but_shown() -> None:
    result = judged(failed(worker_exit(1, 7)), None, budget=Budget(charged=3), why=ChangeReason.FAILURE)
    assert (result.budget.charged, result.fatal) == (3, "")
    assert result.cause is not None
    assert result.cause.first.code == 7


@pytest.mark.parametrize("why", [ChangeReason.FAILURE, ChangeReason.STOPPED])
def test_a_failure_that_was_the_echo_of_a_forced_stop_is_free(why: ChangeReason) -> None:
    result = judged(
        failed(worker_exit(failure=FailureClass.SECONDARY)), stopped(forced=True), budget=Budget(charged=3), why=why
    )
    assert (result.budget.charged, result.fatal) == (3, "")
    assert result.note == "does not count against --max-restarts: b had to stop its workers"


def test_a_failure_of_its_own_beside_a_forced_stop_is_charged() -> None:
    assert judged(failed(worker_exit()), stopped(forced=True)).budget.charged == 1


@pytest.mark.parametrize("why", [why for why in ChangeReason if why is not ChangeReason.FAILURE])
def test_a_broken_peer_while_workers_were_being_stopped_for_another_reason_is_free(why: ChangeReason) -> None:
    result = judged(failed(worker_exit(failure=FailureClass.SECONDARY)), stopped(), budget=Budget(charged=3), why=why)
    assert (result.budget.charged, result.cause, result.fatal) == (3, None, "")
    assert result.note == "does not count against --max-restarts: the workers were being stopped"


@pytest.mark.parametrize(
    "why", [ChangeReason.DRAIN, ChangeReason.SCALE_UP, ChangeReason.SCALE_DOWN, ChangeReason.STOPPED]
)
def test_a_planned_change_without_a_failure_costs_nothing(why: ChangeReason) -> None:
    result = judged(stopped(step=5), stopped(step=6), budget=Budget(charged=3, consecutive_failures=2, step=5), why=why)
    assert result == Judgement(Budget(charged=3, consecutive_failures=0, step=6))


def test_a_world_in_which_everybody_blames_a_peer_is_charged_when_nobody_was_lost() -> None:
    result = judged(
        failed(worker_exit(0, failure=FailureClass.SECONDARY)), failed(worker_exit(2, failure=FailureClass.SECONDARY))
    )
    assert result.budget.charged == 1
    assert result.cause is not None
    assert result.cause.ranks == (0,)


def test_everybody_ok_but_not_completed_costs_nothing() -> None:
    ok = Outcome(ended=OutcomeKind.OK, over=True, host="h")
    assert judged(ok, stopped(), why=ChangeReason.STOPPED) == Judgement(Budget())


# --- exit codes with a meaning ------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [42, -6])
def test_a_fatal_exit_code_fails_the_job_although_restarts_are_left(code: int) -> None:
    result = judged(failed(worker_exit(3, code)))
    assert result.fatal == f"exit code {code} of rank 3 is one of --fatal-exit-codes"
    assert result.cause is not None


def test_a_fatal_exit_code_fails_the_job_although_a_member_was_lost() -> None:
    assert judged(failed(worker_exit(1, 42)), None, why=ChangeReason.NODE_LOST).fatal


def test_a_fatal_exit_code_of_a_worker_that_only_lost_its_peer_is_not_fatal() -> None:
    assert not judged(
        failed(worker_exit(1, 42, failure=FailureClass.SECONDARY)), None, why=ChangeReason.NODE_LOST
    ).fatal


def test_101_asks_for_a_restart_that_is_free_after_progress() -> None:
    result = judged(
        failed(worker_exit(0, 101, failure=FailureClass.RESTART_REQUESTED), step=11), budget=Budget(charged=3, step=10)
    )
    assert result.budget == Budget(charged=3, step=11)
    assert result.note == "does not count against --max-restarts: the script asked for it after progress"
    assert (result.fatal, result.pause_s) == ("", 0.0)


def test_101_without_progress_is_charged() -> None:
    result = judged(
        failed(worker_exit(0, 101, failure=FailureClass.RESTART_REQUESTED), step=10), budget=Budget(charged=2, step=10)
    )
    assert result.budget.charged == 3


def test_101_beside_another_failure_is_charged() -> None:
    result = judged(
        failed(worker_exit(0, 101, failure=FailureClass.RESTART_REQUESTED), step=11),
        failed(worker_exit(2, 1)),
        budget=Budget(step=10),
    )
    assert result.budget.charged == 1


# --- failures of the machine --------------------------------------------------------------------------------------


def test_an_address_in_use_is_free_at_most_3_times_in_a_row_without_progress() -> None:
    budget, notes = Budget(), []
    for _ in range(MACHINE_FAULTS_MAX + 1):
        result = judged(failed(worker_exit(failure=FailureClass.MACHINE, why="address in use")), budget=budget)
        budget = result.budget
        notes.append(result.note)
    assert notes == [
        *(f"does not count against --max-restarts: address in use, {count} of 3" for count in (1, 2, 3)),
        "restart 1 of 3",
    ]


def test_a_program_that_no_host_can_start_fails_the_job_at_once() -> None:
    """On one host alone it is that host's fault."""
    cannot = failed(
        worker_exit(failure=FailureClass.CANNOT_START, why="cannot start ./train: No such file or directory")
    )
    fatal = "permanent error: cannot start ./train: No such file or directory"
    assert (judged(cannot).fatal, judged(cannot, cannot).fatal) == (fatal, fatal)
    assert judged(cannot, stopped()).note == (
        "does not count against --max-restarts: cannot start ./train: No such file or directory, 1 of 3"
    )
    assert (judged(cannot, None).fatal, judged(cannot, None).note) == (
        "",
        "does not count against --max-restarts: b was lost",
    )
    could_not = failed(worker_exit(failure=FailureClass.MACHINE, why="could not start ./train: Text file busy"))
    assert (
        judged(could_not).note
        == "does not count against --max-restarts: could not start ./train: Text file busy, 1 of 3"
    )


def test_progress_lets_the_machine_fail_again_for_free() -> None:
    result = judged(
        failed(worker_exit(failure=FailureClass.MACHINE, why="address in use"), step=20),
        budget=Budget(machine_faults=3, step=10),
    )
    assert result.budget == Budget(machine_faults=1, step=20)


def test_a_failure_of_the_machine_beside_one_of_the_script_is_charged() -> None:
    result = judged(failed(worker_exit(failure=FailureClass.MACHINE, why="address in use")), failed(worker_exit(2)))
    assert result.budget.charged == 1


# --- progress, pause and crash loop -------------------------------------------------------------------------------


def test_the_pause_doubles_with_each_failure_without_progress_up_to_a_minute() -> None:
    spec_free = Budget(charged=-100)
    pauses = [
        judged(failed(worker_exit()), budget=Budget(spec_free.charged, count)).pause_s
        for count in range(CRASH_LOOP_MAX - 1)
    ]
    assert pauses == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, BACKOFF_MAX_S, BACKOFF_MAX_S]


def test_ten_failures_in_a_row_without_progress_end_the_job_whatever_the_budget() -> None:
    result = judged(failed(worker_exit()), budget=Budget(charged=-100, consecutive_failures=CRASH_LOOP_MAX - 1))
    assert result.fatal == "crash loop: 10 failures in a row without progress"
    assert result.cause is not None


def test_progress_ends_a_crash_loop() -> None:
    result = judged(failed(worker_exit(), step=11), budget=Budget(charged=-100, consecutive_failures=9, step=10))
    assert (result.budget.consecutive_failures, result.pause_s, result.fatal) == (0, 0.0, "")


def test_a_step_that_was_reached_before_is_no_progress() -> None:
    result = judged(failed(worker_exit(), step=10, ran_s=1e6), budget=Budget(step=10))
    assert result.budget == Budget(charged=1, consecutive_failures=1, step=10)


def test_a_restart_from_an_older_checkpoint_does_not_lower_the_highest_step() -> None:
    assert judged(failed(worker_exit(), step=3), budget=Budget(step=10)).budget.step == 10


def test_a_script_that_reports_no_steps_makes_progress_by_running_for_a_minute() -> None:
    assert judged(failed(worker_exit(), ran_s=PROGRESS_RUN_S)).budget.consecutive_failures == 0
    assert judged(failed(worker_exit(), ran_s=PROGRESS_RUN_S - 1)).budget.consecutive_failures == 1


def test_progress_of_any_node_counts() -> None:
    assert judged(failed(worker_exit(), step=1), stopped(step=12), budget=Budget(step=10)).budget.step == 12


def test_after_a_healthy_hour_the_budget_is_full_again() -> None:
    assert judged(failed(worker_exit()), budget=Budget(charged=3), healthy=True).note == "restart 1 of 3"
    assert judged(stopped(), budget=Budget(charged=3), why=ChangeReason.DRAIN, healthy=True).budget.charged == 0


# --- the cause ----------------------------------------------------------------------------------------------------


def test_the_cause_is_the_failure_that_was_recorded_first() -> None:
    cause = judged(stopped(), failed(worker_exit(2, 5), host="h1"), failed(worker_exit(4, 6), host="h2")).cause
    assert cause is not None
    assert (cause.g, cause.node, cause.host, cause.first.code) == (4, "b", "h1", 5)


def test_an_echo_that_was_recorded_first_is_not_the_cause() -> None:
    cause = judged(failed(worker_exit(0, failure=FailureClass.SECONDARY)), failed(worker_exit(2, 9), host="h2")).cause
    assert cause is not None
    assert (cause.node, cause.first.code) == ("b", 9)


def test_the_cause_names_every_rank_that_failed_by_itself_and_the_size_of_its_world() -> None:
    cause = judged(
        failed(worker_exit(3), worker_exit(2)),
        failed(worker_exit(5), worker_exit(4, failure=FailureClass.SECONDARY)),
        stopped(),
    ).cause
    assert cause is not None
    assert cause.ranks == (2, 3, 5)
    assert cause.world_size == 6


def test_the_cause_says_where_the_logs_of_failures_on_other_nodes_are() -> None:
    cause = judged(
        failed(worker_exit(1), host="h1"), failed(worker_exit(5, log="/log/workerlog.5"), host="h2"), stopped()
    ).cause
    assert cause is not None
    assert cause.exits == (worker_exit(1),)
    assert cause.others == (OtherFailure(5, "h2", "exit code 1", "/log/workerlog.5"),)


def test_a_worker_that_had_raised_before_it_was_stopped_is_named_and_costs_nothing() -> None:
    late = worker_exit(3, -15)
    result = judged(failed(worker_exit(0)), stopped(also=(late,)))
    assert result.cause is not None
    assert (result.cause.ranks, result.cause.first.rank) == ((0, 3), 0)
    assert result.budget.charged == 1


def test_a_worker_that_had_raised_before_it_was_stopped_goes_before_the_echo_that_stopped_it() -> None:
    cause = judged(failed(worker_exit(0, failure=FailureClass.SECONDARY)), stopped(also=(worker_exit(3, -15),))).cause
    assert cause is not None
    assert (cause.node, cause.first.rank, cause.ranks) == ("b", 3, (3,))


def test_what_a_worker_raised_after_a_planned_change_was_announced_is_not_its_failure() -> None:
    """A script may answer our SIGTERM with an exception."""
    result = judged(failed(worker_exit(0)), stopped(also=(worker_exit(3, -15),)), why=ChangeReason.DRAIN)
    assert result.cause is not None
    assert result.cause.ranks == (0,)
    assert judged(stopped(also=(worker_exit(3, -15),))).cause is None


def test_servers_that_failed_are_not_among_the_ranks_of_the_trainers() -> None:
    cause = judged(failed(worker_exit(1, role=Role.SERVER)), failed(worker_exit(2), host="h2")).cause
    assert cause is not None
    assert (cause.first.role, cause.ranks) == (Role.SERVER, (2,))
    assert [other.rank for other in cause.others] == [2]


def test_a_worker_of_which_only_the_node_is_known_is_no_rank() -> None:
    cause = judged(failed(worker_exit(ANY_RANK)), failed(worker_exit(2), host="h2")).cause
    assert cause is not None
    assert cause.ranks == (2,)


def test_thousands_of_failures_make_a_short_cause() -> None:
    before = Predecessor(1, tuple(f"n{number}" for number in range(1000)), ChangeReason.FAILURE)
    outcomes = {node: StoredDocument(failed(worker_exit(rank)), 1, 1) for rank, node in enumerate(before.nodes)}
    cause = root_cause_of(before, outcomes, SPEC)
    assert cause is not None
    assert (len(cause.others), len(cause.ranks)) == (OTHERS_MAX, 1000)


def test_a_failure_without_any_exit_costs_nothing() -> None:
    assert judged(failed()) == Judgement(Budget())
