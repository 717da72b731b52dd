"""What people are told about a job, from nothing but what stands in the store."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from elastic.core.decide import RESTORE
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyValue
from elastic.core.model import (
    Budget,
    Cause,
    ChangeReason,
    FinalStatus,
    Go,
    JobMode,
    Leader,
    MemberState,
    Np,
    Outcome,
    OutcomeKind,
    Predecessor,
    Quarantine,
    SavedCheckpoint,
    Verdict,
    WorkerExit,
)
from elastic.core.ps.model import ClusterSpec, PsJobSpec, PsLayout, Role, Task, TaskMember
from elastic.core.view import StoredDocument, encode
from elastic.core.view_reader import ViewReader
from launcher.config.readers import np as read_np
from launcher.job.status import JobStatus, NodeState, describe
from launcher.job.status_text import COLUMNS, cells, head_lines
from tests.support.job_status import SPEC, generation, member, view

EXIT = WorkerExit(rank=3, code=-9, words="killed by SIGKILL, perhaps out of memory", log="log/workerlog.3")
OK = Outcome(ended=OutcomeKind.OK, over=True, host="h")
STOPPED = Outcome(ended=OutcomeKind.STOPPED, over=True, host="h")
FAILING = Outcome(ended=OutcomeKind.FAILED, over=False, host="h", exits=(EXIT,))
FAILED = Outcome(ended=OutcomeKind.FAILED, over=True, host="h", exits=(EXIT,))


def states(status: JobStatus) -> dict[str, str]:
    return {node.node: str(node.state) for node in status.nodes}


def text(status: JobStatus, wall: float = 1000.0) -> str:
    return "\n".join(head_lines(status, wall))


# A job that runs


def test_members_stand_in_their_order_with_their_ranks_and_spares_come_after_them_by_age() -> None:
    status = describe(view("c-1", "a-1", "b-1", "d-1", newest=generation(4, "a-1", "b-1"), go=4), "j")
    assert [cells(node, None) for node in status.nodes] == [
        ("0", "a-1", "a", "0-1", "running", "-", "-", "-", ""),
        ("1", "b-1", "b", "2-3", "running", "-", "-", "-", ""),
        ("-", "c-1", "c", "-", "spare", "-", "-", "-", ""),
        ("-", "d-1", "d", "-", "spare", "-", "-", "-", ""),
    ]
    assert len(cells(status.nodes[0], None)) == len(COLUMNS)
    assert [node.ranks for node in status.nodes] == [(0, 1), (2, 3), (), ()]


def test_one_line_says_generation_why_run_np_world_size_and_restarts() -> None:
    status = describe(view("a-1", "b-1", newest=generation(4, "a-1", "b-1", why=ChangeReason.NODE_LOST), go=4), "j")
    assert head_lines(status, 0.0)[0] == (
        "Job j: generation 4 (node lost: so it is), run 1, np 1:3, world size 4, 2 of 3 restarts used"
    )


def test_a_job_of_torchrun_shows_no_restarts_because_each_of_its_agents_counts_its_own() -> None:
    spec = msgspec.structs.replace(SPEC, mode=JobMode.TORCHRUN)
    status = describe(view("a-1", spec=spec, newest=generation(4, "a-1"), go=4), "j")
    assert head_lines(status, 0.0)[0] == "Job j: generation 4 (first: so it is), run 1, np 1:3, world size 2"


@pytest.mark.parametrize("leader", ["a-1", "b-1", "c-1"])
def test_the_next_line_is_the_sentence_of_the_leader_and_names_it_whether_it_is_a_member_or_not(leader: str) -> None:
    status = describe(view("b-1", "a-1", "c-1", newest=generation(1, "a-1", "b-1"), go=1, leader=leader), "j")
    assert status.leader == leader
    assert head_lines(status, 0.0)[1].startswith(f"Leader {leader}: ")


def test_while_no_node_leads_the_next_line_names_none() -> None:
    status = describe(view("b-1", "a-1", newest=generation(1, "a-1", "b-1"), go=1), "j")
    assert status.leader is None
    assert head_lines(status, 0.0)[1:] == ["training with 2 nodes"]


@pytest.mark.parametrize(
    ("outcome", "state", "note"),
    [
        (OK, NodeState.DONE, "ok"),
        (STOPPED, NodeState.DONE, "stopped"),
        (FAILING, NodeState.STOPPING, "failed: rank 3: killed by SIGKILL, perhaps out of memory"),
        (FAILED, NodeState.DONE, "failed: rank 3: killed by SIGKILL, perhaps out of memory"),
    ],
)
def test_an_outcome_tells_how_the_workers_of_a_node_ended(outcome: Outcome, state: NodeState, note: str) -> None:
    status = describe(view("a-1", "b-1", newest=generation(1, "a-1", "b-1"), go=1, outcomes={(1, "b-1"): outcome}), "j")
    assert (status.nodes[1].state, status.nodes[1].note) == (state, note)


def test_a_member_that_is_no_longer_registered_is_lost_unless_its_outcome_is_there() -> None:
    world = generation(1, "a-1", "b-1", "c-1")
    status = describe(view("a-1", newest=world, go=1, outcomes={(1, "c-1"): OK}), "j")
    assert states(status) == {"a-1": "running", "b-1": "lost", "c-1": "done"}
    assert status.now == "about to form the next generation: b-1 was lost (its lease ended)"


def test_a_drain_is_shown_with_its_reason() -> None:
    leaving = member("b", MemberState.DRAINING, "SIGTERM")
    status = describe(view("a-1", leaving, newest=generation(1, "a-1", "b-1"), go=1), "j")
    assert (status.nodes[1].state, status.nodes[1].note) == (NodeState.DRAINING, "SIGTERM")


def test_an_outcome_of_an_older_generation_says_nothing_about_this_one() -> None:
    status = describe(view("a-1", newest=generation(3, "a-1"), go=3, outcomes={(2, "a-1"): STOPPED}), "j")
    assert states(status) == {"a-1": "running"}


# A generation at its gate


def test_at_the_gate_those_whose_old_workers_are_there_are_stopping_and_the_others_wait_for_the_go() -> None:
    before = Predecessor(1, ("a-1", "b-1", "c-1", "d-1"), ChangeReason.NODE_LOST)
    status = describe(
        view(
            "a-1",
            "b-1",
            "d-1",
            "e-1",
            newest=generation(2, "a-1", "b-1", "e-1", before=before, why=ChangeReason.NODE_LOST),
            go=1,
            outcomes={(1, "a-1"): STOPPED},
        ),
        "j",
    )
    assert states(status) == {
        "a-1": "at the barrier",
        "b-1": "stopping",
        "e-1": "at the barrier",
        "d-1": "stopping",
        "c-1": "lost",
    }
    assert status.restarts == 1
    assert "not started yet" in text(status)
    assert "waiting for b-1, d-1 to stop their old workers" in text(status)


def test_who_left_the_old_world_in_order_is_not_shown_any_more() -> None:
    before = Predecessor(1, ("a-1", "b-1"), ChangeReason.DRAIN)
    outcomes = {(1, "a-1"): STOPPED, (1, "b-1"): STOPPED}
    status = describe(view("a-1", newest=generation(2, "a-1", before=before), go=1, outcomes=outcomes), "j")
    assert states(status) == {"a-1": "at the barrier"}


def test_nobody_is_shown_as_lost_once_the_next_world_runs() -> None:
    before = Predecessor(1, ("a-1", "b-1"), ChangeReason.NODE_LOST)
    status = describe(view("a-1", newest=generation(2, "a-1", before=before), go=2), "j")
    assert states(status) == {"a-1": "running"}


def test_a_time_that_counts_from_this_look_is_marked() -> None:
    status = describe(view("a-1", spec=msgspec.structs.replace(SPEC, join_window_s=3.0)), "j")
    assert status.now == "1 of 3 nodes is here; waiting 3 s more for others to join (or less)"


@pytest.mark.parametrize("why", [ChangeReason.SCALE_UP, ChangeReason.FAILURE])
@pytest.mark.parametrize("join_window_s", [0.0, 30.0])
def test_when_a_node_joins_a_running_job_is_not_guessed(why: ChangeReason, join_window_s: float) -> None:
    """The leader remembers when the job grew; a failure since then does not change that."""
    spec = msgspec.structs.replace(
        SPEC, join_window_s=join_window_s, scale_up_interval_s=60.0, np=Np(low=1, high=4, first=1)
    )
    status = describe(view("a-1", "b-1", "c-1", spec=spec, newest=generation(3, "a-1", "b-1", why=why), go=3), "j")
    assert status.now == "c-1 joins after --join-window or --scale-up-interval; only the leader knows when"


def test_a_host_that_others_do_not_reach_is_not_said_to_join() -> None:
    out = Quarantine("c", times=1, g=2, words="a cannot connect to it", unreachable=True)
    listens = [msgspec.structs.replace(member(node), link=9000) for node in ("a-1", "b-1", "c-1")]
    shown = view(*listens, newest=generation(3, "a-1", "b-1", why=ChangeReason.QUARANTINED))
    go = Go(g=3, master="a:7000", budget=Budget(hosts=(out,)))
    status = describe(dataclasses.replace(shown, go=StoredDocument(go, 21, 21)), "j")
    assert status.now == "training with 2 nodes, 1 spare; c is quarantined until it can be reached"


# A job that does not run


def test_before_the_first_generation_every_node_is_ready_and_what_is_missing_is_told() -> None:
    status = describe(view("a-1", spec=msgspec.structs.replace(SPEC, np=Np(low=1, high=2, first=2)), leader="a-1"), "j")
    assert head_lines(status, 0.0) == [
        "Job j: no generation yet, run 1, np 2, 0 of 3 restarts used",
        "Leader a-1: 1 of 2 nodes is here; waiting for 1 more",
    ]
    assert states(status) == {"a-1": "ready"}


def test_a_job_without_a_maximum_lacks_the_nodes_of_its_first_start_and_no_other() -> None:
    spec = msgspec.structs.replace(SPEC, np=read_np("2+"))
    status = describe(view("a-1", spec=spec), "j")
    assert (status.lacking, head_lines(status, 0.0)[0]) == (
        1,
        "Job j: no generation yet, run 1, np 2+, 0 of 3 restarts used",
    )
    assert describe(view("a-1", "b-1", "c-1", spec=spec), "j").lacking == 0


def test_a_job_without_any_node_says_so_and_how_it_goes_on() -> None:
    status = describe(view(newest=generation(1, "a-1"), go=1), "j")
    assert status.leader is None
    assert head_lines(status, 0.0)[1].startswith("No node is registered")
    assert states(status) == {"a-1": "lost"}


def test_the_generation_of_an_earlier_run_does_not_count() -> None:
    status = describe(view("a-1", spec=msgspec.structs.replace(SPEC, run=2), newest=generation(7, "x-1"), go=7), "j")
    assert (status.generation, status.run, states(status)) == (None, 2, {"a-1": "ready"})


def test_a_verdict_says_when_and_how_and_that_everybody_is_done() -> None:
    verdict = Verdict(status=FinalStatus.COMPLETED, reason="every worker ended well", run=1, g=1, at=940.0)
    outcomes = {(1, "a-1"): OK, (1, "b-1"): OK}
    status = describe(view("a-1", newest=generation(1, "a-1", "b-1"), go=1, outcomes=outcomes, verdict=verdict), "j")
    assert "Job j completed 1 minute ago (run 1, generation 1): every worker ended well." in head_lines(status, 1000.0)
    assert states(status) == {"a-1": "done", "b-1": "done"}


def test_a_failed_job_shows_the_cause_and_nobody_waits_for_a_go() -> None:
    cause = Cause(g=1, host="b", node="b-1", exits=(EXIT,), ranks=(3,), world_size=4)
    verdict = Verdict(status=FinalStatus.FAILED, reason="no restart is left", run=1, g=2, at=999.0, cause=cause)
    world = generation(2, "a-1", "b-1", before=Predecessor(1, ("a-1", "b-1"), ChangeReason.FAILURE))
    status = describe(view("a-1", newest=world, go=1, outcomes={(1, "a-1"): STOPPED}, verdict=verdict), "j")
    assert "Root cause: rank 3 on host b (node b-1): killed by SIGKILL" in text(status)
    assert states(status) == {"a-1": "done", "b-1": "done"}


def test_a_member_that_must_still_stop_after_the_verdict_is_stopping() -> None:
    verdict = Verdict(status=FinalStatus.FAILED, reason="stopped", run=1, g=1, at=999.0)
    status = describe(view("a-1", newest=generation(1, "a-1"), go=1, verdict=verdict), "j")
    assert states(status) == {"a-1": "stopping"}


# What the store can hold


GONE = "the key spec of this job was deleted"


def test_a_job_without_a_spec_is_described() -> None:
    status = describe(view("a-1", spec=None, newest=generation(1, "a-1"), go=1), "j")
    assert (status.np, status.run, status.now) == (None, None, f"{GONE}; a node that joins writes it again")
    assert states(status) == {"a-1": "running"}
    assert describe(view("a-1", spec=None), "j").now == "the job has no spec yet"


def test_a_document_that_cannot_be_read_is_named() -> None:
    keys = JobKeys("j")
    entries: Sequence[KeyValue] = (
        KeyValue(keys.spec, b"\xff{", 1, 1),
        KeyValue(keys.leader, encode(Leader(node="a-1", host="a")), 2, 2, 1),
        KeyValue(keys.member("a-1"), encode(member("a-1")), 2, 2, 1),
        KeyValue(keys.member("b-1"), b"{}", 3, 3, 1),
    )
    read = ViewReader(keys).read({entry.key: entry for entry in entries}, 9, complete=True)
    lines = head_lines(describe(read, "j"), 0.0)
    assert f"Leader a-1: /elastic/j/spec cannot be read; {RESTORE}" in lines
    assert f"Cannot parse etcd key: {keys.member('b-1')}" in lines


def test_nothing_that_stands_in_the_store_reaches_the_terminal_as_a_command() -> None:
    evil = msgspec.structs.replace(generation(1, "a\x1b[2J-1"), reason="x\x1b]0;title\x07\ny")
    status = describe(view("a\x1b[2J-1", newest=evil, go=1), "j")
    shown = [*head_lines(status, 0.0), *(cell for node in status.nodes for cell in cells(node, None))]
    assert all(line.isprintable() for line in shown)


def test_the_description_is_json() -> None:
    status = describe(view("a-1", newest=generation(1, "a-1"), go=1), "j")
    assert msgspec.json.decode(msgspec.json.encode(status), type=JobStatus) == status


def test_a_parameter_server_job_shows_seats_and_only_the_newest_starts() -> None:
    tasks = (Task(Role.SERVER, 0),), (Task(Role.WORKER, 0), Task(Role.WORKER, 1)), (Task(Role.WORKER, 2),)
    places = tuple(
        TaskMember(node, "h", (7000,), tuple(8000 + at for at in range(len(own))), own, since, leaving)
        for node, own, since, leaving in zip(("a", "b", "c"), tasks, (0, 2, 0), (False, False, True), strict=True)
    )
    world = ClusterSpec(
        g=1,
        run=1,
        leader="t",
        why=ChangeReason.FAILURE,
        reason="so it is",
        members=places,
        slots=1,
        rev=2,
        budget=Budget(charged=2),
    )
    layout = PsLayout(server_num=1, worker_num=2, separate=True)
    spec = PsJobSpec(**msgspec.structs.asdict(SPEC) | {"mode": JobMode.PS}, layout=layout)
    shown = describe(
        view("a", "b", "c", spec=spec, newest=world, go=1, outcomes={(1, "b"): FAILED}),
        "j1",
    )
    assert [(node.tasks, node.state) for node in shown.nodes] == [
        ("server 0", NodeState.RUNNING),
        ("workers 0-1", NodeState.RUNNING),
        ("worker 2", NodeState.STOPPING),
    ]
    assert cells(shown.nodes[1], None)[3] == "workers 0-1"
    assert (shown.world_size, shown.restarts) == (3, 2)


# The newest checkpoint


def test_the_newest_checkpoint_is_one_line() -> None:
    saved = SavedCheckpoint(step=500, host="a", folder="/data/j1", run=1, g=2, at=1000.0)
    status = describe(dataclasses.replace(view("a-1"), saved=StoredDocument(saved, 5, 5)), "j1")
    assert "Saved: step 500 in /data/j1 on a, 2 minutes ago" in head_lines(status, 1120.0)
    assert not any(line.startswith("Saved") for line in head_lines(describe(view("a-1"), "j1"), 1120.0))


def test_a_checkpoint_of_an_earlier_run_says_so() -> None:
    saved = SavedCheckpoint(step=500, host="a", folder="/data/j1", run=1, g=2, at=1000.0)
    later = dataclasses.replace(
        view("a-1", spec=msgspec.structs.replace(SPEC, run=2)), saved=StoredDocument(saved, 5, 5)
    )
    assert "Saved: step 500 of run 1 in /data/j1 on a, just now" in head_lines(describe(later, "j1"), 1000.0)


def test_a_node_whose_host_is_kept_out_is_shown_with_the_reason_and_the_longest_time_left() -> None:
    out = Quarantine("c", failures=2, times=1, g=4, left_s=60.0, words="exit 1")
    newest = msgspec.structs.replace(
        generation(5, "a-1", "b-1", why=ChangeReason.QUARANTINED), budget=Budget(hosts=(out,))
    )
    status = describe(view("a-1", "b-1", "c-1", newest=newest), "j")
    why = "for 60 s (or less): its workers failed 2 times in a row (exit 1); it rejoins automatically"
    assert cells(status.nodes[2], None) == ("-", "c-1", "c", "-", "quarantined", "-", "-", "-", why)


def test_a_host_that_others_do_not_reach_is_kept_out_for_longer_than_its_time_if_the_way_is_not_open() -> None:
    out = Quarantine("c", times=1, g=4, left_s=60.0, words="a cannot connect to it", unreachable=True)
    for left_s, until in ((60.0, "for 60 s (or less) and until it can be reached"), (0.0, "until it can be reached")):
        budget = Budget(hosts=(msgspec.structs.replace(out, left_s=left_s),))
        newest = msgspec.structs.replace(generation(5, "a-1", "b-1", why=ChangeReason.QUARANTINED), budget=budget)
        status = describe(view("a-1", "b-1", "c-1", newest=newest), "j")
        why = f"{until}: a cannot connect to it; it rejoins automatically"
        assert cells(status.nodes[2], None) == ("-", "c-1", "c", "-", "quarantined", "-", "-", "-", why)
        assert "c-1 joins" not in status.now
