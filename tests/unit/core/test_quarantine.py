"""Hosts whose workers keep failing: who is blamed, who is kept out and for how long, and who pays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import FormGeneration, OpenGate, Reason, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Budget, ChangeReason, JobMode, JobSpec, Np, Outcome, OutcomeKind, Predecessor, Quarantine
from elastic.core.quarantine import HOSTS_MAX, QUARANTINE_AFTER, QUARANTINE_MAX_S, blame
from elastic.core.restart_policy import judge
from elastic.core.text import clock_time, duration_in_words
from elastic.core.view import StoredDocument
from tests.support.job_transcript import Job, nodes_of, worker_exit

COOLDOWN_S = 60.0


class Story(Job):
    """A job of `nodes` whose failures are acted on at once."""

    def __init__(self, nodes: str = "a b c", np: str = "1:3", **spec: Any) -> None:
        super().__init__(np, join_window_s=0.0, **spec)
        self.now = 0.0
        self.run(nodes)

    def fail(self, failing: str, *, step: int = -1, **how: Any) -> FormGeneration | OpenGate | None:
        """Workers of these nodes fail by themselves, the others are stopped; what the gate says, None for a verdict."""
        members = [place.node for place in self.generation.members]
        self.now += 1
        for node in failing.split():
            self.failed(node, step=step, **how)
        for node in members:
            if node not in failing.split():
                self.stopped(node, step=step)
        self.form(self.now, Reason.FAILED)
        return self.gate()

    def fail_and_leave_out(self, failing: str) -> None:
        """They fail, and a generation without them waits at its gate."""
        self.now += 1
        members = [place.node for place in self.generation.members]
        self.failed(failing)
        self.stopped(" ".join(node for node in members if node not in failing.split()))
        self.form(self.now, Reason.FAILED)
        self.form(self.now, Reason.QUARANTINED, Reason.BACKOFF)

    def gate(self) -> FormGeneration | OpenGate | None:
        """Let the gate decide, after its pause, and write it; after a host was left out, open that gate, too."""
        decision = self.decide(self.now)
        if isinstance(decision, WaitDecision):
            assert decision.code is Reason.BACKOFF
            assert decision.until is not None
            self.now = decision.until
            decision = self.decide(self.now)
        self.write(decision)
        if isinstance(decision, FormGeneration):
            assert decision.code is Reason.QUARANTINED
            self.open(self.now)
            return decision
        return decision if isinstance(decision, OpenGate) else None

    @property
    def charged(self) -> int:
        """Restarts that the budget has paid for."""
        return self.view.budget.charged

    def left_s(self, host: str) -> float:
        """How long the newest documents keep a host out."""
        return next((one.left_s for one in self.view.budget.hosts if one.host == host), 0.0)


def kept_out(job: Story, failing: str = "b") -> FormGeneration:
    """`failing` fails so often that it is kept out."""
    for _ in range(QUARANTINE_AFTER - 1):
        assert isinstance(job.fail(failing), OpenGate)
    form = job.fail(failing)
    assert isinstance(form, FormGeneration)
    return form


# --- who is kept out ----------------------------------------------------------------------------------------------


def test_a_host_whose_workers_alone_fail_twice_in_a_row_without_progress_is_kept_out() -> None:
    form = kept_out(Story())
    assert nodes_of(form) == ["a", "c"]
    assert form.generation.why is ChangeReason.QUARANTINED
    assert form.reason == "host-b is quarantined for 60 s: its workers failed 2 times in a row (exit code 1)"


def test_a_spare_takes_its_place() -> None:
    job = Story("a b", np="2:2")
    job.join("c")
    assert nodes_of(kept_out(job)) == ["a", "c"]


def test_also_for_failures_of_the_machine_and_then_with_their_name() -> None:
    job = Story()
    job.fail("b", failure=FailureClass.MACHINE, why="address in use")
    form = job.fail("b", failure=FailureClass.MACHINE, why="address in use")
    assert isinstance(form, FormGeneration)
    assert form.reason.endswith("its workers failed 2 times in a row (address in use)")


def test_progress_between_two_failures_begins_a_new_row() -> None:
    job = Story()
    assert isinstance(job.fail("b", step=5), OpenGate)
    assert isinstance(job.fail("b", step=9), OpenGate)
    assert isinstance(job.fail("b", step=9), FormGeneration), "no step since the last failure"


def test_the_echo_of_another_failure_and_a_wish_for_a_restart_blame_no_host() -> None:
    job = Story()
    for _ in range(2):
        job.fail("b", failure=FailureClass.SECONDARY)
    assert job.view.budget.hosts == ()
    job.fail("b", code=101, failure=FailureClass.RESTART_REQUESTED)
    assert job.view.budget.hosts == ()


def test_failures_beside_a_loss_blame_no_host() -> None:
    job = Story()
    job.failed("b")
    job.stopped("a")
    job.vanish("c")
    job.form(1, Reason.LOST)
    job.open(2)
    assert job.view.budget.hosts == ()


def test_a_node_that_was_started_again_is_still_on_its_host() -> None:
    """And so is another node of the same machine."""
    job = Story()
    kept_out(job)
    job.vanish("b")
    job.join("again", host="host-b")
    assert job.wait(job.now + 10, Reason.TRAINING).reason.endswith("1 spare; host-b is quarantined for 50 s more")


def test_every_node_of_a_machine_is_left_out_with_it() -> None:
    job = Job("1:4", join_window_s=0.0)
    job.join("a c")
    job.join("b1 b2", host="machine")
    job.form(0, Reason.FORMED)
    for now in (1, 2):
        job.ended("b1", OutcomeKind.FAILED, exits=(worker_exit(2),), host="machine")
        job.stopped("a c b2")
        job.form(now, Reason.FAILED)
        job.write(decision := job.decide(now))
        assert isinstance(decision, OpenGate if now == 1 else FormGeneration)
    assert nodes_of(decision) == ["a", "c"]  # type: ignore[arg-type]


# --- when nobody is -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "np"), [("a", "1:3"), ("a b", "2:2"), ("a b c", "3:3")])
def test_nobody_is_kept_out_where_the_job_could_not_run_without_it(nodes: str, np: str) -> None:
    job = Story(nodes, np=np)
    for _ in range(3):
        assert isinstance(job.fail("a"), OpenGate)
    assert job.fail("a") is None, "no restart is left"


def test_a_host_that_fails_alone_gives_way_to_a_spare_and_is_cleared_when_that_one_fails_too() -> None:
    job = Story("a", np="1")
    job.join("spare")
    assert nodes_of(kept_out(job, "a")) == ["spare"]
    assert job.charged == 2
    assert isinstance(job.fail("spare"), OpenGate)
    assert job.left_s("host-a") == 0.0
    assert job.charged == 3


def test_a_failure_of_all_hosts_is_the_scripts_fault() -> None:
    job = Story()
    for _ in range(3):
        assert isinstance(job.fail("a b c"), OpenGate)
    assert job.fail("a b c") is None


def test_a_failure_that_moves_to_another_host_is_the_scripts_fault() -> None:
    """As it does when rank 0 fails, wherever it runs."""
    job = Story()
    kept_out(job, "a")
    assert (job.charged, job.left_s("host-a")) == (2, COOLDOWN_S)
    assert isinstance(job.fail("b"), OpenGate)
    assert (job.charged, job.left_s("host-a")) == (3, 0.0)
    assert job.fail("b") is None, "the fourth failure ends the job, as it would have without this"


def test_one_of_three_hosts_can_be_blamed_in_a_row() -> None:
    job = Story("a b c d e f", np="1:6", restarts_max=9)
    kept_out(job, "b")
    assert nodes_of(kept_out(job, "c")) == ["a", "d", "e", "f"]
    assert isinstance(job.fail("d"), OpenGate)
    assert (job.left_s("host-b"), job.left_s("host-c"), job.charged) == (0.0, 0.0, 5)


def test_nobody_is_with_a_cooldown_of_0() -> None:
    job = Story(host_cooldown_s=0.0)
    for _ in range(3):
        assert isinstance(job.fail("b"), OpenGate)
    assert job.view.budget.hosts == ()
    assert job.fail("b") is None


def test_a_parameter_server_job_keeps_no_host_out() -> None:
    ends = [Outcome(ended=OutcomeKind.FAILED, over=True, host="h", exits=(worker_exit(),))]
    spec = JobSpec(np=Np(1, 3, 1), slots=1, mode=JobMode.PS)
    stored = {"a": StoredDocument(ends[0], 1, 1)}
    assert (
        judge(
            Predecessor(1, ("a",), ChangeReason.FAILURE), stored, frozenset(), Budget(), spec, healthy=False
        ).budget.hosts
        == ()
    )


# --- for how long -------------------------------------------------------------------------------------------------


def test_after_its_cooldown_it_is_a_newcomer() -> None:
    job = Story()
    kept_out(job)
    wait = job.wait(job.now, Reason.TRAINING)
    assert wait.until == job.now + COOLDOWN_S
    assert wait.reason == "training with 2 nodes, 1 spare; host-b is quarantined for 60 s more"
    assert wait.reason_at(wait.ends[0] - 9.0) == "training with 2 nodes, 1 spare; host-b is quarantined for 9 s more"
    assert wait.until is not None
    form = job.form(wait.until, Reason.SCALED_UP)
    assert nodes_of(form) == ["a", "c", "b"]
    assert form.reason == "b joins"


def come_back(job: Story) -> None:
    """The cooldown of host-b ends, and it is taken in again; the job made progress meanwhile, without b."""
    until = max(job.memory.quarantine_deadlines.values())
    job.now = max(until, job.now + 100)
    job.form(job.now, Reason.SCALED_UP)
    job.stopped("a c", step=int(job.now))
    job.open(job.now)


def test_each_further_time_one_failure_is_enough_and_it_lasts_twice_as_long() -> None:
    job = Story(scale_up_interval_s=0.0)
    kept_out(job)
    lengths = []
    for _ in range(6):
        come_back(job)
        form = job.fail("b", step=int(job.now))
        assert isinstance(form, FormGeneration), "one failure is enough"
        lengths.append(job.left_s("host-b"))
    assert lengths == [120, 240, 480, 960, QUARANTINE_MAX_S, QUARANTINE_MAX_S]
    assert isinstance(form, FormGeneration)
    assert form.reason == "host-b is quarantined for 30 min: its workers failed again (exit code 1)"
    assert job.charged == 3, "a broken host never takes the last restart: the job goes on without it"


def ends(*failing: str) -> list[Outcome]:
    """Of three hosts, of which these fail."""
    kinds = {host: OutcomeKind.FAILED if host in failing else OutcomeKind.STOPPED for host in ("h1", "h2", "h3")}
    return [
        Outcome(ended=kind, over=True, host=host, exits=(worker_exit(),) if host in failing else ())
        for host, kind in kinds.items()
    ]


def test_that_others_did_not_reach_a_host_is_no_failure_of_its_workers() -> None:
    back = Quarantine("h1", times=1, g=1, words="h2 cannot connect to it", unreachable=True)
    first = blame([back], ends("h1"))
    assert first.suspects == ()
    assert first.hosts == (Quarantine("h1", failures=1, g=1, words="exit code 1"),)
    assert blame(first.hosts, ends("h1")).suspects == ("h1",)


def test_a_host_that_others_do_not_reach_stays_quarantined_whoever_fails_meanwhile() -> None:
    out = Quarantine("h1", times=1, g=1, left_s=40.0, words="h2 cannot connect to it", unreachable=True)
    both = blame([out], ends("h1", "h2"))
    assert both.suspects == ()
    assert next(one for one in both.hosts if one.host == "h1") == msgspec.structs.replace(out, failures=1)


def test_a_host_that_took_part_in_progress_is_like_any_other_again() -> None:
    job = Story(scale_up_interval_s=0.0)
    kept_out(job)
    come_back(job)
    job.vanish("a")
    job.stopped("b c", step=1000)
    job.form(job.now, Reason.LOST)
    job.open(job.now)
    assert job.view.budget.hosts == ()


def test_a_new_proposer_goes_on_with_what_the_documents_say_is_left() -> None:
    job = Story()
    kept_out(job)
    job.decide(job.now)
    job.vanish("a")
    job.stopped("c")
    job.form(job.now + 20, Reason.LOST)
    job.open(job.now + 20)
    assert job.left_s("host-b") == COOLDOWN_S - 20
    job.memory = DecisionMemory()  # Another agent, which has just come and has another clock.
    assert job.wait(1000, Reason.TRAINING).until == 1000 + COOLDOWN_S - 20


def test_it_comes_back_at_once_when_the_job_cannot_run_without_it_any_more() -> None:
    job = Story("a b c", np="2:3")
    kept_out(job)
    job.decide(job.now)
    job.vanish("a")
    job.stopped("c")
    assert nodes_of(job.form(job.now + 1, Reason.LOST)) == ["c", "b"]
    job.open(job.now + 1)
    assert job.left_s("host-b") == 0.0


def test_a_new_run_of_the_job_begins_with_every_host() -> None:
    job = Story()
    kept_out(job)
    assert job.view.spec is not None
    again = msgspec.structs.replace(job.spec, run=2)
    job.view = replace(job.view, spec=replace(job.view.spec, value=again))
    assert nodes_of(job.form(job.now, Reason.FORMED)) == ["a", "b", "c"]


def test_the_job_can_end_while_a_host_is_kept_out() -> None:
    job = Story()
    kept_out(job)
    job.ok("a c")
    job.conclude(job.now, Reason.COMPLETED)


# --- who pays -----------------------------------------------------------------------------------------------------


def test_a_failure_for_which_a_host_is_kept_out_is_charged_once_like_any_other() -> None:
    job = Story()
    job.fail("b")
    assert job.charged == 1
    job.fail("b")
    assert job.charged == 2
    assert job.view.go is not None
    assert job.view.go.value.note == "host-b is quarantined; 2 of 3 restarts used"
    assert job.view.go.value.cause is not None
    assert job.view.go.value.cause.host == "host-b"


def test_a_host_is_kept_out_before_the_budget_ends_the_job() -> None:
    job = Story(restarts_max=1)
    assert isinstance(kept_out(job), FormGeneration)


def test_without_any_restart_the_first_failure_still_ends_the_job() -> None:
    assert Story(restarts_max=0).fail("b") is None


# --- limits and words ---------------------------------------------------------------------------------------------


def test_only_so_many_hosts_are_remembered_and_those_of_the_row_first() -> None:
    old = tuple(Quarantine(f"old-{number}", times=1) for number in range(HOSTS_MAX))
    ends = [
        Outcome(ended=OutcomeKind.FAILED, over=True, host=f"host-{number}", exits=(worker_exit(),))
        for number in range(40)
    ]
    found = blame(old, ends)
    assert len(found.hosts) == HOSTS_MAX
    assert all(one.failures for one in found.hosts)
    assert found.suspects == ()


def test_a_host_without_a_readable_name_is_not_blamed() -> None:
    ends = [Outcome(ended=OutcomeKind.FAILED, over=True, host=host, exits=(worker_exit(),)) for host in ("", "x" * 300)]
    assert blame((), ends).hosts == ()


def test_times_are_told_in_words() -> None:
    assert [duration_in_words(seconds) for seconds in (0.2, 60, 119, 120, 1800)] == [
        "1 s",
        "60 s",
        "119 s",
        "2 min",
        "30 min",
    ]
    assert clock_time(86_400 * 20_000 + 45_296.7) == "12:34:56"


def test_a_host_that_the_job_cannot_do_without_after_all_is_taken_back_and_charged_once() -> None:
    """Another node is lost before the generation that leaves it out has started."""
    story = Story(np="2:3")
    story.fail("c")
    story.fail_and_leave_out("c")
    story.vanish("b")
    assert nodes_of(story.form(story.now, Reason.GATE_LEFT)) == ["a", "c"]
    opened = story.open(story.now)
    assert opened.go.note == "host-c was quarantined; 2 of 3 restarts used"
    assert (opened.go.budget.charged, opened.go.budget.hosts[0].left_s) == (2, 0.0)


def test_a_host_that_is_kept_out_costs_no_more_restarts_than_the_job_has() -> None:
    story = Story(np="2:3", restarts_max=1)
    story.fail("c")
    story.fail_and_leave_out("c")
    opened = story.open(story.now)
    assert (opened.go.note, opened.go.budget.charged) == ("host-c is quarantined; 1 of 1 restarts used", 1)


def test_a_cooldown_that_ends_at_the_gate_does_not_charge_the_failure_again() -> None:
    story = Story()
    story.fail("c")
    story.fail_and_leave_out("c")
    story.decide(story.now)
    story.vanish("b")
    story.form(story.now + COOLDOWN_S + 1, Reason.GATE_LEFT)
    assert story.open(story.now + COOLDOWN_S + 2).go.note == "host-c was quarantined; 2 of 3 restarts used"
