"""What the proposer decides once an operator has stopped the job."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic.core.membership.decision import Reason
from elastic.core.membership.situation import RETURN_S
from elastic.core.model import ChangeReason, FinalStatus, StopOrder
from elastic.core.view import StoredDocument
from tests.support.job_transcript import Job, nodes_of

REASON = "elastic-ctl stop by me@desk"


def halt(job: Job, run: int = 1) -> None:
    """An operator stops this run."""
    job.revision += 1
    stored = StoredDocument(StopOrder(run=run, reason=REASON), job.revision, job.revision)
    job.view = replace(job.view, revision=job.revision, halt=stored)


def halted(nodes: str = "a b", np: str = "1:3") -> Job:
    """A job that trained, and was stopped: its members have been asked to save."""
    job = Job(np)
    job.run(nodes)
    halt(job)
    job.form(10, Reason.HALTED)
    return job


def ends_as(job: Job, now: float, status: FinalStatus = FinalStatus.STOPPED) -> None:
    decision = job.conclude(now, Reason.HALTED if status is FinalStatus.STOPPED else Reason.COMPLETED)
    assert (decision.status, decision.run) == (status, 1)


def test_workers_that_run_are_asked_to_save_by_an_empty_world() -> None:
    job = Job("2")
    job.run("a b")
    halt(job)
    formed = job.form(10, Reason.HALTED)
    assert (nodes_of(formed), formed.generation.why, formed.reason, formed.planned) == (
        [],
        ChangeReason.STOP,
        REASON,
        True,
    )
    assert formed.generation.before is not None
    assert formed.generation.before.nodes == ("a", "b")


def test_the_verdict_follows_when_every_member_has_stopped() -> None:
    job = halted()
    assert job.wait(11, Reason.STOPPING).reason == f"{REASON}; waiting for a, b to stop their workers"
    job.stopped("b")
    assert job.wait(11, Reason.STOPPING).reason == f"{REASON}; waiting for a to stop its workers"
    job.stopped("a")
    ends_as(job, 12)


def test_a_job_that_has_no_world_yet_ends_at_once() -> None:
    job = Job("2")
    job.join("a")
    halt(job)
    ends_as(job, 1)


def test_a_newcomer_is_taken_in_no_more() -> None:
    job = halted()
    job.join("c")
    job.wait(100, Reason.STOPPING)


@pytest.mark.parametrize("how", ["failed", "forced", "lost"])
def test_who_cannot_save_with_the_others_is_not_waited_for(how: str) -> None:
    job = halted()
    if how == "failed":
        job.failed("b", over=False)
    elif how == "forced":
        job.stopped("b", forced=True)
    else:
        job.vanish("b")
    ends_as(job, 11)


def test_a_member_that_has_saved_may_be_lost_meanwhile() -> None:
    job = halted()
    job.stopped("b")
    job.vanish("b")
    job.wait(11, Reason.STOPPING)


def test_a_member_without_a_key_that_is_still_heard_is_waited_for() -> None:
    job = halted("a b c")
    job.hear("b c")
    job.vanish("b")
    job.stopped("a c")
    assert job.wait(11, Reason.STOPPING).until == 11 + 2 * job.spec.lease_ttl_s
    job.hear("c")
    ends_as(job, 12)


def test_while_leases_return_nobody_is_asked_yet() -> None:
    job = Job("2")
    job.run("a b")
    job.vanish("b", heard=False)
    halt(job)
    assert job.wait(10, Reason.RETURNING).reason == f"{REASON}; waiting for b to register again"


def test_who_lost_its_lease_while_it_saves_is_waited_for_as_long_as_it_may_come_back() -> None:
    job = halted()
    job.vanish("b", heard=False)
    assert job.wait(11, Reason.STOPPING).until == 11 + RETURN_S
    ends_as(job, 11 + RETURN_S)


def test_a_job_whose_workers_all_ended_well_has_completed() -> None:
    job = halted()
    job.ok("a b")
    ends_as(job, 11, FinalStatus.COMPLETED)


def test_where_some_ended_well_the_others_may_end_so_too() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("b")
    halt(job)
    formed = job.form(10, Reason.HALTED)
    assert (formed.planned, formed.unfinished) == (False, ("a",))
    job.wait(11, Reason.STOPPING)
    job.ok("a")
    ends_as(job, 12, FinalStatus.COMPLETED)


def test_a_world_that_waits_at_the_gate_starts_no_more() -> None:
    job = Job("1:3")
    job.run("a b")
    job.drain("b")
    job.decide(10)
    job.form(11, Reason.DRAINED)
    halt(job)
    job.wait(12, Reason.STOPPING)
    job.stopped("a b")
    ends_as(job, 13)


def test_what_was_said_of_another_run_counts_no_more() -> None:
    job = Job("2")
    job.run("a b")
    halt(job, run=2)
    job.wait(10, Reason.TRAINING)
