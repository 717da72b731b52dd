"""A generation runs: it completes, loses members, fails, or is changed as planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import Reason
from elastic.core.membership.memory import DecisionMemory, remember
from elastic.core.membership.running import CAUSE_S
from elastic.core.model import Budget, ChangeReason, FinalStatus, Member, Outcome, OutcomeKind, Predecessor
from tests.support.job_transcript import Job, nodes_of

# --- the end of the job -------------------------------------------------------------------------------------------


def test_a_generation_with_nothing_to_do_trains_and_names_its_spares() -> None:
    job = Job("2")
    job.run("a b")
    assert job.wait(1, Reason.TRAINING).reason == "training with 2 nodes"
    job.join("c d")
    wait = job.wait(2, Reason.TRAINING)
    assert wait.reason == "training with 2 nodes, 2 spare"
    assert wait.until is None


def test_only_ok_of_every_member_completes_the_job() -> None:
    job = Job("3")
    job.run("a b c")
    job.ok("a c")
    assert job.wait(1, Reason.FINISHING).reason == "2 of 3 nodes done; waiting for the others"
    job.ok("b")
    verdict = job.conclude(2, Reason.COMPLETED)
    assert verdict.status is FinalStatus.COMPLETED
    assert verdict.reason == "every worker of generation 1 ended with exit code 0"
    assert verdict.cause is None


def test_the_ok_of_a_spare_counts_for_nothing() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c")
    job.ok("c")
    job.wait(1, Reason.TRAINING)
    job.ok("a c")
    job.wait(1, Reason.FINISHING)


def test_the_ok_of_an_older_generation_counts_for_nothing() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("a")
    job.failed("b")
    job.form(1, Reason.FAILED)
    job.open(2)
    job.wait(3, Reason.TRAINING)
    job.ok("b")
    job.wait(4, Reason.FINISHING)


def test_a_member_that_leaves_does_not_close_the_job() -> None:
    job = Job("2")
    job.run("a b")
    job.stopped("b")
    job.vanish("b")
    job.form(1, Reason.STOPPED)
    job.stopped("a")
    job.open(2)
    job.wait(3, Reason.TRAINING)


def test_a_member_with_ok_cannot_be_lost() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("a")
    job.vanish("a")
    job.wait(1, Reason.FINISHING)
    job.ok("b")
    job.conclude(2, Reason.COMPLETED)


def test_a_member_with_ok_whose_process_is_proven_dead_is_not_lost_either() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("a")
    job.prove_gone("a")
    job.wait(1, Reason.FINISHING)


def test_after_the_first_ok_no_planned_change_is_made() -> None:
    job = Job("1:4", join_window_s=0.0, scale_up_interval_s=0.0)
    job.run("a b c")
    job.ok("a")
    job.drain("b")
    job.join("d")
    job.scale("1:2")
    job.wait(1, Reason.FINISHING)
    job.wait(1000, Reason.FINISHING)


def test_after_the_first_ok_a_loss_is_still_acted_on() -> None:
    job = Job("3")
    job.run("a b c")
    job.ok("a")
    job.vanish("b")
    assert nodes_of(job.form(1, Reason.LOST)) == ["a", "c"]


def test_after_the_first_ok_a_failure_is_still_acted_on() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("a")
    job.failed("b")
    assert nodes_of(job.form(1, Reason.FAILED)) == ["a", "b"]


# --- loss ---------------------------------------------------------------------------------------------------------


def test_a_lost_member_is_acted_on_at_once_although_no_worker_failed_and_nobody_waits() -> None:
    job = Job("3")
    job.run("a b c")
    job.vanish("b")
    form = job.form(10, Reason.LOST)
    assert nodes_of(form) == ["a", "c"]
    assert form.reason == "b was lost (its lease ended)"
    assert form.generation.why is ChangeReason.NODE_LOST
    assert form.lost == ("b",)
    assert not form.planned


def test_a_member_whose_process_is_proven_dead_is_lost_at_once() -> None:
    job = Job("3")
    job.run("a b c")
    job.prove_gone("c")
    form = job.form(10, Reason.LOST)
    assert nodes_of(form) == ["a", "b"]
    assert form.reason == "c was lost (its process is gone)"


def test_spares_take_over_at_once_on_a_loss_although_they_have_not_settled() -> None:
    job = Job("3")
    job.run("a b c")
    job.join("d")
    job.wait(10, Reason.TRAINING)
    job.vanish("a")
    job.join("e")
    assert nodes_of(job.form(10.1, Reason.LOST)) == ["b", "c", "d"]


def test_a_newcomer_fills_the_place_of_a_lost_member_while_it_settles() -> None:
    job = Job("1:4")
    job.run("a b")
    job.join("c")
    job.wait(10, Reason.SCALE_UP_SETTLING)
    job.vanish("b")
    assert nodes_of(job.form(10.1, Reason.LOST)) == ["a", "c"]


def test_a_loss_goes_before_a_failure_so_that_an_echo_is_not_blamed() -> None:
    job = Job("3")
    job.run("a b c")
    job.failed("a", failure=FailureClass.SECONDARY)
    job.vanish("b")
    assert job.form(1, Reason.LOST).generation.why is ChangeReason.NODE_LOST


def test_a_loss_during_a_drain_aborts_the_plan() -> None:
    job = Job("3")
    job.run("a b c")
    job.drain("a")
    job.wait(1, Reason.DRAIN_BATCH)
    job.vanish("b")
    form = job.form(1.1, Reason.LOST)
    assert nodes_of(form) == ["c"]
    assert not form.planned


def test_a_member_that_registers_again_within_the_proposers_word_is_not_lost() -> None:
    job = Job("2", lease_ttl_s=5.0)
    job.run("a b")
    job.hear("b")
    job.vanish("b")
    job.wait(10, Reason.TRAINING)
    job.wait(19.9, Reason.TRAINING)
    job.join("b")
    job.wait(20.5, Reason.TRAINING)
    job.wait(100, Reason.TRAINING)


def test_a_member_that_is_heard_but_does_not_register_again_works_on_until_the_outage_limit() -> None:
    job = Job("2", lease_ttl_s=5.0, etcd_outage_timeout_s=60.0)
    job.run("a b")
    job.hear("b")
    job.vanish("b")
    job.wait(10, Reason.TRAINING)
    job.wait(69.9, Reason.TRAINING)
    job.form(70, Reason.LOST)


def test_a_proposer_whose_own_lease_has_ended_gives_the_others_a_lease_time_to_register_again() -> None:
    job = Job("3", lease_ttl_s=5.0)
    job.run("a b c")
    job.wait(1, Reason.TRAINING)
    job.vanish("a b c")
    job.join("a")
    wait = job.wait(20, Reason.RETURNING)
    assert (wait.reason, wait.until) == ("the leases of b, c ended; waiting 5 s more for a new one", 25.0)
    job.join("b")
    assert "the lease of c ended" in job.wait(22, Reason.RETURNING).reason
    assert nodes_of(job.form(25, Reason.LOST)) == ["a", "b"]


def test_after_that_time_a_loss_is_acted_on_at_once_again() -> None:
    job = Job("3", lease_ttl_s=5.0)
    job.run("a b c")
    job.vanish("a")
    job.join("a")
    job.wait(20, Reason.TRAINING)
    job.vanish("c")
    job.wait(24, Reason.RETURNING)
    job.form(26, Reason.LOST)


def test_a_member_that_was_never_heard_has_a_moment_to_register_again() -> None:
    job = Job("3", lease_ttl_s=5.0)
    job.run("a b c")
    job.vanish("b c", heard=False)
    assert job.wait(20, Reason.RETURNING).until == 21.0
    job.join("b")
    job.wait(20.9, Reason.RETURNING)
    assert nodes_of(job.form(21, Reason.LOST)) == ["a", "b"]


def test_a_proven_death_does_not_wait_for_a_return() -> None:
    job = Job("3", lease_ttl_s=5.0)
    job.run("a b c")
    job.prove_gone("c")
    job.vanish("a c")
    job.join("a")
    job.form(20, Reason.LOST)


def test_who_does_not_reach_the_store_is_not_left_alone_by_a_growth_or_a_shrinking() -> None:
    job = Job("1:3", lease_ttl_s=5.0, join_window_s=1.0)
    job.run("a b")
    job.hear("b")
    job.vanish("b")
    job.join("c")
    wait = job.wait(10, Reason.OUT_OF_REACH)
    assert wait.reason == "c joins; waiting for b to reach etcd again"
    job.scale("1")
    assert job.wait(11, Reason.OUT_OF_REACH).reason == "1 node wanted; waiting for b to reach etcd again"
    job.join("b")
    job.form(12, Reason.SCALED_DOWN)


def test_a_failure_that_is_a_consequence_waits_a_moment_for_its_cause() -> None:
    job = Job("3")
    job.run("a b c")
    job.failed("b", failure=FailureClass.SECONDARY, over=False)
    wait = job.wait(10, Reason.SECONDARY)
    assert wait.reason == "rank=[0] lost a peer on host host-b, see workerlog.0; waiting a moment for the cause"
    assert wait.until == 10 + CAUSE_S
    job.form(10 + CAUSE_S, Reason.FAILED)


def test_a_failure_by_itself_ends_the_wait_for_a_cause() -> None:
    job = Job("3")
    job.run("a b c")
    job.failed("b", failure=FailureClass.SECONDARY, over=False)
    job.wait(10, Reason.SECONDARY)
    job.failed("c", over=False)
    job.form(10.01, Reason.FAILED)


def test_a_failure_by_itself_is_acted_on_at_once() -> None:
    job = Job("3")
    job.run("a b c")
    job.hear("b c")
    job.failed("b", over=False)
    job.form(10, Reason.FAILED)


def test_a_failure_that_a_proven_loss_explains_is_a_loss() -> None:
    job = Job("3")
    job.run("a b c")
    job.hear("b c")
    job.failed("b", failure=FailureClass.SECONDARY, over=False)
    job.wait(10, Reason.SECONDARY)
    job.prove_gone("c")
    assert nodes_of(job.form(10.01, Reason.LOST)) == ["a", "b"]


def test_where_every_node_has_recorded_its_end_there_is_nothing_to_wait_for() -> None:
    job = Job("2")
    job.run("a b")
    job.failed("a b", failure=FailureClass.SECONDARY, over=False)
    job.form(10, Reason.FAILED)


def test_a_generation_names_the_hosts_whose_links_have_lied() -> None:
    job = Job("2")
    job.run("a b")
    job.distrust("host-b")
    job.vanish("b")
    assert job.form(10, Reason.LOST).generation.distrusted == ("host-b",)


def test_a_member_that_vanishes_and_falls_silent_is_lost_at_once() -> None:
    job = Job("2")
    job.run("a b")
    job.hear("b")
    job.vanish("b")
    job.wait(10, Reason.TRAINING)
    job.hear("")
    job.form(10.1, Reason.LOST)


def test_when_nobody_of_the_world_is_left_those_who_are_there_form_after_a_settling_window() -> None:
    job = Job("2:3")
    job.run("a b")
    job.vanish("a b")
    job.join("c")
    assert job.wait(10, Reason.BELOW_MIN).reason == "1 of 2 required nodes is here; waiting for more"
    job.join("d")
    assert job.wait(11, Reason.SETTLING).until == 14
    form = job.form(14, Reason.REFORMED)
    assert nodes_of(form) == ["c", "d"]
    assert form.generation.why is ChangeReason.REFORMED
    assert form.reason == "a, b left; no node of this generation remains"
    assert form.generation.before == Predecessor(1, ("a", "b"), ChangeReason.REFORMED, (), True)


def test_a_job_whose_world_is_gone_forms_at_once_at_max() -> None:
    job = Job("2:3")
    job.run("a b")
    job.vanish("a b")
    job.join("c d e")
    assert nodes_of(job.form(10, Reason.REFORMED)) == ["c", "d", "e"]


# --- failure, and workers that had to be stopped ------------------------------------------------------------------


def test_the_first_word_of_a_failure_is_acted_on_before_all_workers_of_that_node_are_gone() -> None:
    job = Job("2")
    job.run("a b")
    job.failed("b", over=False)
    form = job.form(1, Reason.FAILED)
    assert nodes_of(form) == ["a", "b"]
    assert form.reason == "rank=[0] failed on host host-b, see workerlog.0"
    assert form.generation.why is ChangeReason.FAILURE
    assert not form.planned


def test_an_echo_that_is_recorded_first_is_not_called_a_failure_of_that_rank() -> None:
    job = Job("2")
    job.run("a b")
    job.failed("b", over=False, failure=FailureClass.SECONDARY)
    job.wait(1, Reason.SECONDARY)
    assert job.form(1.2, Reason.FAILED).reason == "rank=[0] lost a peer on host host-b, see workerlog.0"
    job = Job("2")
    job.run("a b")
    job.failed("b", over=False, failure=FailureClass.SECONDARY)
    job.failed("a", over=False)
    assert job.form(1, Reason.FAILED).reason == "rank=[0] failed on host host-a, see workerlog.0"


def test_a_member_that_failed_and_vanished_is_replaced_by_a_spare() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c")
    job.failed("b")
    job.vanish("b")
    assert nodes_of(job.form(1, Reason.FAILED)) == ["a", "c"]


def test_a_member_that_had_to_stop_its_workers_stops_the_world() -> None:
    job = Job("2")
    job.run("a b")
    job.stopped("b", forced=True)
    form = job.form(1, Reason.STOPPED)
    assert nodes_of(form) == ["a", "b"]
    assert form.reason == "b stopped its workers"
    assert form.generation.why is ChangeReason.STOPPED


def test_after_a_failure_newcomers_are_taken_at_once() -> None:
    job = Job("1:3")
    job.run("a b")
    job.failed("a")
    job.join("c")
    assert nodes_of(job.form(1, Reason.FAILED)) == ["a", "b", "c"]


# --- drain --------------------------------------------------------------------------------------------------------


def test_drains_are_collected_for_300_ms_and_cost_one_restart() -> None:
    job = Job("4")
    job.run("a b c d")
    job.drain("b")
    assert job.wait(10, Reason.DRAIN_BATCH).until == 10.3
    job.drain("c")
    assert job.wait(10.2, Reason.DRAIN_BATCH).until == 10.3
    form = job.form(10.3, Reason.DRAINED)
    assert nodes_of(form) == ["a", "d"]
    assert form.reason == "b, c drain: SIGTERM"
    assert form.generation.why is ChangeReason.DRAIN
    assert form.planned


def test_spares_take_the_places_of_drained_members() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c")
    job.drain("a")
    assert nodes_of(job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)) == ["b", "c"]


def test_a_spare_that_drains_changes_nothing() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c")
    job.drain("c")
    assert job.wait(10, Reason.TRAINING).reason == "training with 2 nodes"


def test_when_every_member_drains_and_nobody_is_there_an_empty_world_tells_them_to_stop() -> None:
    job = Job("2")
    job.run("a b")
    job.drain("a b")
    assert nodes_of(job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)) == []
    job.stopped("a b")
    job.vanish("a b")
    job.wait(20, Reason.MISSING)
    job.join("c d")
    assert nodes_of(job.form(30, Reason.REFORMED)) == ["c", "d"]
    job.open(30)


def test_when_every_member_drains_spares_make_the_next_world() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c d")
    job.drain("a b")
    assert nodes_of(job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)) == ["c", "d"]


def test_when_the_rest_of_the_world_drains_after_a_loss_an_empty_world_is_formed() -> None:
    job = Job("2")
    job.run("a b")
    job.drain("a")
    job.vanish("b")
    assert nodes_of(job.form(10, Reason.EMPTIED)) == []


# --- scale and growth ---------------------------------------------------------------------------------------------


def test_fewer_nodes_wanted_drops_the_last_ranks() -> None:
    job = Job("1:4")
    job.run("a b c d")
    job.scale("1:2")
    form = job.form(10, Reason.SCALED_DOWN)
    assert nodes_of(form) == ["a", "b"]
    assert form.reason == "4 nodes run, 2 are wanted"
    assert form.generation.why is ChangeReason.SCALE_DOWN
    assert form.planned


def test_a_running_job_trains_on_while_newcomers_settle_and_restarts_once_for_all_of_them() -> None:
    job = Job("1:6")
    job.run("a b")
    job.join("c")
    assert job.wait(10, Reason.SCALE_UP_SETTLING).until == 13
    job.join("d")
    wait = job.wait(12, Reason.SCALE_UP_SETTLING)
    assert wait.until == 15
    assert wait.reason == "4 of 6 nodes are here; waiting 3 s more for others to join"
    form = job.form(15, Reason.SCALED_UP)
    assert nodes_of(form) == ["a", "b", "c", "d"]
    assert form.reason == "c, d join"
    assert form.generation.why is ChangeReason.SCALE_UP
    assert form.planned


def test_growth_does_not_wait_when_max_is_reached() -> None:
    job = Job("1:3")
    job.run("a b")
    job.join("c")
    assert nodes_of(job.form(10, Reason.SCALED_UP)) == ["a", "b", "c"]


def test_growth_takes_no_more_than_max_and_the_oldest_newcomers_first() -> None:
    job = Job("1:3")
    job.run("a b")
    job.join("d c e")
    assert nodes_of(job.form(10, Reason.SCALED_UP)) == ["a", "b", "d"]


def test_np_n_grows_back_to_n_after_a_loss() -> None:
    job = Job("3")
    job.run("a b c")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.stopped("a c")
    job.open(11)
    job.wait(12, Reason.TRAINING)
    job.join("d")
    assert nodes_of(job.form(20, Reason.SCALED_UP)) == ["a", "c", "d"]


def grown(**spec: Any) -> tuple[Job, int]:
    """A job that has grown to "a b c" at 13 s, in this generation, and at whose door "d" stands."""
    job = Job("1:4", **spec)
    job.run("a b")
    job.join("c")
    g = job.form(10, Reason.SCALED_UP, Reason.SCALE_UP_SETTLING).generation.g
    job.stopped("a b")
    job.open(14)
    job.join("d")
    return job, g


def test_a_second_growth_waits_for_the_scale_up_interval() -> None:
    job, _ = grown(scale_up_interval_s=60.0)
    wait = job.wait(20, Reason.SCALE_UP_LATER)
    assert wait.until == 74
    assert wait.reason == "d joins in 54 s (--scale-up-interval 60)"
    assert wait.reason_at(50.0) == "d joins in 24 s (--scale-up-interval 60)"
    job.wait(73.9, Reason.SCALE_UP_LATER)
    job.form(74, Reason.SCALED_UP)


def test_by_default_a_second_growth_waits_a_minute_if_workers_would_lose_what_they_have_not_saved() -> None:
    job, _ = grown()
    assert job.wait(20, Reason.SCALE_UP_LATER).reason == "d joins in 54 s (--scale-up-interval 60)"


def test_by_default_a_second_growth_does_not_wait_if_workers_save_before_they_leave() -> None:
    job, g = grown()
    job.memory = msgspec.structs.replace(job.memory, listening=g - 1)
    job.wait(20, Reason.SCALE_UP_LATER)
    job.memory = msgspec.structs.replace(job.memory, listening=g)
    job.form(20, Reason.SCALED_UP)


def test_what_scale_up_interval_says_holds_for_workers_that_save_before_they_leave_too() -> None:
    job, g = grown(scale_up_interval_s=30.0)
    job.memory = msgspec.structs.replace(job.memory, listening=g)
    assert job.wait(20, Reason.SCALE_UP_LATER).until == 44


def test_the_first_growth_does_not_wait_for_the_scale_up_interval() -> None:
    job = Job("1:3", scale_up_interval_s=1000.0)
    job.run("a b")
    job.join("c")
    job.form(0, Reason.SCALED_UP)


def test_a_proposer_that_takes_over_does_not_grow_right_after_a_growth() -> None:
    job = Job("1:4", scale_up_interval_s=60.0)
    job.run("a b")
    job.join("c")
    job.form(10, Reason.SCALED_UP, Reason.SCALE_UP_SETTLING)
    job.stopped("a b")
    job.open(14)
    job.memory = DecisionMemory()
    job.wait(15, Reason.TRAINING)
    job.join("d")
    assert job.wait(16, Reason.SCALE_UP_LATER).until == 75


def test_a_loss_does_not_wait_for_the_scale_up_interval() -> None:
    job = Job("1:3", scale_up_interval_s=1000.0)
    job.run("a b")
    job.join("c")
    job.form(10, Reason.SCALED_UP)
    job.stopped("a b")
    job.open(11)
    job.join("d")
    job.vanish("c")
    assert nodes_of(job.form(12, Reason.LOST)) == ["a", "b", "d"]


def test_a_newcomer_that_leaves_while_it_settles_costs_nothing() -> None:
    job = Job("1:4")
    job.run("a b")
    job.join("c")
    job.wait(10, Reason.SCALE_UP_SETTLING)
    job.vanish("c")
    job.wait(11, Reason.TRAINING)


def test_unplanned_goes_before_planned() -> None:
    job = Job("1:4", join_window_s=0.0)
    job.run("a b")
    job.join("c")
    job.drain("a")
    job.failed("b")
    assert job.form(10, Reason.FAILED).generation.why is ChangeReason.FAILURE


# --- what the next generation carries -----------------------------------------------------------------------------


def test_the_next_generation_names_the_one_before_it_and_carries_its_budget() -> None:
    job = Job("2")
    job.run("a b")
    spent = Budget(charged=2, consecutive_failures=1, step=40, machine_faults=1)
    job.spent(spent)
    job.vanish("b")
    generation = job.form(10, Reason.LOST).generation
    assert generation.g == 2
    assert generation.before == Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST, (), True)
    assert generation.budget == spent


def test_a_member_that_registered_again_goes_on_with_its_newest_ports() -> None:
    job = Job("2")
    job.run("a b")
    moved = Member(host="elsewhere", slots=1, masters=(9,), ports=(10,))
    job.vanish("b")
    job.view = replace(job.view, members={"a": replace(job.view.members["a"], value=moved)})
    place = job.form(10, Reason.LOST).generation.members[0]
    assert (place.node, place.host, place.masters, place.ports) == ("a", "elsewhere", (9,), (10,))


def test_every_agent_remembers_when_the_job_last_grew() -> None:
    job = Job("1:3")
    job.run("a b")
    memory = remember(job.view, DecisionMemory(), "a", 100)
    assert memory.scaled_up_at is None
    job.join("c")
    job.form(10, Reason.SCALED_UP)
    assert remember(job.view, memory, "a", 300).scaled_up_at == 300


def test_an_outcome_without_any_exit_is_still_a_failure() -> None:
    job = Job("2")
    job.run("a b")
    job.ended("b", OutcomeKind.FAILED)
    assert job.view.outcomes[1, "b"].value == Outcome(ended=OutcomeKind.FAILED, over=True, host="host-b")
    assert job.form(1, Reason.FAILED).reason == "a worker failed on b"
