"""The first start of a job: how many nodes are awaited, and for how long."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from elastic.core.decide import RESTORE, decide
from elastic.core.membership.decision import Reason, WaitDecision
from elastic.core.membership.memory import LINK_PATIENCE_S, DecisionMemory
from elastic.core.model import Budget, ChangeReason, FinalStatus
from tests.support.job_transcript import POLICY, Job, nodes_of

# --- before anything can be formed --------------------------------------------------------------------------------


def test_a_verdict_ends_everything() -> None:
    job = Job("1")
    job.run("a")
    job.ok("a")
    job.conclude(1, Reason.COMPLETED)
    job.join("b")
    assert job.wait(2, Reason.ENDED).reason == (
        "the job has ended: every worker of generation 1 ended with exit code 0"
    )


def test_a_job_document_that_cannot_be_read_stops_the_proposer_and_is_named() -> None:
    job = Job("1")
    job.join("a")
    job.view = replace(job.view, unreadable=("/elastic/j/generation",), damaged=("/elastic/j/generation",))
    wait = job.wait(0, Reason.UNREADABLE)
    assert wait.reason == f"/elastic/j/generation cannot be read; {RESTORE}"
    assert wait.until is None


def test_a_member_or_an_outcome_that_cannot_be_read_stops_nothing() -> None:
    job = Job("1")
    job.join("a")
    job.view = replace(job.view, damaged=("/elastic/j/members/x", "/elastic/j/outcomes/0000000001/x"))
    job.form(0, Reason.FORMED)


def test_without_a_spec_nothing_is_formed() -> None:
    job = Job("1")
    job.join("a")
    job.view = replace(job.view, spec=None)
    job.wait(0, Reason.NO_SPEC)


# --- --np N -------------------------------------------------------------------------------------------------------


def test_np_n_waits_for_n_nodes_at_the_first_start_however_long_it_takes() -> None:
    job = Job("3")
    job.join("a b")
    wait = job.wait(0, Reason.MISSING)
    assert wait.reason == "2 of 3 nodes are here; waiting for 1 more"
    assert wait.until is None
    job.wait(1_000_000, Reason.MISSING)


def test_np_n_starts_at_once_when_n_nodes_are_there() -> None:
    job = Job("3")
    job.join("a b")
    job.wait(0, Reason.MISSING)
    job.join("c")
    form = job.form(0.1, Reason.FORMED)
    assert nodes_of(form) == ["a", "b", "c"]
    assert form.generation.why is ChangeReason.FIRST
    assert form.reason == "3 of 3 nodes are here"


def test_a_silent_node_is_in_the_first_start_only_where_the_others_are_too_few() -> None:
    job = Job("2:4", join_window_s=5.0)
    job.join("a b")
    job.memory = msgspec.structs.replace(job.memory, silent=frozenset({"b"}))
    job.wait(0, Reason.SETTLING)
    assert nodes_of(job.form(5.0, Reason.FORMED)) == ["a", "b"]
    job = Job("2:4", join_window_s=5.0)
    job.join("a b c")
    job.memory = msgspec.structs.replace(job.memory, silent=frozenset({"b"}))
    job.wait(0, Reason.SETTLING)
    assert nodes_of(job.form(5.0, Reason.FORMED)) == ["a", "c"]


def test_a_job_of_one_node_starts_at_once() -> None:
    job = Job("1")
    job.join("a")
    assert job.form(0, Reason.FORMED).reason == "1 of 1 node is here"


def test_more_nodes_than_are_wanted_remain_spares_of_the_first_generation() -> None:
    job = Job("2")
    job.join("a b c")
    assert nodes_of(job.form(0, Reason.FORMED)) == ["a", "b"]


def test_after_its_first_start_np_n_goes_on_with_a_single_node() -> None:
    job = Job("3")
    job.run("a b c")
    job.vanish("b c")
    job.form(10, Reason.LOST)
    job.stopped("a")
    job.open(11)


# --- --np MIN:MAX -------------------------------------------------------------------------------------------------


def test_np_min_max_waits_for_min_nodes() -> None:
    job = Job("2:4")
    job.join("a")
    assert job.wait(0, Reason.MISSING).reason == "1 of 2 nodes is here; waiting for 1 more"


def test_the_settling_window_ends_3_s_after_the_last_arrival() -> None:
    job = Job("2:4")
    job.join("a")
    job.wait(0, Reason.MISSING)
    job.join("b")
    assert job.wait(10, Reason.SETTLING).until == 13
    job.join("c")
    wait = job.wait(12, Reason.SETTLING)
    assert wait.until == 15
    assert wait.reason == "3 of 4 nodes are here; waiting 3 s more for others to join"
    job.wait(14.9, Reason.SETTLING)
    assert nodes_of(job.form(15, Reason.FORMED)) == ["a", "b", "c"]


def test_the_settling_window_ends_15_s_after_the_first_arrival_at_the_latest() -> None:
    job = Job("2:40")
    job.join("n0")
    job.wait(0, Reason.MISSING)
    for number in range(1, 8):
        job.join(f"n{number}")
        assert job.wait(number * 2, Reason.SETTLING).until == min(number * 2 + 3, 15)
    job.form(15, Reason.FORMED)


def test_a_longer_settle_does_not_stretch_the_15_s() -> None:
    job = Job("1:40", join_window_s=10.0)
    job.join("a")
    assert job.wait(0, Reason.SETTLING).until == 10
    job.join("b")
    assert job.wait(9, Reason.SETTLING).until == 15


def test_the_settling_window_ends_at_once_at_max() -> None:
    job = Job("1:3")
    job.join("a b")
    job.wait(0, Reason.SETTLING)
    job.join("c")
    job.form(0.5, Reason.FORMED)


def test_settle_0_does_not_wait_for_others() -> None:
    job = Job("1:3", join_window_s=0.0)
    job.join("a")
    job.form(0, Reason.FORMED)


def test_a_node_that_comes_and_goes_while_others_settle_is_not_counted() -> None:
    job = Job("2:4")
    job.join("a b")
    job.wait(0, Reason.SETTLING)
    job.vanish("a")
    job.wait(1, Reason.MISSING)
    job.join("c")
    assert nodes_of(job.form(1, Reason.FORMED, Reason.SETTLING)) == ["b", "c"]


# --- --np N+ ------------------------------------------------------------------------------------------------------


def test_np_n_plus_starts_at_once_when_n_nodes_are_there() -> None:
    job = Job("2+")
    job.join("a")
    assert job.wait(0, Reason.MISSING).reason == "1 of 2 nodes is here; waiting for 1 more"
    job.join("b")
    form = job.form(0.1, Reason.FORMED)
    assert (nodes_of(form), form.reason) == (["a", "b"], "2 of 2 nodes are here")


def test_np_n_plus_starts_with_all_that_are_there() -> None:
    job = Job("1+")
    job.join("a b c")
    form = job.form(0, Reason.FORMED)
    assert (nodes_of(form), form.reason) == (["a", "b", "c"], "3 of 3 nodes are here")


def test_np_n_plus_takes_in_every_node_that_joins_once_they_have_settled() -> None:
    job = Job("1+", scale_up_interval_s=0.0)
    job.run("a")
    job.join("b")
    wait = job.wait(10, Reason.SCALE_UP_SETTLING)
    assert (wait.until, wait.reason) == (13, "2 nodes are here; waiting 3 s more for others to join")
    job.join("c d")
    job.wait(11, Reason.SCALE_UP_SETTLING)
    form = job.form(14, Reason.SCALED_UP)
    assert (nodes_of(form), form.reason) == (["a", "b", "c", "d"], "b, c, d join")


def test_np_n_plus_goes_on_with_one_node() -> None:
    job = Job("3+")
    job.run("a b c")
    job.vanish("b c")
    assert nodes_of(job.form(10, Reason.LOST)) == ["a"]
    job.stopped("a")
    job.open(11)


def test_a_single_node_of_np_n_plus_that_registers_again_starts_at_once() -> None:
    job = Job("1+")
    job.run("a")
    job.vanish("a")
    job.stopped("a")
    job.join("a2")
    job.form(10, Reason.REFORMED)


def test_when_the_world_of_np_n_plus_is_gone_as_many_as_before_are_waited_for() -> None:
    job = Job("1+")
    job.run("a b")
    job.vanish("a b")
    job.stopped("a b")
    job.join("c")
    wait = job.wait(10, Reason.SETTLING)
    assert (wait.until, wait.reason) == (13, "1 of 2 nodes is here; waiting 3 s more for others to join")
    job.join("d")
    assert nodes_of(job.form(11, Reason.REFORMED)) == ["c", "d"]


def test_in_a_store_that_came_back_empty_np_n_plus_waits_for_as_many_as_before() -> None:
    job = Job("1+")
    job.memory = msgspec.structs.replace(job.memory, size_before=3)
    job.join("a b")
    wait = job.wait(0, Reason.SETTLING)
    assert (wait.until, wait.reason) == (3, "2 of 3 nodes are here; waiting 3 s more for others to join")
    later = Job("1+")
    later.memory, later.view = job.memory, job.view
    job.join("c")
    assert nodes_of(job.form(1, Reason.FORMED)) == ["a", "b", "c"]
    assert nodes_of(later.form(3, Reason.FORMED)) == ["a", "b"], "not for ever"


# --- --np N:N -----------------------------------------------------------------------------------------------------


def test_np_n_n_waits_for_exactly_n_nodes_and_starts_at_once() -> None:
    job = Job("2:2")
    job.join("a")
    job.wait(0, Reason.MISSING)
    job.join("b")
    job.form(0.1, Reason.FORMED)


def test_np_n_n_holds_after_a_loss_until_n_nodes_are_there_again() -> None:
    job = Job("2:2")
    job.run("a b")
    job.vanish("b")
    job.form(10, Reason.LOST)
    job.stopped("a")
    assert job.wait(11, Reason.BELOW_MIN).reason == ("1 of 2 required nodes is here; waiting for 1 more")
    job.wait(100_000, Reason.BELOW_MIN)
    job.join("c")
    assert nodes_of(job.form(100_001, Reason.GATE_JOINED, Reason.BELOW_MIN)) == ["a", "c"]
    job.open(100_002)


# --- who counts ---------------------------------------------------------------------------------------------------


def test_a_node_that_drains_is_not_awaited_and_not_taken() -> None:
    job = Job("2")
    job.join("a b")
    job.drain("b")
    job.wait(0, Reason.MISSING)
    job.join("c")
    assert nodes_of(job.form(1, Reason.FORMED)) == ["a", "c"]


def test_a_node_with_another_number_of_cards_is_not_counted() -> None:
    job = Job("2", slots=4)
    job.join("a")
    job.join("b", slots=8)
    job.wait(0, Reason.MISSING)


def test_a_node_whose_process_is_proven_dead_is_not_counted() -> None:
    job = Job("2")
    job.join("a b")
    job.prove_gone("b")
    job.wait(0, Reason.MISSING)


def test_a_node_of_this_machine_that_is_proven_dead_is_not_counted() -> None:
    job = Job("2")
    job.join("a b c")
    job.prove_dead("b")
    form = job.form(0, Reason.FORMED)
    assert nodes_of(form) == ["a", "c"]


def test_a_node_arrives_when_its_agent_is_linked() -> None:
    job = Job("2")
    job.join("a")
    job.join("b", link=9000)
    wait = job.wait(0, Reason.MISSING)
    assert wait.until == LINK_PATIENCE_S
    job.hear("b")
    assert nodes_of(job.form(0.5, Reason.FORMED)) == ["a", "b"]


def test_a_node_whose_agent_cannot_be_linked_is_taken_all_the_same_after_a_while() -> None:
    job = Job("2")
    job.join("a")
    job.join("b", link=9000)
    job.wait(0, Reason.MISSING)
    job.wait(LINK_PATIENCE_S - 0.1, Reason.MISSING)
    job.form(LINK_PATIENCE_S, Reason.FORMED)


def test_a_node_that_has_arrived_stays_arrived_when_its_link_breaks() -> None:
    job = Job("1:3", join_window_s=3.0)
    job.join("a")
    job.join("b", link=9000)
    job.hear("b")
    job.wait(0, Reason.SETTLING)
    job.hear("")
    assert nodes_of(job.form(3, Reason.FORMED)) == ["a", "b"]


def test_a_spare_that_was_there_before_this_agent_began_to_propose_replaces_the_lost_first_at_once() -> None:
    job = Job("2")
    job.run("a b")
    job.join("c", link=9000)
    job.memory = DecisionMemory()
    job.vanish("a")
    assert nodes_of(job.form(10, Reason.LOST)) == ["b", "c"]


def test_a_spare_that_was_there_before_the_newest_generation_replaces_a_lost_proposer_without_a_link_first() -> None:
    job = Job("2")
    job.join("c", link=9000)
    job.run("a b")
    job.vanish("a")
    assert nodes_of(job.form(10, Reason.LOST)) == ["b", "c"]


def test_a_node_that_registered_again_after_its_proof_of_death_counts_again() -> None:
    job = Job("2")
    job.join("a b")
    job.prove_gone("b")
    job.wait(0, Reason.MISSING)
    job.join("b")
    assert nodes_of(job.form(1, Reason.FORMED)) == ["a", "b"]


# --- the first generation -----------------------------------------------------------------------------------------


def test_the_first_generation_is_number_1_and_has_nothing_before_it_and_a_full_budget() -> None:
    job = Job("1", slots=2)
    job.join("a")
    generation = job.form(0, Reason.FORMED).generation
    assert (generation.g, generation.run, generation.before, generation.budget) == (1, 1, None, Budget())
    assert generation.world_size == 2


def test_the_first_generation_comes_with_its_go_and_rank_0_names_the_endpoint() -> None:
    job = Job("2")
    job.join("a b")
    go = job.form(0, Reason.FORMED).go
    assert go is not None
    assert (go.g, go.master, go.budget) == (1, "host-a:7001", Budget())
    job.wait(0, Reason.TRAINING)


def test_a_first_generation_without_the_ports_of_rank_0_waits_at_the_gate_for_them() -> None:
    job = Job("2")
    job.join("a b")
    stored = job.view.members["a"]
    portless = replace(stored, value=msgspec.structs.replace(stored.value, masters=()))
    job.view = replace(job.view, members={**job.view.members, "a": portless})
    assert job.form(0, Reason.FORMED).go is None
    job.wait(0, Reason.NO_MASTER)


def test_an_ipv6_host_is_written_in_brackets() -> None:
    job = Job("1")
    job.join("a")
    stored = job.view.members["a"]
    job.view = replace(
        job.view, members={"a": replace(stored, value=msgspec.structs.replace(stored.value, host="fd00::1"))}
    )
    go = job.form(0, Reason.FORMED).go
    assert go is not None
    assert go.master == "[fd00::1]:7001"


def test_a_new_run_starts_like_the_first_with_a_higher_generation_and_a_full_budget() -> None:
    job = Job("2")
    job.run("a b")
    job.spent(Budget(charged=3, consecutive_failures=3, step=70))
    job.vanish("a b")
    assert job.view.spec is not None
    spec = replace(job.view.spec, value=msgspec.structs.replace(job.spec, run=2))
    job.view = replace(job.view, spec=spec, outcomes={})
    job.join("c")
    job.wait(0, Reason.MISSING)
    job.join("d")
    form = job.form(0, Reason.FORMED)
    assert (form.generation.g, form.generation.run) == (2, 2)
    assert (form.generation.why, form.generation.before, form.generation.budget) == (ChangeReason.FIRST, None, Budget())
    assert form.go is not None


# --- decide itself ------------------------------------------------------------------------------------------------


def test_the_same_input_gives_the_same_answer() -> None:
    job = Job("1:3")
    job.join("a b")
    assert decide(job.view, job.memory, POLICY, 5.0) == decide(job.view, job.memory, POLICY, 5.0)


def test_deciding_changes_neither_the_view_nor_the_memory_it_is_given() -> None:
    job = Job("1:3")
    job.join("a b")
    view, memory = replace(job.view, members=dict(job.view.members)), DecisionMemory()
    decide(view, memory, POLICY, 5.0)
    assert (view, memory) == (job.view, DecisionMemory())


def test_asking_again_at_the_time_a_wait_names_brings_the_job_forward() -> None:
    job = Job("1:3")
    job.join("a")
    wait = job.wait(0, Reason.SETTLING)
    assert wait.until is not None
    assert not isinstance(decide(job.view, job.memory, POLICY, wait.until)[0], WaitDecision)


@pytest.mark.parametrize("np", ["1", "1:1", "1:4"])
def test_a_whole_job_of_one_node_goes_from_registration_to_its_verdict(np: str) -> None:
    job = Job(np)
    job.join("a")
    job.form(0, Reason.FORMED, Reason.SETTLING)
    assert job.wait(4, Reason.TRAINING).reason == "training with 1 node"
    job.ok("a")
    verdict = job.conclude(100, Reason.COMPLETED)
    assert (verdict.status, verdict.g, verdict.run) == (FinalStatus.COMPLETED, 1, 1)
    job.wait(101, Reason.ENDED)
