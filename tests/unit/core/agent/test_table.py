"""One agent's life as transcripts: how it joins, waits, is chosen or passed over, and begins another run."""

from __future__ import annotations

from elastic.core.agent.actions import (
    CloseSession,
    LogLine,
    OpenSession,
    ReportFailure,
    ReportVerdict,
    SendTransaction,
    StartWorkers,
)
from elastic.core.agent.events import DrainRequested, NodePrepared
from elastic.core.agent.state import Phase
from elastic.core.model import Cause, ChangeReason, FinalStatus, OutcomeKind, Predecessor
from elastic.core.run_deadline import margin_s
from tests.support.agent_harness import Bench, gated, joining, running, spare, stopping
from tests.support.job_transcript import worker_exit
from tests.support.strategies import KEYS

TTL_S = 5.0
OWN_S = TTL_S - margin_s(TTL_S)
"""How long a node may run after a good refresh, by its own lease."""
BOTH = Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST)
CAUSE = Cause(g=1, host="host-a", node="a", exits=(worker_exit(),), ranks=(0,), world_size=2)

# --- whole lives --------------------------------------------------------------------------------------------------


def test_a_node_alone_joins_proposes_runs_completes_the_job_and_leaves() -> None:
    bench = Bench("a", "1")
    assert bench.phase is Phase.RUNNING
    assert bench.starts == [1]
    bench.exits(0)
    assert bench.rows == [
        "joining: registered",
        "spare: chosen",
        "gated: go",
        "running: ok",
        "done: verdict",
        "leaving: left",
    ]
    assert bench.lines == [
        "joined the job as a",
        "generation 1: 1 node, world size 1, this is M_id 0 (rank 0): 1 of 1 node is here",
    ]
    assert [report.verdict.status for report in bench.every(ReportVerdict)] == [FinalStatus.COMPLETED]
    assert bench.exit_code == 0
    assert not bench.registered


def test_a_node_asks_for_its_lease_and_registers_when_it_is_prepared() -> None:
    bench = Bench("a", "1", prepared=False)
    bench.at(2.0)
    assert len(bench.every(OpenSession)) == 1
    assert bench.every(SendTransaction) == []
    bench.tell(NodePrepared())
    assert bench.phase is Phase.RUNNING


def test_a_node_that_is_not_prepared_yet_can_leave() -> None:
    bench = Bench("a", "1", prepared=False)
    bench.tell(DrainRequested(143, "SIGTERM"))
    assert bench.exit_code == 143
    assert bench.every(SendTransaction) == []


def test_a_node_alone_restarts_its_failing_script_until_no_restart_is_left() -> None:
    bench = Bench("a", "1", restarts_max=2)
    for _ in range(3):
        assert bench.phase is Phase.RUNNING
        bench.exits(1)
        if bench.core.wake_at is not None:
            bench.at(bench.core.wake_at)  # The pause after failures without progress.
    assert bench.starts == [1, 2, 3]
    verdict = bench.every(ReportVerdict)[0].verdict
    assert (verdict.status, verdict.reason) == (FinalStatus.FAILED, "no restart is left (--max-restarts 2)")
    assert [report.note for report in bench.every(ReportFailure)] == ["restart 1 of 2", "restart 2 of 2"]
    assert bench.exit_code == 1


def test_a_member_is_chosen_runs_is_stopped_records_it_and_runs_again() -> None:
    bench = running()
    bench.world(2, "a b", why=ChangeReason.FAILURE, before=BOTH)
    assert bench.stops == [(1, 2.0)]
    bench.gone(step=40)
    assert bench.phase is Phase.GATED
    assert (bench.outcomes[1].ended, bench.outcomes[1].over, bench.outcomes[1].step) == (OutcomeKind.STOPPED, True, 40)
    bench.go(2)
    assert bench.starts == [1, 2]


def test_a_node_that_was_lost_and_comes_back_is_a_spare_of_the_world_without_it() -> None:
    bench = running()
    bench.offline = True
    bench.at(OWN_S)
    bench.gone()
    assert bench.stops == [(1, 0.0)]
    bench.shelf.delete(KEYS.member("b"))
    bench.world(2, "a", before=BOTH)
    bench.offline = False
    bench.look()
    bench.at(20)
    assert bench.phase is Phase.SPARE
    assert bench.registered
    assert bench.outcomes[1].forced


