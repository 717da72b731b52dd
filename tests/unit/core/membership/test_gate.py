"""A generation waits at the gate: who must have stopped, who may have changed, and when the go is given."""

from __future__ import annotations

import pytest

from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import Reason
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Budget, ChangeReason, FinalStatus, Predecessor
from elastic.core.run_deadline import CLOCK_ERROR
from tests.support.job_transcript import KILL_S, Job, nodes_of

UNPROVEN_S = (120.0 + 5.0) * (1 + CLOCK_ERROR) + KILL_S
"""How long members that vanished without a word may still run, at the default limits."""


def lost_one() -> Job:
    """Generation 2 of `a c` waits at the gate, because `b` of generation 1 was lost at 10 s."""
    job = Job("1:3")
    job.run("a b c")
    job.vanish("b")
    job.form(10, Reason.LOST)
    return job


def lost_all() -> Job:
    """Generation 2 of `d` waits at the gate; `a b c` of generation 1 vanished without a word at 10 s."""
    job = Job("1:3", join_window_s=0.0)
    job.run("a b c")
    job.vanish("a b c")
    job.join("d")
    job.form(10, Reason.REFORMED)
    return job


# --- live members of the old world --------------------------------------------------------------------------------


def test_the_gate_waits_until_every_live_member_of_the_old_world_has_recorded_its_outcome() -> None:
    job = lost_one()
    wait = job.wait(11, Reason.STOPPING)
    assert wait.reason == "waiting for a, c to stop their old workers"
    assert wait.until is None
    job.stopped("c")
    job.wait(1_000_000, Reason.STOPPING)
    job.stopped("a")
    job.open(1_000_001)


def test_the_first_word_of_a_failure_does_not_open_the_gate() -> None:
    job = Job("2")
    job.run("a b")
    job.failed("b", over=False)
    job.form(10, Reason.FAILED)
    job.stopped("a")
    assert job.wait(11, Reason.STOPPING).reason == "waiting for b to stop its old workers"
    job.failed("b", over=True)
    job.open(12)


def test_the_gate_waits_for_a_live_member_of_the_old_world_that_is_not_in_the_new_one() -> None:
    job = Job("2")
    job.run("a b")
    job.drain("b")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.stopped("a")
    assert job.wait(11, Reason.STOPPING).reason == "waiting for b to stop its old workers"
    job.stopped("b")
    job.open(12)


def test_the_gate_waits_for_a_member_of_the_old_world_that_is_only_heard() -> None:
    job = Job("1:3", lease_ttl_s=5.0)
    job.run("a b c")
    job.drain("c")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.stopped("a b")
    job.hear("c")
    job.vanish("c")
    assert job.wait(11, Reason.STOPPING).until == 21
    job.stopped("c")
    job.open(12)


def test_the_gate_waits_for_a_lease_of_a_member_that_is_proven_gone_until_it_has_ended() -> None:
    job = Job("1:3")
    job.run("a b c")
    job.prove_gone("b")
    job.form(10, Reason.LOST)
    job.stopped("a c")
    job.wait(11, Reason.STOPPING)
    job.vanish("b")
    job.open(12)


def test_a_survivor_that_has_stopped_speaks_for_those_that_vanished() -> None:
    job = lost_one()
    job.stopped("a c")
    opened = job.open(10.2)
    assert opened.absent == ("b",)


def test_a_vanished_member_that_registers_again_without_having_stopped_closes_the_gate() -> None:
    job = lost_one()
    job.stopped("a c")
    job.join("b")
    assert job.wait(10.1, Reason.STOPPING).reason == "waiting for b to stop its old workers"


def test_newcomers_at_an_open_gate_do_not_hold_up_the_go() -> None:
    job = lost_one()
    job.stopped("a c")
    job.join("d")
    job.open(10.2)


# --- nobody of the old world is left ------------------------------------------------------------------------------


