"""A drain with a deadline: how long the workers of a node have whose machine is taken back, and how it leaves."""

from __future__ import annotations

from elastic.core.agent.actions import StopWorkers
from elastic.core.agent.events import DrainRequested
from elastic.core.agent.leaving import DRAIN_PATIENCE_S
from elastic.core.agent.state import DEADLINE_SPARE_S
from elastic.core.membership.decision import Reason
from elastic.core.model import ChangeReason, MemberState, OutcomeKind, Predecessor
from tests.support.agent_harness import Bench, done, joining, running, spare
from tests.support.job_transcript import Job, nodes_of

BOTH = Predecessor(1, ("a", "b"), ChangeReason.DRAIN)
WHY = "AWS reclaims this machine at 12:03:44 UTC"


def notice(in_s: float) -> DrainRequested:
    """The machine of this node goes at this time of the bench's clock."""
    return DrainRequested(4, WHY, in_s)


def stops(bench: Bench) -> list[tuple[float, bool]]:
    """The seconds between SIGTERM and SIGKILL of each stop, and whether it is planned."""
    return [(stop.stop_timeout_s, stop.planned) for stop in bench.every(StopWorkers)]


def test_a_node_whose_machine_is_taken_back_tells_the_others_why_it_drains() -> None:
    bench = running()
    bench.tell(notice(120.0))
    own = bench.shelf.view.members["b"].value
    assert (own.state, own.drain_reason) == (MemberState.DRAINING, WHY)


def test_a_node_that_nobody_heard_drain_says_so_while_its_workers_save_once_the_store_is_back() -> None:
    bench = running(lease_ttl_s=30.0)
    bench.offline = True
    bench.tell(notice(120.0))
    bench.at(DRAIN_PATIENCE_S)
    assert stops(bench) == [(15.0, True)]
    assert bench.shelf.view.members["b"].value.state is MemberState.READY
    bench.offline = False
    bench.look()
    own = bench.shelf.view.members["b"].value
    assert (own.state, own.drain_reason) == (MemberState.DRAINING, WHY)
    assert len(stops(bench)) == 1


def test_the_sentence_of_a_drain_names_each_reason_once_and_not_too_many() -> None:
    job = Job("1:5")
    job.run("a b c d e")
    job.drain("b c", WHY)
    job.drain("d", "x" * 500)
    job.drain("e")
    form = job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    assert form.reason == f"b, c, d, e drain: {WHY}; {'x' * 120}; and 1 more"


def test_the_workers_of_a_drained_node_get_no_more_time_than_its_deadline_leaves() -> None:
    bench = running()
    bench.tell(notice(10.0))
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    assert stops(bench) == [(7.0, True)]


def test_a_deadline_that_is_far_leaves_the_workers_their_grace() -> None:
    bench = running()
    bench.tell(notice(120.0))
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    assert stops(bench) == [(15.0, True)]


def test_workers_that_still_save_are_ended_3_s_before_the_deadline_and_the_node_leaves_with_4() -> None:
    bench = running()
    bench.tell(notice(30.0))
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    for second in range(1, 27):
        bench.now = float(second)
        bench.refreshed()
    assert bench.core.wake_at == 30.0 - DEADLINE_SPARE_S
    bench.at(27.0)
    assert stops(bench)[-1] == (0.0, False)
    bench.at(27.5)
    assert len(stops(bench)) == 2
    bench.gone(step=9)
    outcome = bench.outcomes[1]
    assert (outcome.ended, outcome.over, outcome.forced, outcome.step) == (OutcomeKind.STOPPED, True, True, 9)
    assert bench.exit_code == 4
    assert bench.lines[-1] == f"left ({WHY}); the job stays open"


def test_a_node_wakes_in_time_for_its_deadline() -> None:
    bench = running()
    bench.now = 1.0
    bench.tell(notice(5.0))
    assert bench.core.wake_at == 1.5
    bench.at(1.5)
    assert stops(bench) == [(0.5, True)]
    assert bench.core.wake_at == 2.0


def test_workers_that_end_in_time_are_not_ended_again() -> None:
    bench = running()
    bench.tell(notice(10.0))
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    bench.gone(step=3)
    assert bench.exit_code == 4
    assert stops(bench) == [(7.0, True)]
    assert not bench.outcomes[1].forced


def test_a_deadline_that_is_over_ends_the_workers_at_once() -> None:
    bench = running()
    bench.now = 3.0
    bench.tell(notice(2.0))
    assert stops(bench) == [(0.0, True), (0.0, False)]
    assert bench.lines[-1] == f"deadline reached ({WHY}): killing this node's workers"


def test_a_node_without_workers_leaves_with_4_at_once() -> None:
    for bench in (spare(), joining(), done()):
        bench.tell(notice(120.0))
        assert bench.exit_code == 4


def test_a_notice_after_sigterm_shortens_the_time_and_keeps_the_exit_code() -> None:
    bench = running()
    bench.drain()
    bench.tell(notice(10.0))
    bench.tell(notice(20.0))
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    assert stops(bench) == [(7.0, True)]
    bench.gone()
    assert bench.exit_code == 143


def test_sigterm_after_a_notice_changes_nothing() -> None:
    bench = running()
    bench.tell(notice(10.0))
    bench.drain()
    bench.world(2, "a", why=ChangeReason.DRAIN, before=BOTH)
    assert stops(bench) == [(7.0, True)]
    bench.gone()
    assert bench.exit_code == 4


def test_who_ends_its_workers_before_all_have_saved_hurries_the_others() -> None:
    job = Job("1:3")
    job.run("a b c")
    job.drain("c")
    job.form(10, Reason.DRAINED, Reason.DRAIN_BATCH)
    job.stopped("c", forced=True)
    form = job.form(11, Reason.GATE_STOPPED)
    assert nodes_of(form) == ["a", "b"]
    assert (form.generation.why, form.reason) == (ChangeReason.STOPPED, "c had to end its workers before all had saved")
    job.wait(12, Reason.STOPPING)