# --- joining ------------------------------------------------------------------------------------------------------


def test_nothing_is_asked_of_the_store_before_it_was_seen() -> None:
    bench = joining()
    bench.at(10)
    assert bench.asked == []


def test_a_lease_that_cannot_be_had_is_asked_for_again_after_a_pause() -> None:
    bench = joining()
    bench.offline = False
    bench.others("a")
    bench.shelf.put(KEYS.events + "1", "anything")
    assert bench.phase is Phase.SPARE
    bench.offline = True
    bench.expire()
    asked = len(bench.every(OpenSession))
    bench.at(0.4)
    assert len(bench.every(OpenSession)) == asked
    bench.offline = False
    bench.at(0.5)
    assert len(bench.every(OpenSession)) == asked + 1
    assert bench.registered


def test_the_lease_has_the_time_that_the_jobs_spec_says() -> None:
    bench = Bench(after="a", lease_ttl_s=9.0)
    assert bench.every(OpenSession) == [OpenSession(9.0)]


def test_a_node_that_comes_late_reports_the_verdict_and_exits_by_it() -> None:
    for status, code in ((FinalStatus.COMPLETED, 0), (FinalStatus.FAILED, 1)):
        bench = joining()
        bench.offline = False
        bench.verdict(status)
        assert [report.late for report in bench.every(ReportVerdict)] == [True]
        assert bench.exit_code == code
        assert not bench.registered


def test_a_node_that_is_refused_says_why_and_exits_with_3_and_gives_its_lease_back() -> None:
    bench = Bench(after="a", slots=2)
    assert bench.phase is Phase.SPARE
    late = joining(node="c", slots=4)
    late.shelf = bench.shelf
    late.offline = False
    late.look()
    late.at(1)
    assert late.exit_code == 3
    assert late.lines == [
        "node c runs 4 workers, job j1 runs 2 on every node; use --nproc-per-node 2, or as many GPUs with --gpus"
    ]
    assert [(line.final, line.warn) for line in late.every(LogLine)] == [(True, False)]
    assert len(late.every(CloseSession)) == 1


def test_a_node_that_gives_up_waiting_exits_with_4_and_writes_no_verdict() -> None:
    bench = spare(join_timeout_s=10.0)
    bench.at(9.9)
    assert bench.phase is Phase.SPARE
    bench.at(10)
    assert bench.exit_code == 4
    assert (
        bench.lines[-1] == "no generation with this node formed in 10 s (--join-timeout); exiting, the job stays open"
    )
    assert bench.shelf.view.verdict is None
    assert not bench.registered


def test_a_spare_of_a_job_that_trains_does_not_give_up() -> None:
    bench = gated(join_timeout_s=10.0)
    bench.world(2, "a")
    bench.go(2)
    assert bench.phase is Phase.SPARE
    bench.at(100)
    assert bench.phase is Phase.SPARE


def test_a_node_without_a_join_timeout_waits_for_ever() -> None:
    bench = spare()
    bench.at(1e9)
    assert bench.phase is Phase.SPARE


# --- another run --------------------------------------------------------------------------------------------------


def finished(**options: object) -> Bench:
    """A node that was told to begin another run finds a job that has ended."""
    bench = joining(**options)
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.offline = False
    bench.verdict(FinalStatus.FAILED)
    return bench


def test_rerun_replaces_a_verdict_that_was_there_before_when_nobody_lives() -> None:
    bench = finished(rerun=True, np="1", watch_first=True)
    assert bench.shelf.view.verdict is None
    assert bench.shelf.view.spec is not None
    assert bench.shelf.view.spec.value.run == 2
    bench.wake()
    assert bench.phase is Phase.RUNNING
    assert "--rerun: run 2 of the job begins" in bench.lines