def test_a_world_without_a_survivor_waits_until_the_old_one_cannot_run_any_more() -> None:
    job = lost_all()
    wait = job.wait(11, Reason.UNPROVEN)
    assert wait.until == pytest.approx(10 + UNPROVEN_S)
    assert wait.reason == (
        "a, b, c disappeared without deregistering and may still run for 2 min (--etcd-outage-timeout 120)"
    )
    job.wait(10 + UNPROVEN_S - 0.1, Reason.UNPROVEN)
    assert job.open(10 + UNPROVEN_S + 0.1).absent == ("a", "b", "c")


def test_the_wait_counts_from_the_last_of_them_that_vanished() -> None:
    job = Job("1:3", join_window_s=0.0)
    job.run("a b c")
    job.vanish("a")
    job.form(10, Reason.LOST)
    job.vanish("b c")
    job.join("d")
    job.form(50, Reason.REFORMED)
    assert job.wait(51, Reason.UNPROVEN).until == pytest.approx(50 + UNPROVEN_S)


def test_the_wait_follows_the_limits_of_the_spec() -> None:
    job = Job("1:2", join_window_s=0.0, etcd_outage_timeout_s=20.0, lease_ttl_s=2.0)
    job.run("a b")
    job.vanish("a b")
    job.join("d")
    job.form(10, Reason.REFORMED)
    assert job.wait(11, Reason.UNPROVEN).until == pytest.approx(10 + 22 * (1 + CLOCK_ERROR) + KILL_S)


def test_a_proposer_that_takes_over_counts_the_wait_from_what_it_saw_itself() -> None:
    job = lost_all()
    job.wait(100, Reason.UNPROVEN)
    job.memory = DecisionMemory()
    assert job.wait(110, Reason.UNPROVEN).until == pytest.approx(110 + UNPROVEN_S)


def test_members_that_are_proven_dead_on_this_machine_are_not_waited_for() -> None:
    job = lost_all()
    job.wait(11, Reason.UNPROVEN)
    job.prove_dead("a c")
    assert job.wait(12, Reason.UNPROVEN).reason.startswith("b disappeared without deregistering")
    job.prove_dead("b")
    job.open(13)


def test_members_whose_death_only_a_link_showed_are_waited_for() -> None:
    job = Job("1:2", join_window_s=0.0)
    job.run("a b")
    job.join("d")
    job.prove_gone("a")
    job.prove_gone("b")
    job.form(10, Reason.REFORMED)
    job.vanish("a b")
    job.wait(11, Reason.UNPROVEN)


def test_members_that_recorded_their_outcome_and_left_are_not_waited_for() -> None:
    job = Job("1:2", join_window_s=0.0)
    job.run("a b")
    job.stopped("a b")
    job.vanish("a b")
    job.join("d")
    job.form(10, Reason.REFORMED)
    job.open(10)


def test_an_outcome_recorded_late_ends_the_wait() -> None:
    job = lost_all()
    job.stopped("a b")
    assert job.wait(12, Reason.UNPROVEN).reason.startswith("c disappeared")
    job.stopped("c")
    job.open(13)


def test_members_that_come_back_while_they_are_waited_for_must_stop_first() -> None:
    job = lost_all()
    job.wait(11, Reason.UNPROVEN)
    job.join("a")
    job.wait(11.1, Reason.STOPPING)
    job.stopped("a")
    assert nodes_of(job.form(12, Reason.GATE_JOINED)) == ["d", "a"]
    job.open(12.1)  # `a` is a survivor now, and has stopped.


# --- who is in it changes before the start ------------------------------------------------------------------------


def test_a_member_that_is_lost_before_the_start_is_replaced_at_once() -> None:
    job = lost_one()
    job.vanish("c")
    form = job.form(11, Reason.GATE_LOST)
    assert nodes_of(form) == ["a"]
    assert form.reason == "c was lost (its lease ended) before the start"
    assert form.generation.before == Predecessor(1, ("a", "b", "c"), ChangeReason.NODE_LOST, (), True)


