"""The report of a failure, and of a job that had ended."""

from __future__ import annotations

import msgspec

from elastic.core.model import Cause, FinalStatus, OtherFailure, Verdict, WorkerExit
from elastic.core.ps.model import Role
from launcher.text.failure_report import abort_line, ended_lines, failure_lines, secondary_line, stopped_worker_line

FIRST = WorkerExit(
    rank=2,
    code=-9,
    words="killed by SIGKILL, perhaps out of memory",
    log="log/workerlog.2",
    tail=("step 7", "step 8"),
)
SECOND = WorkerExit(rank=3, code=1, words="exit 1", log="log/workerlog.3")
ABORT = "ABORT!!! Out of all 8 trainers, the trainer process with rank=[2,3] was aborted. Please check its log."
CAUSE = Cause(g=4, host="10.0.0.5", node="10.0.0.5-ab12", exits=(FIRST, SECOND), ranks=(2, 3), world_size=8)


def verdict(status: FinalStatus, cause: Cause | None = None) -> Verdict:
    return Verdict(status=status, reason="all workers ended well", run=1, g=4, at=1000.0, cause=cause)


def test_the_sentence_about_the_failed_ranks_is_the_documented_one() -> None:
    assert abort_line(8, (2, 3)) == ABORT


def test_thousands_of_ranks_do_not_make_an_endless_sentence() -> None:
    assert len(abort_line(5000, range(5000))) < 400


def test_a_failure_says_where_who_how_which_log_and_its_last_lines() -> None:
    assert failure_lines(CAUSE) == [
        ABORT,
        "Root cause: rank 2 on host 10.0.0.5 (node 10.0.0.5-ab12): killed by SIGKILL, perhaps out of memory.",
        "Its log is log/workerlog.2 on host 10.0.0.5.",
        "On the same node: rank 3: exit 1, log log/workerlog.3.",
        "The last lines of rank 2's log:",
        "    step 7",
        "    step 8",
    ]


def test_a_failure_without_output_or_exits_still_has_a_report() -> None:
    silent = Cause(g=1, host="h", node="h-1", exits=(SECOND,), ranks=(3,), world_size=8)
    assert failure_lines(silent)[-1] == "Rank 3 wrote nothing to its log."
    empty = Cause(g=1, host="h", node="h-1", exits=(), ranks=(), world_size=8)
    assert failure_lines(empty) == ["Generation 1 failed on host h (node h-1)."]


def test_ranks_that_failed_on_other_nodes_are_named_with_their_hosts_and_logs() -> None:
    other = OtherFailure(5, "10.0.0.6", "exit 1", "/log/workerlog.5")
    cause = Cause(g=4, host="10.0.0.5", node="n", exits=(FIRST,), ranks=(2, 5), world_size=8, others=(other,))
    assert "rank=[2,5]" in failure_lines(cause)[0]
    assert "On host 10.0.0.6: rank 5: exit 1, log /log/workerlog.5." in failure_lines(cause)


def test_a_server_that_failed_is_called_a_server_and_not_counted_among_the_trainers() -> None:
    server = WorkerExit(rank=1, code=1, words="exit 1", log="/log/serverlog.1", role=Role.SERVER)
    made = Cause(g=4, host="h", node="n", exits=(server,), ranks=(), world_size=2)
    cause = msgspec.json.decode(msgspec.json.encode(made), type=Cause)
    assert failure_lines(cause) == [
        "ABORT!!! The parameter server with index=[1] was aborted. Please check its log.",
        "Root cause: server 1 on host h (node n): exit 1.",
        "Its log is /log/serverlog.1 on host h.",
        "Server 1 wrote nothing to its log.",
    ]
    assert secondary_line(cause) == "==== ended because server=[1] failed on host h, see serverlog.1 ===="


def test_a_trainer_and_a_server_that_failed_have_a_sentence_each() -> None:
    heter = OtherFailure(0, "h", "exit 1", role=Role.HETER)
    cause = Cause(g=4, host="h", node="n", exits=(FIRST,), ranks=(2,), world_size=2, others=(heter,))
    assert [line.partition(" was")[0] for line in failure_lines(cause)[:2]] == [
        "ABORT!!! Out of all 2 trainers, the trainer process with rank=[2]",
        "ABORT!!! The heterogeneous trainer with index=[0]",
    ]


def test_a_stopped_worker_reads_why() -> None:
    why = "because rank=[4] failed on host h, see workerlog.4"
    assert stopped_worker_line(why) == "==== stopped because rank=[4] failed on host h, see workerlog.4 ===="


def test_a_node_that_comes_late_reads_when_and_how_and_what_to_do() -> None:
    assert ended_lines(verdict(FinalStatus.COMPLETED), "j1", 1000.0 + 7300) == [
        "Job j1 completed 2 hours ago (run 1, generation 4): all workers ended well.",
        "To run it again, start it with --rerun; for another job, use another --job-id.",
    ]
    failed = ended_lines(verdict(FinalStatus.FAILED, CAUSE), "j1", 1000.0 - 50)
    assert failed[0].startswith("Job j1 failed just now")
    assert failed[1:-1] == failure_lines(CAUSE)
