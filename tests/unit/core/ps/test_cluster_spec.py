"""Who has which seat of a parameter-server job, as transcripts of what the proposer says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elastic.core.failure_class import FailureClass
from elastic.core.kv import Compare
from elastic.core.membership.decision import FormGeneration, Reason, WaitDecision
from elastic.core.model import Budget, ChangeReason, OutcomeKind
from elastic.core.ps.cluster_spec import vanished
from elastic.core.ps.model import ClusterSpec, PsJobSpec, PsLayout, Role, Task, TaskMember
from elastic.core.ps.task_placement import assign, fixed_tasks, host_of, vacant_servers
from elastic.core.ps.text import in_words, tasks_in_words
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.transactions import propose
from tests.support.job_transcript import KILL_S, Job, member, worker_exit
from tests.support.strategies import KEYS

APART = PsLayout(server_num=1, worker_num=2, separate=True)
NAMED = PsLayout(servers=("host-s:6170",), worker_num=1, separate=True)
LISTS = PsLayout(
    servers=("host-a:6170", "host-b:6170"), workers=("host-a:6171", "host-a:6172", "host-b:6171", "host-c")
)
ALONE = PsLayout(server_num=2, worker_num=2)


class PsJob(Job):
    """A parameter-server job."""

    spec_type = PsJobSpec

    @property
    def generation(self) -> ClusterSpec:
        """The newest cluster spec."""
        newest = super().generation
        assert isinstance(newest, ClusterSpec)
        return newest

    def reverse(self) -> None:
        """Somebody writes the members of the newest cluster spec in the opposite order."""
        turned = msgspec.structs.replace(self.generation, members=self.generation.members[::-1])
        self._set(generation=self._stored(turned))


def job(roles: PsLayout, np: str, **spec: Any) -> PsJob:
    return PsJob(np, slots=4, layout=roles, **spec)


def started(roles: PsLayout, np: str, nodes: str, now: float = 0.0, **spec: Any) -> PsJob:
    new = job(roles, np, **spec)
    new.join(nodes)
    new.form(now, Reason.FORMED, Reason.SETTLING)
    return new


FREE_S = 5.0 * (1 + CLOCK_ERROR) + KILL_S
"""So long after a node was first seen absent its seats are free."""


def lose(job: PsJob, node: str, now: float) -> FormGeneration:
    """A node is lost, and its seats become free; the revision that gives them away, or only takes them back."""
    job.vanish(node)
    job.form(now, Reason.LOST)
    return job.form(now + FREE_S, Reason.LOST, Reason.VACANT)


def seats(job: PsJob) -> dict[str, str]:
    return {place.node: tasks_in_words(place) for place in job.generation.members}


def made(form: FormGeneration) -> ClusterSpec:
    assert isinstance(form.generation, ClusterSpec)
    return form.generation


def revised(job: PsJob, now: float, code: Reason) -> FormGeneration:
    """Another revision is published for this reason, perhaps after newcomers were collected."""
    form = job.form(now, code, Reason.TRAINING)
    assert made(form).g == 1
    return form


# --- who sits where -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("endpoint", "host"),
    [("h:6170", "h"), ("h", "h"), ("[::1]:6170", "::1"), ("::1", "::1"), ("10.0.0.1:1", "10.0.0.1")],
)
def test_the_host_of_an_endpoint_is_told_whatever_its_form(endpoint: str, host: str) -> None:
    assert host_of(endpoint) == host


def test_on_one_machine_the_first_node_has_every_seat_and_the_next_is_a_spare() -> None:
    alone = started(ALONE, "1", "a b")
    assert seats(alone) == {"a": "servers 0-1, workers 0-1"}
    assert "1 spare" in alone.wait(1.0, Reason.TRAINING).reason


def test_nodes_of_workers_without_a_maximum_start_at_once() -> None:
    apart = job(APART, "1+")
    apart.join("a b")
    apart.form(0, Reason.FORMED)
    assert seats(apart) == {"a": "server 0", "b": "workers 0-1"}
    apart.join("c")
    revised(apart, 10, Reason.SCALED_UP)
    assert seats(apart)["c"] == "workers 2-3"


def test_fixed_lists_seat_each_host_in_the_order_of_the_lists() -> None:
    lists = started(LISTS, "3", "c b a")
    assert seats(lists) == {"a": "server 0, workers 0-1", "b": "server 1, worker 2", "c": "worker 3"}
    assert [one.node for one in lists.generation.task_assignments(Role.WORKER)] == ["a", "a", "b", "c"]


def test_fixed_lists_wait_for_every_host_and_name_it() -> None:
    lists = job(LISTS, "3")
    lists.join("a b")
    assert lists.wait(0.0, Reason.MISSING).reason == "waiting for host-c"
    lists.join("c")
    lists.form(0.0, Reason.FORMED)


def test_a_missing_server_is_named_with_its_host() -> None:
    named = job(NAMED, "1")
    named.join("a")
    assert named.wait(0.0, Reason.MISSING).reason == "waiting for server 0 on host-s"


def test_with_np_the_first_nodes_serve_and_the_others_bring_workers() -> None:
    apart = job(APART, "2")
    apart.join("a b")
    assert apart.wait(0.0, Reason.MISSING).reason == "1 of 2 nodes is here for workers; waiting for 1 more"
    apart.join("c")
    apart.form(0.0, Reason.FORMED)
    assert seats(apart) == {"a": "server 0", "b": "workers 0-1", "c": "workers 2-3"}
    assert apart.generation.world_size == 4


def test_a_host_that_servers_names_never_gets_workers() -> None:
    named = started(NAMED, "2", "a s b")
    assert seats(named) == {"s": "server 0", "a": "worker 0", "b": "worker 1"}


def test_np_counts_the_nodes_with_workers_and_more_are_spares() -> None:
    assert seats(started(NAMED, "1", "s a b")) == {"s": "server 0", "a": "worker 0"}


def test_a_node_with_fewer_ports_than_its_seats_gets_those_that_fit() -> None:
    given = assign(APART, [TaskMember("a", "h", (1,), (2,), (Task(Role.SERVER, 0),))], [("b", member("h", 1))], 9, 0)
    assert [place.tasks for place in given] == [(Task(Role.WORKER, 0),)]


def test_a_thousand_nodes_are_seated_without_looking_at_all_of_them_for_each() -> None:
    class Counted(list[TaskMember]):
        looked = 0

        def __iter__(self) -> Iterator[TaskMember]:
            Counted.looked += 1
            return super().__iter__()

    here = Counted(TaskMember(f"s{n}", "h", (1,), (2,), (Task(Role.SERVER, n),)) for n in range(50))
    roles = PsLayout(server_num=50, worker_num=1, separate=True)
    given = assign(roles, here, [(f"n{n}", member(f"h{n}", 1)) for n in range(200)], 200, 0)
    assert [place.tasks[0].index for place in given] == list(range(200))
    assert Counted.looked < 5


def test_the_seats_of_a_host_are_in_the_order_of_its_ports() -> None:
    assert [task.role for task in fixed_tasks(LISTS, "host-a")] == [Role.SERVER, Role.WORKER, Role.WORKER]


def test_free_servers_are_counted_from_the_lists_or_the_number() -> None:
    assert vacant_servers(LISTS, ()) == [0, 1]
    assert vacant_servers(APART, ()) == [0]


# --- the end ------------------------------------------------------------------------------------------------------


def test_the_job_is_completed_when_every_worker_ended_well_whatever_its_servers_do() -> None:
    apart = started(APART, "2", "a b c")
    apart.ok("b")
    apart.wait(1.0, Reason.FINISHING)
    apart.ok("c")
    apart.conclude(1.0, Reason.COMPLETED)


def test_workers_that_ended_well_complete_the_job_while_servers_of_their_node_still_run() -> None:
    alone = started(ALONE, "1", "a")
    alone.ended("a", OutcomeKind.OK, over=False)
    alone.conclude(1.0, Reason.COMPLETED)


def test_a_lost_worker_does_not_keep_the_others_from_completing_the_job() -> None:
    apart = started(APART, "2", "a b c")
    apart.vanish("b")
    revised(apart, 1.0, Reason.LOST)
    apart.ok("c")
    apart.conclude(2.0, Reason.COMPLETED)


def test_a_node_that_ended_well_and_went_still_counts_as_done() -> None:
    apart = started(APART, "2", "a b c")
    apart.ok("b")
    apart.vanish("b")
    apart.wait(1.0, Reason.FINISHING)
    apart.ok("c")
    apart.conclude(2.0, Reason.COMPLETED)


# --- losses and newcomers -----------------------------------------------------------------------------------------


def test_members_that_somebody_wrote_in_another_order_are_put_in_order_and_the_revision_says_so() -> None:
    apart = started(APART, "2", "a b c")
    members = apart.generation.members
    apart.reverse()
    form = apart.form(1.0, Reason.SCALED_UP)
    assert (made(form).members, form.reason) == (members, "the members are sorted by their tasks")


def test_a_lost_worker_is_a_revision_that_disturbs_nobody() -> None:
    apart = started(APART, "2", "a b c")
    before = {place.node: place for place in apart.generation.members}
    apart.vanish("b")
    form = apart.form(1.0, Reason.LOST)
    assert (made(form).rev, made(form).why) == (1, ChangeReason.NODE_LOST)
    assert {place.node: place for place in made(form).members if not place.leaving} == {
        node: before[node] for node in "ac"
    }
    assert form.reason == "b (workers 0-1) was lost"
    assert form.lost == ("b",)
    apart.wait(1.0, Reason.TRAINING)
    apart.form(1.0 + FREE_S, Reason.LOST)
    assert set(seats(apart)) == {"a", "c"}


def test_the_seats_of_a_lost_node_are_kept_for_a_lease_because_somebody_may_have_revoked_its_own() -> None:
    apart = started(APART, "2", "a b c d")
    apart.vanish("a")
    apart.form(1.0, Reason.LOST)
    wait = apart.wait(FREE_S + 0.9, Reason.VACANT)
    assert "a (server 0) was lost" in wait.reason
    assert wait.until == pytest.approx(1.0 + FREE_S)
    assert seats(apart)["a"] == "server 0"


def test_the_seats_of_a_node_that_is_certainly_dead_are_free_at_once() -> None:
    apart = started(APART, "1", "a b c")
    apart.prove_dead("a")
    apart.form(1.0, Reason.LOST)
    assert seats(apart) == {"c": "server 0", "b": "workers 0-1"}


def test_a_proof_of_death_is_wanted_of_nodes_that_are_away_and_may_still_run() -> None:
    lists = started(LISTS, "3", "a b c")
    assert vanished(lists.view, lists.generation) == []
    lists.ok("c")
    lists.ended("b", OutcomeKind.OK, over=False)
    lists.vanish("a b c")
    assert vanished(lists.view, lists.generation) == ["a", "b"]
    lists.ok("b")
    assert vanished(lists.view, lists.generation) == ["a"]


def test_what_a_link_shows_of_a_death_is_not_believed() -> None:
    apart = started(APART, "1", "a b c")
    apart.prove_gone("a")
    apart.wait(1.0, Reason.TRAINING)


def test_a_new_node_gets_the_lowest_free_seats_in_a_new_start() -> None:
    apart = started(APART, "2", "a b c")
    lose(apart, "b", 1.0)
    apart.join("d")
    revised(apart, 20.0, Reason.SCALED_UP)
    assert seats(apart) == {"a": "server 0", "d": "workers 0-1", "c": "workers 2-3"}
    assert {place.node: place.since for place in apart.generation.members} == {"a": 0, "d": 3, "c": 0}


def test_a_new_node_waits_for_the_seats_of_a_lost_one_so_that_no_index_is_left_out() -> None:
    apart = started(APART, "2", "a b c")
    apart.vanish("b")
    apart.join("d")
    apart.form(1.0, Reason.LOST)
    assert apart.wait(2.0, Reason.TRAINING).until == pytest.approx(1.0 + FREE_S)
    apart.form(1.0 + FREE_S, Reason.LOST, Reason.TRAINING)
    assert seats(apart) == {"a": "server 0", "d": "workers 0-1", "c": "workers 2-3"}


def test_a_new_node_gets_other_seats_while_np_has_room_for_them() -> None:
    apart = started(APART, "1:3", "a b c")
    apart.vanish("b")
    apart.join("d")
    apart.form(1.0, Reason.LOST)
    apart.form(2.0, Reason.SCALED_UP)
    assert seats(apart)["d"] == "workers 4-5"


def test_newcomers_are_collected_for_a_moment() -> None:
    apart = started(APART, "1:3", "a b")
    apart.join("c")
    wait = apart.wait(5.0, Reason.TRAINING)
    assert wait.until == pytest.approx(5.3)
    apart.join("d")
    form = apart.form(5.3, Reason.SCALED_UP, Reason.TRAINING)
    assert form.reason == "c (workers 2-3) joins, d (workers 4-5) joins"


def test_nobody_joins_once_a_worker_has_ended_well() -> None:
    apart = started(APART, "1:3", "a b c")
    apart.ok("b")
    apart.join("d")
    apart.wait(9.0, Reason.FINISHING)


def test_a_lost_server_goes_to_the_oldest_spare() -> None:
    apart = started(APART, "1", "a b c d")
    assert seats(apart) == {"a": "server 0", "b": "workers 0-1"}
    form = lose(apart, "a", 1.0)
    assert seats(apart) == {"c": "server 0", "b": "workers 0-1"}
    assert form.reason == "a (server 0) is gone and its tasks are free, c (server 0) joins"
    assert made(form).why is ChangeReason.NODE_LOST


def test_without_a_spare_the_workers_wait_for_the_lost_server_and_a_new_node_serves() -> None:
    named = started(NAMED, "1", "s a")
    lose(named, "s", 1.0)
    assert named.wait(20.0, Reason.VACANT).reason == "the workers wait for server 0 on host-s"
    named.join("b")
    named.wait(21.0, Reason.VACANT)
    named.vanish("b")
    named.join("s")
    form = named.form(22.0, Reason.SCALED_UP)
    assert seats(named) == {"s": "server 0", "a": "worker 0"}
    assert made(form).members[0].since == 3


def test_a_server_is_replaced_even_when_a_worker_has_ended_well() -> None:
    apart = started(APART, "2", "a b c d")
    apart.ok("b")
    lose(apart, "a", 1.0)
    assert seats(apart)["d"] == "server 0"


def test_the_servers_of_a_lost_node_whose_workers_were_done_are_free_and_its_work_counts() -> None:
    lists = started(LISTS, "3", "a b c")
    lists.ended("b", OutcomeKind.OK, over=False)
    lists.vanish("b")
    lists.wait(1.0, Reason.FINISHING)
    lists.form(1.0 + FREE_S, Reason.LOST)
    assert seats(lists) == {"a": "server 0, workers 0-1", "b": "worker 2", "c": "worker 3"}
    assert "server 1 on host-b" in lists.wait(9.0, Reason.VACANT).reason


def test_when_no_worker_is_left_the_servers_stay_and_wait_for_nodes() -> None:
    apart = started(APART, "1", "a b")
    lose(apart, "b", 1.0)
    assert apart.wait(9.0, Reason.VACANT).reason == "no worker is left; waiting for nodes"


def test_when_nobody_of_the_roster_is_left_the_next_generation_waits_for_servers_and_workers() -> None:
    apart = started(APART, "1", "a b")
    apart.vanish("a b")
    assert isinstance(apart.decide(1.0), WaitDecision)
    apart.join("c d")
    form = apart.form(2.0, Reason.REFORMED)
    assert (made(form).g, made(form).rev) == (2, 0)
    before = made(form).before
    assert before is not None
    assert before.nodes == ("a", "b")
    assert "a, b disappeared" in apart.wait(2.0, Reason.UNPROVEN).reason
    apart.open(1.0 + FREE_S)


def test_the_gate_of_a_new_generation_waits_for_registered_nodes_that_still_run_the_old_one() -> None:
    apart = started(APART, "1", "a b")
    apart.vanish("a b")
    apart.join("c d")
    apart.form(2.0, Reason.REFORMED)
    apart.join("a")
    assert "a" in apart.wait(30.0, Reason.STOPPING).reason
    apart.stopped("a")
    apart.open(30.0)


def test_the_gate_is_not_opened_by_how_an_older_start_of_a_node_ended() -> None:
    apart = started(APART, "1", "a b")
    apart.failed("b")
    apart.form(1.0, Reason.FAILED)
    apart.ended("b", OutcomeKind.FAILED, exits=(worker_exit(),), since=0)  # That word comes late, for the second time.
    apart.vanish("a b")
    apart.wait(9.0, Reason.MISSING)
    apart.join("c d")
    apart.form(9.0, Reason.REFORMED, Reason.SETTLING)
    assert "a, b disappeared" in apart.wait(9.0, Reason.UNPROVEN).reason
    apart.join("b")
    assert "b" in apart.wait(99.0, Reason.STOPPING).reason
    apart.ended("b", OutcomeKind.STOPPED, since=1)
    apart.open(99.0)


def test_a_roster_that_is_gone_before_its_start_is_formed_anew() -> None:
    apart = job(APART, "1")
    apart.join("a b")
    apart.form(0.0, Reason.FORMED)
    apart.vanish("a b")
    apart.wait(1.0, Reason.MISSING)
    apart.join("c d")
    assert apart.form(2.0, Reason.REFORMED).generation.g == 2


# --- failures -----------------------------------------------------------------------------------------------------


def test_a_failed_node_starts_again_alone_and_the_budget_pays() -> None:
    apart = started(APART, "2", "a b c")
    apart.ended("b", OutcomeKind.FAILED, exits=(worker_exit(1),), over=False)
    apart.wait(1.0, Reason.TRAINING)
    apart.failed("b")
    form = apart.form(1.0, Reason.FAILED)
    assert {place.node: place.since for place in made(form).members} == {"a": 0, "b": 1, "c": 0}
    assert made(form).budget.charged == 1
    cause = made(form).cause
    assert cause is not None
    assert cause.world_size == 4
    assert form.forget == ("b",)
    assert "restart 1 of 3" in form.reason
    apart.wait(1.0, Reason.TRAINING)


def test_an_outcome_of_an_older_start_does_not_count() -> None:
    apart = started(APART, "2", "a b c")
    apart.failed("b")
    apart.form(1.0, Reason.FAILED)
    apart.ended("b", OutcomeKind.FAILED, exits=(worker_exit(),), since=0)
    apart.wait(1.0, Reason.TRAINING)


def test_a_failed_worker_waits_for_its_lost_server_and_starts_again_for_free() -> None:
    named = started(NAMED, "2", "s a b")
    named.vanish("s")
    named.form(1.0, Reason.LOST)
    named.failed("a")
    named.wait(2.0, Reason.VACANT)
    named.form(1.0 + FREE_S, Reason.LOST)
    named.failed("b")
    named.wait(999.0, Reason.VACANT)
    named.join("s")
    assert named.form(1000.0, Reason.SCALED_UP).reason == "s (server 0) joins"
    form = named.form(1000.0, Reason.FAILED)
    assert made(form).budget.charged == 0
    assert "does not count against --max-restarts: a server was lost" in form.reason
    assert {place.node: place.since for place in made(form).members} == {"s": 3, "a": 4, "b": 4}


def test_a_server_that_came_back_makes_the_next_failure_of_a_worker_free_and_no_other() -> None:
    apart = started(APART, "1", "a b")
    apart.failed("a")
    apart.form(1.0, Reason.FAILED)
    apart.failed("b")
    assert apart.form(2.0, Reason.FAILED).generation.budget.charged == 1
    apart.failed("b")
    assert apart.form(9.0, Reason.FAILED, Reason.BACKOFF).generation.budget.charged == 2


def test_a_server_that_fails_while_another_is_away_starts_again_at_once_and_pays() -> None:
    apart = started(PsLayout(server_num=2, worker_num=1, separate=True), "1", "a b c")
    lose(apart, "a", 1.0)
    apart.failed("b")
    assert apart.form(9.0, Reason.FAILED).generation.budget.charged == 1


def test_a_failure_is_paid_for_also_when_a_node_that_was_done_is_gone() -> None:
    apart = started(APART, "2", "a b c")
    apart.ok("b")
    apart.vanish("b")
    apart.failed("c")
    assert apart.form(1.0, Reason.FAILED).generation.budget.charged == 1


def test_a_failure_is_paid_for_also_when_servers_of_a_node_that_was_done_are_gone_and_others_have_them() -> None:
    lists = started(LISTS, "3", "a b c")
    lists.ended("b", OutcomeKind.OK, over=False)
    lists.vanish("b")
    lists.form(1.0 + FREE_S, Reason.LOST, Reason.FINISHING)
    lists.join("d", host="host-b")
    lists.form(20.0, Reason.SCALED_UP)
    lists.failed("c")
    assert lists.form(21.0, Reason.FAILED).generation.budget.charged == 0
    lists.failed("c")
    assert lists.form(22.0, Reason.FAILED).generation.budget.charged == 1


def test_workers_that_say_that_they_lost_a_server_wait_a_lease_to_see_whether_one_is_gone() -> None:
    apart = started(APART, "2", "a b c")
    apart.failed("b", failure=FailureClass.SECONDARY)
    wait = apart.wait(1.0, Reason.BACKOFF)
    assert wait.reason == "b ended because it lost a server; waiting to see which server is gone"
    assert wait.until == pytest.approx(1.0 + 5.0 * (1 + CLOCK_ERROR))
    form = apart.form(wait.until or 0.0, Reason.FAILED)
    assert made(form).budget.charged == 0
    assert "does not count against --max-restarts: a server was lost" in form.reason


def test_workers_that_lost_a_server_start_again_as_soon_as_that_has() -> None:
    apart = started(APART, "2", "a b c")
    apart.failed("b", failure=FailureClass.SECONDARY)
    apart.wait(1.0, Reason.BACKOFF)
    apart.failed("a")
    apart.form(1.5, Reason.FAILED)
    form = apart.form(1.5, Reason.FAILED)
    assert made(form).budget.charged == 1
    assert {place.node: place.since for place in made(form).members} == {"a": 1, "b": 2, "c": 0}


def test_a_server_that_had_ended_starts_again_with_the_workers_that_come() -> None:
    apart = started(APART, "1", "a b")
    apart.ok("a")
    apart.wait(1.0, Reason.TRAINING)
    lose(apart, "b", 2.0)
    apart.join("c")
    form = apart.form(20.0, Reason.SCALED_UP, Reason.VACANT)
    assert form.reason == "c (workers 0-1) joins, a (server 0) had ended and starts again"
    assert {place.node: place.since for place in made(form).members} == {"a": 3, "c": 3}
    assert form.forget == ("a",)


def test_servers_of_a_node_whose_workers_were_done_and_that_was_away_start_again() -> None:
    lists = started(LISTS, "3", "a b c")
    lists.ended("b", OutcomeKind.OK, over=False)
    lists.vanish("b")
    lists.form(1.0 + FREE_S, Reason.LOST, Reason.FINISHING)
    lists.join("b")
    lists.ok("b")
    form = lists.form(20.0, Reason.STOPPED)
    assert form.reason == "b (server 1) had ended and starts again"
    assert seats(lists) == {"a": "server 0, workers 0-1", "b": "server 1", "c": "worker 3"}
    lists.ok("a c")
    lists.conclude(21.0, Reason.COMPLETED)


def test_servers_of_a_node_that_was_done_and_has_left_are_free_at_once() -> None:
    lists = started(LISTS, "3", "a b c")
    lists.ok("b")
    lists.vanish("b")
    lists.form(1.0, Reason.LOST)
    assert seats(lists)["b"] == "worker 2"
    lists.join("d", host="host-b")
    lists.form(2.0, Reason.SCALED_UP)
    assert seats(lists)["d"] == "server 1"


def test_servers_that_ended_with_the_workers_of_their_node_start_again_for_workers_of_others() -> None:
    lists = started(LISTS, "3", "a b c")
    lists.ok("b")
    lists.wait(1.0, Reason.FINISHING)
    lists.failed("c")
    form = lists.form(2.0, Reason.FAILED)
    assert "b (server 1) had ended and starts again" in form.reason
    assert {place.node: place.since for place in made(form).members} == {"a": 0, "b": 1, "c": 1}


def test_what_was_said_by_nodes_that_are_in_the_roster_no_more_is_forgotten_with_the_next_revision() -> None:
    apart = started(APART, "1:3", "a b c")
    lose(apart, "b", 1.0)
    apart.stopped("b")
    apart.join("d")
    form = apart.form(20.0, Reason.SCALED_UP, Reason.TRAINING)
    assert form.forget == ("b",)


def test_the_second_failure_without_progress_waits_and_charges_once() -> None:
    apart = started(APART, "2", "a b c")
    apart.failed("b")
    apart.form(1.0, Reason.FAILED)
    apart.failed("b")
    wait = apart.wait(1.0, Reason.BACKOFF)
    assert wait.until == 2.0
    assert apart.form(2.0, Reason.FAILED).generation.budget == Budget(charged=2, consecutive_failures=2)


def test_without_a_restart_left_the_job_fails_with_the_cause() -> None:
    apart = started(APART, "2", "a b c", restarts_max=0)
    apart.failed("b")
    verdict = apart.conclude(1.0, Reason.EXHAUSTED)
    assert verdict.cause is not None
    assert verdict.cause.node == "b"


def test_a_node_that_had_to_stop_starts_again_for_free() -> None:
    apart = started(APART, "2", "a b c")
    apart.stopped("c", forced=True)
    form = apart.form(1.0, Reason.STOPPED)
    assert made(form).budget.charged == 0
    assert seats(apart)["c"] == "workers 2-3"


# --- planned changes ----------------------------------------------------------------------------------------------


def test_a_node_that_drains_keeps_its_seats_until_it_has_stopped() -> None:
    apart = started(APART, "2", "a b c d")
    apart.drain("b")
    apart.form(1.0, Reason.DRAINED, Reason.TRAINING)
    assert [place.node for place in apart.generation.members if place.leaving] == ["b"]
    assert seats(apart) == {"a": "server 0", "b": "workers 0-1", "c": "workers 2-3"}
    apart.stopped("b")
    apart.form(2.0, Reason.DRAINED)
    assert seats(apart) == {"a": "server 0", "d": "workers 0-1", "c": "workers 2-3"}


def test_a_draining_server_is_replaced_when_it_has_stopped() -> None:
    apart = started(APART, "1", "a b c")
    apart.drain("a")
    apart.form(1.0, Reason.DRAINED, Reason.TRAINING)
    apart.wait(1.5, Reason.TRAINING)
    apart.stopped("a")
    apart.form(2.0, Reason.DRAINED)
    assert seats(apart) == {"c": "server 0", "b": "workers 0-1"}


def test_fewer_wanted_nodes_send_the_last_ones_away() -> None:
    apart = started(APART, "3", "a b c d")
    apart.scale("1")
    apart.form(1.0, Reason.SCALED_DOWN)
    assert [place.node for place in apart.generation.members if place.leaving] == ["c", "d"]


def test_nothing_planned_happens_once_a_worker_has_ended_well() -> None:
    apart = started(APART, "2", "a b c")
    apart.ok("b")
    apart.drain("c")
    apart.scale("1")
    apart.wait(9.0, Reason.FINISHING)


def test_a_planned_change_does_not_hold_if_a_worker_ended_well_meanwhile() -> None:
    apart = started(APART, "1:2", "a b")
    apart.join("c")
    apart.decide(1.0)
    form = apart.decide(1.3)
    assert isinstance(form, FormGeneration)
    assert form.unfinished == ("b",)
    made = propose(KEYS, apart.view, "a", 2, form, 0.0)
    assert Compare.absent(KEYS.outcome(1, "b")) in made.compares
    assert KEYS.go not in {getattr(op, "key", "") for op in made.then}


@pytest.mark.parametrize("ended", [False, True])
def test_seats_are_not_free_for_others_if_their_node_is_registered_again(ended: bool) -> None:
    """The proposer's watch may not show it; with `ended` its workers had ended well, and its servers run on."""
    lists = started(LISTS, "3", "a b c")
    if ended:
        lists.ended("b", OutcomeKind.OK, over=False)
    lists.vanish("b")
    lists.decide(1.0)
    if not ended:
        lists.form(1.0, Reason.LOST)
    form = lists.decide(2.0 + FREE_S)
    assert isinstance(form, FormGeneration)
    assert (form.gone, form.lost) == (("b",), ())
    made = propose(KEYS, lists.view, "a", 2, form, 0.0)
    assert Compare.absent(KEYS.member("b")) in made.compares