def test_a_leaving_member_that_is_lost_while_the_others_save_ends_the_planned_stop() -> None:
    job = Job("1:3")
    job.run("a b c")
    job.drain("c")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.stopped("a")
    job.vanish("c")
    form = job.form(11, Reason.GATE_LOST)
    assert nodes_of(form) == ["a", "b"]
    assert form.reason == "c was lost (its lease ended) while workers were being stopped"
    assert (form.generation.why, form.generation.before) == (
        ChangeReason.NODE_LOST,
        Predecessor(1, ("a", "b", "c"), ChangeReason.DRAIN, (), True),
    )
    job.wait(12, Reason.STOPPING)


def test_who_comes_while_the_others_save_leaves_the_stop_a_planned_one() -> None:
    job = Job("1:4")
    job.run("a b")
    job.join("c")
    job.decide(10)
    assert job.form(100, Reason.SCALED_UP).generation.planned
    job.stopped("b")
    job.join("d")
    job.decide(101)
    generation = job.form(102, Reason.GATE_JOINED).generation
    assert (generation.why, generation.planned) == (ChangeReason.JOINED, True)
    job.write(job.decide(102))
    job.vanish("a")
    generation = job.form(103, Reason.GATE_LOST).generation
    assert (generation.why, generation.planned) == (ChangeReason.NODE_LOST, False)


def test_who_leaves_or_dies_without_old_workers_while_the_others_save_leaves_the_stop_a_planned_one() -> None:
    job = Job("1:4")
    job.run("a b c")
    job.join("d")
    job.decide(10)
    assert job.form(100, Reason.SCALED_UP).generation.planned
    job.stopped("b")
    job.vanish("b")
    left = job.form(101, Reason.GATE_LEFT)
    assert (left.generation.why, left.generation.planned, left.reason) == (
        ChangeReason.LEFT,
        True,
        "b left before the start",
    )
    assert nodes_of(left) == ["a", "c", "d"]
    job.vanish("d")
    died = job.form(102, Reason.GATE_LEFT)
    assert (died.generation.planned, died.reason) == (True, "d was lost (its lease ended) before the start")


def test_who_comes_after_a_loss_makes_no_plan_of_it() -> None:
    job = Job("1:4")
    job.run("a b c")
    job.vanish("c")
    assert not job.form(10, Reason.LOST).generation.planned
    job.join("d")
    job.decide(11)
    assert not job.form(12, Reason.GATE_JOINED).generation.planned


def test_a_worker_that_fails_while_the_others_save_ends_the_planned_stop() -> None:
    job = Job("1:3")
    job.run("a b c")
    job.drain("c")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.failed("b", over=False)
    form = job.form(11, Reason.GATE_FAILED)
    assert nodes_of(form) == ["a", "b"]
    assert (form.generation.why, form.generation.before) == (
        ChangeReason.FAILURE,
        Predecessor(1, ("a", "b", "c"), ChangeReason.DRAIN, (), True),
    )
    job.wait(12, Reason.STOPPING)


def test_a_failure_in_a_planned_stop_changes_nothing_when_nobody_is_left_to_be_hurried() -> None:
    job = Job("1:3")
    job.run("a b c")
    job.drain("c")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.stopped("a c")
    job.failed("b", over=True)
    job.open(11)


def test_a_newcomer_takes_the_place_of_a_member_that_is_lost_before_the_start() -> None:
    job = lost_one()
    job.vanish("c")
    job.join("d")
    assert nodes_of(job.form(11, Reason.GATE_LOST)) == ["a", "d"]


def test_a_member_that_drains_before_the_start_is_left_out_at_once() -> None:
    job = lost_one()
    job.drain("a")
    form = job.form(11, Reason.GATE_DRAINED)
    assert nodes_of(form) == ["c"]
    assert form.reason == "a drains: SIGTERM"


def test_a_member_of_the_world_before_that_was_taken_for_dead_is_back_in_without_a_restart_of_its_own() -> None:
    job = Job("3")
    job.run("a b c")
    job.prove_gone("b")
    assert nodes_of(job.form(10, Reason.LOST)) == ["a", "c"]
    job.vanish("b")
    job.wait(10.01, Reason.STOPPING)
    job.distrust("host-b")
    job.join("b", link=9000)
    assert nodes_of(job.form(10.02, Reason.GATE_JOINED)) == ["a", "c", "b"]