def test_rerun_waits_for_a_member_that_may_just_be_leaving_and_then_reads_the_verdict() -> None:
    bench = joining(rerun=True)
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.shelf.put(KEYS.member("a"), bench.facts.me.member, leased=True)
    bench.offline = False
    bench.verdict(FinalStatus.FAILED)
    assert bench.phase is Phase.JOINING
    bench.at(9.9)
    assert bench.phase is Phase.JOINING
    bench.at(10)
    assert bench.exit_code == 1


def test_rerun_begins_as_soon_as_the_last_member_has_left() -> None:
    bench = joining(rerun=True, np="1", watch_first=True)
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.shelf.put(KEYS.member("a"), bench.facts.me.member, leased=True)
    bench.offline = False
    bench.verdict(FinalStatus.COMPLETED)
    bench.shelf.delete(KEYS.member("a"))
    bench.at(1)
    assert bench.phase is Phase.RUNNING


def test_rerun_does_not_replace_a_verdict_that_came_after_this_nodes_start() -> None:
    bench = joining(rerun=True)
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.facts.store.first_revision = bench.shelf.core.revision
    bench.offline = False
    bench.verdict(FinalStatus.COMPLETED)
    assert bench.exit_code == 0
    assert bench.shelf.view.verdict is not None


def test_rerun_of_a_job_that_has_not_ended_is_a_plain_join() -> None:
    bench = spare(rerun=True)
    assert bench.shelf.view.spec is not None
    assert bench.shelf.view.spec.value.run == 1


# --- waiting, and being passed over -------------------------------------------------------------------------------


def test_a_spare_says_that_it_is_one_and_what_it_is_for() -> None:
    bench = gated(np="1:2")
    bench.world(2, "a c")
    assert bench.phase is Phase.SPARE
    assert bench.lines[-1] == "spare: generation 2 runs without this node, which takes over when another node fails"


def test_a_node_outside_a_world_that_has_room_for_it_says_that_it_joins() -> None:
    bench = gated(np="1:3")
    bench.world(2, "a c")
    assert bench.lines[-1] == "spare: generation 2 runs without this node, which joins at the next start"


def test_a_node_says_which_ranks_it_has() -> None:
    bench = gated(slots=4)
    assert (
        bench.lines[-1]
        == "generation 1: 2 nodes of 4 workers, world size 8, this is M_id 1 (ranks 4-7): because of first"
    )


def test_the_go_of_another_generation_starts_nothing() -> None:
    bench = gated()
    bench.go(2)
    bench.world(3, "a b")
    assert bench.starts == []


def test_a_go_without_the_right_to_run_starts_nothing_until_the_lease_is_refreshed() -> None:
    bench = gated()
    bench.now = OWN_S
    bench.go(1)
    assert bench.starts == []
    bench.refreshed()
    assert bench.starts == [1]


def test_the_start_names_the_place_the_go_and_the_store() -> None:
    start = running().every(StartWorkers)[0]
    assert (start.generation.g, start.go.master, start.m_id, start.incarnation) == (1, "host-a:7000", 1, "i1")


def test_a_node_that_missed_its_go_says_so_to_the_gate_of_the_next_generation() -> None:
    bench = gated()
    bench.world(2, "a b", before=BOTH)
    assert (bench.outcomes[1].ended, bench.outcomes[1].over) == (OutcomeKind.STOPPED, True)
    bench.go(2)
    assert bench.starts == [2]


def test_a_go_that_comes_late_for_a_generation_that_was_given_up_starts_nothing() -> None:
    bench = gated()
    bench.world(2, "a b", before=BOTH)
    bench.go(1)
    assert bench.starts == []


def test_the_failure_before_is_reported_once_on_every_node_with_what_it_cost() -> None:
    bench = stopping()
    bench.gone()
    bench.go(2, cause=CAUSE)
    bench.look()
    assert bench.every(ReportFailure) == [ReportFailure(CAUSE, "note")]


def test_a_node_that_joins_later_does_not_report_an_older_failure() -> None:
    bench = Bench(offline=True)
    bench.offline = False
    bench.others("a")
    assert bench.phase is Phase.SPARE
    bench.world(5, "a")
    bench.unregister()
    assert bench.every(ReportFailure) == []