def test_a_roster_that_waits_at_the_gate_starts_with_those_who_come_when_more_workers_are_wanted() -> None:
    apart = started(APART, "1:2", "a b c")
    apart.vanish("a b c")
    apart.join("d e")
    apart.form(1.0, Reason.REFORMED, Reason.SETTLING)
    apart.scale("2:3")
    assert "waiting for 1 more" in apart.wait(5.0, Reason.MISSING).reason
    apart.join("f")
    form = apart.form(9.0, Reason.REFORMED, Reason.SETTLING)
    assert [place.node for place in made(form).members] == ["d", "e", "f"]


def test_a_member_without_a_seat_makes_the_proposer_stumble_over_nothing() -> None:
    apart = started(APART, "1", "a b")
    bare = msgspec.structs.replace(apart.generation.members[1], tasks=(), ports=(1,) * 4)
    stored = apart.view.generation
    assert stored is not None
    value = msgspec.structs.replace(stored.value, members=(stored.value.members[0], bare))
    apart.view = replace(apart.view, generation=replace(stored, value=value))
    assert apart.wait(1.0, Reason.VACANT).reason == "no worker is left; waiting for nodes"
    apart.vanish("b")
    apart.form(2.0, Reason.LOST)


@pytest.mark.parametrize("document", [{"role": "server", "index": 2**31}, {"role": "server", "index": -1}])
def test_an_index_that_no_job_has_is_not_read(document: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(list(document.values()), Task)


# --- words --------------------------------------------------------------------------------------------------------


def test_seats_are_told_as_people_say_them() -> None:
    roles = (Task(Role.SERVER, 1), Task(Role.HETER, 0), Task(Role.WORKER, 2), Task(Role.WORKER, 4))
    place = TaskMember("a", "h", (1,), (2, 3, 4, 5), roles)
    assert tasks_in_words(place) == "server 1, heter worker 0, workers 2,4"
    assert in_words(APART, [place]) == "0 servers, 2 workers and 1 heter worker"


def test_the_word_of_a_lost_node_counts_until_its_seats_are_free() -> None:
    apart = started(APART, "1", "a b")
    apart.ended("a", OutcomeKind.FAILED, exits=(worker_exit(role=Role.SERVER),), over=False)
    apart.vanish("a")
    form = apart.form(1.0, Reason.LOST)
    assert form.forget == ()
    apart.failed("a")
    assert apart.form(1.1, Reason.LOST).forget == ("a",)