def test_newcomers_while_the_gate_is_closed_are_collected_for_300_ms_and_taken_in() -> None:
    job = Job("1:9")
    job.run("a b")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.join("d")
    assert job.wait(11, Reason.STOPPING).until == 11.3
    job.join("e")
    assert job.wait(11.2, Reason.STOPPING).until == 11.5
    form = job.form(11.5, Reason.GATE_JOINED)
    assert nodes_of(form) == ["a", "d", "e"]
    assert form.reason == "d, e join"
    assert form.generation.why is ChangeReason.JOINED


def test_no_more_newcomers_than_wanted_are_taken_in_before_the_start() -> None:
    job = lost_one()
    job.join("d e")
    job.wait(11, Reason.STOPPING)
    assert nodes_of(job.form(12, Reason.GATE_JOINED)) == ["a", "c", "d"]
    job.wait(13, Reason.STOPPING)


def test_the_world_before_stays_the_one_that_ran_however_often_the_members_change_before_the_start() -> None:
    job = lost_one()
    job.spent(Budget(charged=1))
    job.vanish("c")
    job.form(11, Reason.GATE_LOST)
    job.join("d")
    job.wait(12, Reason.STOPPING)
    generation = job.form(13, Reason.GATE_JOINED).generation
    assert generation.g == 4
    assert generation.before == Predecessor(1, ("a", "b", "c"), ChangeReason.NODE_LOST, (), True)


def test_when_everybody_left_before_the_start_those_who_are_there_form_again() -> None:
    job = lost_one()
    job.vanish("a c")
    job.join("d e f")
    form = job.form(12, Reason.REFORMED)
    assert nodes_of(form) == ["d", "e", "f"]
    assert form.reason == "a, c left before the start"
    job.wait(13, Reason.UNPROVEN)


def test_below_min_the_gate_stays_closed_although_everybody_has_stopped() -> None:
    job = Job("2:3")
    job.run("a b")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.stopped("a")
    assert job.wait(11, Reason.BELOW_MIN).until is None
    job.join("c")
    assert job.wait(20, Reason.BELOW_MIN).until == 20.3
    assert nodes_of(job.form(20.3, Reason.GATE_JOINED)) == ["a", "c"]
    job.open(20.4)


def test_a_lower_min_lets_a_held_job_go_on() -> None:
    job = Job("2:3")
    job.run("a b")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.stopped("a")
    job.wait(11, Reason.BELOW_MIN)
    job.scale("1:3")
    job.open(12)


# --- the go -------------------------------------------------------------------------------------------------------


def test_the_master_endpoint_changes_with_each_generation_and_comes_round() -> None:
    job = Job("2")
    job.run("a b")
    masters = []
    for time in (10, 20, 30, 40):
        job.failed("b", failure=FailureClass.SECONDARY)
        job.stopped("a", forced=True)
        job.form(time, Reason.FAILED)
        masters.append(job.open(time + 1).go.master)
    assert masters == ["host-a:7002", "host-a:7000", "host-a:7001", "host-a:7002"]


def test_the_go_names_the_cause_of_the_failure_before_and_what_it_cost() -> None:
    job = Job("2", slots=2)
    job.run("a b")
    job.stopped("a")
    job.failed("b", code=9)
    job.form(10, Reason.FAILED)
    go = job.open(11).go
    assert go.g == 2
    assert (go.budget.charged, go.budget.consecutive_failures) == (1, 1)
    assert go.note == "restart 1 of 3"
    assert go.cause is not None
    assert (go.cause.g, go.cause.node, go.cause.host, go.cause.world_size) == (1, "b", "host-b", 4)
    assert go.cause.first.code == 9


def test_a_loss_is_free_and_has_no_cause() -> None:
    job = lost_one()
    job.spent(Budget(charged=2))
    job.failed("a", failure=FailureClass.SECONDARY)
    job.stopped("c")
    go = job.open(11).go
    assert go.cause is None
    assert go.note == "does not count against --max-restarts: b was lost"


def test_a_job_whose_old_world_had_all_finished_completes_although_it_was_to_be_changed() -> None:
    job = Job("1:3")
    job.run("a b")
    job.drain("b")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.ok("a")
    job.wait(11, Reason.STOPPING)
    job.ok("b")
    verdict = job.conclude(12, Reason.COMPLETED)
    assert verdict.g == 1
    assert verdict.reason == "every worker of generation 1 ended with exit code 0"


def test_after_several_failures_without_progress_the_gate_pauses_and_says_so() -> None:
    job = Job("1", restarts_max=100)
    job.run("a")
    pauses = []
    for number in range(1, 7):
        job.failed("a")
        job.form(number * 1000, Reason.FAILED)
        decision = job.decide(number * 1000)
        if decision.code is Reason.BACKOFF:
            wait = job.wait(number * 1000, Reason.BACKOFF)
            assert wait.until is not None
            pauses.append((wait.reason, wait.until - number * 1000))
            job.wait(wait.until - 0.1, Reason.BACKOFF)
            job.open(wait.until)
        else:
            job.open(number * 1000)
    assert pauses == [
        ("backing off 1 s after 2 consecutive failures without progress", 1.0),
        ("backing off 2 s after 3 consecutive failures without progress", 2.0),
        ("backing off 4 s after 4 consecutive failures without progress", 4.0),
        ("backing off 8 s after 5 consecutive failures without progress", 8.0),
        ("backing off 16 s after 6 consecutive failures without progress", 16.0),
    ]


def test_a_newcomer_is_taken_in_during_the_pause() -> None:
    job = Job("1:3", restarts_max=100)
    job.run("a b")
    job.spent(Budget(consecutive_failures=5))
    job.failed("a")
    job.stopped("b")
    job.form(10, Reason.FAILED)
    assert job.wait(10, Reason.BACKOFF).until == 26
    job.join("c")
    assert job.wait(11, Reason.BACKOFF).until == 11.3
    assert nodes_of(job.form(11.3, Reason.GATE_JOINED)) == ["a", "b", "c"]


def test_without_a_restart_left_the_job_fails_and_the_verdict_has_the_cause() -> None:
    job = Job("1", restarts_max=0)
    job.run("a")
    job.failed("a", code=7)
    job.form(10, Reason.FAILED)
    verdict = job.conclude(11, Reason.EXHAUSTED)
    assert verdict.status is FinalStatus.FAILED
    assert verdict.reason == "no restart is left (--max-restarts 0)"
    assert verdict.cause is not None
    assert verdict.cause.first.code == 7
    assert verdict.g == 2
    job.wait(12, Reason.ENDED)


def test_the_job_fails_only_after_everybody_has_stopped() -> None:
    job = Job("2", restarts_max=0)
    job.run("a b")
    job.failed("a")
    job.form(10, Reason.FAILED)
    job.wait(11, Reason.STOPPING)
    job.stopped("b")
    job.conclude(12, Reason.EXHAUSTED)


@pytest.mark.parametrize(("ran_s", "full"), [(3600.0, True), (3599.0, False)])
def test_an_hour_of_training_fills_the_budget_again(ran_s: float, full: bool) -> None:
    job = Job("1", restarts_max=1)
    job.run("a")
    job.spent(Budget(charged=1))
    job.failed("a", ran_s=ran_s)
    job.form(10, Reason.FAILED)
    if full:
        assert job.open(11).go.budget.charged == 1
    else:
        job.conclude(11, Reason.EXHAUSTED)


def test_waiting_at_the_gate_is_no_hour_of_training() -> None:
    job = Job("2:2", restarts_max=1)
    job.run("a b")
    job.spent(Budget(charged=1))
    job.failed("a", ran_s=1.0)
    job.stopped("b", ran_s=1.0)
    job.vanish("b")
    job.form(2, Reason.FAILED)
    job.wait(3, Reason.BELOW_MIN)
    job.join("c")
    job.form(4000, Reason.GATE_JOINED, Reason.BELOW_MIN)
    job.conclude(4001, Reason.EXHAUSTED)
