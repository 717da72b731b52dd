"""A job as people see it: the store's words, and those of the nodes that could be asked."""

from __future__ import annotations

import pytest

from elastic.core.model import MemberState
from launcher.job.status import NodeState, NodeStatus, describe
from launcher.job.status_text import COLUMNS, cells, foot_lines, rows, speed
from launcher.wire.inspect_messages import WorkerState
from tests.support.inspect_documents import window, worker
from tests.support.job_status import generation, member, view


def node(state: NodeState = NodeState.RUNNING, note: str = "") -> NodeStatus:
    return NodeStatus(m_id=0, node="a-1", host="a", ranks=(0, 1), state=state, note=note)


# The table


def test_of_a_node_that_cannot_be_asked_the_store_alone_is_told() -> None:
    assert cells(node(), None) == ("0", "a-1", "a", "0-1", "running", "-", "-", "-", "")
    assert len(cells(node(), None)) == len(COLUMNS)


def test_a_node_that_was_asked_has_since_and_the_step_and_rate_of_its_furthest_worker() -> None:
    told = window(
        worker(0, WorkerState.STEPPING, step=12, rate=19.87), worker(1, WorkerState.STEPPING, step=11, rate=1.0)
    )
    assert cells(node(), told)[5:] == ("4 min", "12", "19.9/s", "")


def test_workers_that_report_nothing_have_no_step() -> None:
    assert cells(node(), window(worker(0, WorkerState.RUNNING)))[5:] == ("4 min", "-", "-", "")


def test_a_worker_that_prepares_is_the_note_unless_the_store_has_one() -> None:
    told = window(worker(3, WorkerState.PREPARING))
    assert cells(node(), told)[-1] == "rank 3 preparing: downloading (40 s)"
    assert cells(node(NodeState.STOPPING, "failed: rank 3: exit 1"), told)[-1] == "failed: rank 3: exit 1"


def test_a_node_that_loads_torch_says_so() -> None:
    assert cells(node(NodeState.READY), window(state="importing torch"))[-1] == "importing torch"


def test_a_rate_of_a_worker_that_has_ended_is_none() -> None:
    assert cells(node(), window(worker(0, WorkerState.EXITED, step=12, rate=19.87)))[6:8] == ("12", "-")


def test_what_a_node_says_has_nothing_that_a_terminal_obeys() -> None:
    told = window(state="importing torch")
    odd = NodeStatus(m_id=None, node="a\x1b[31m", host="a\n", ranks=(), state=NodeState.SPARE, note="\x07")
    assert all(cell.isprintable() for cell in cells(odd, told))


@pytest.mark.parametrize(
    ("rate", "words"), [(None, "-"), (0.0, "0.0/s"), (1.0, "1.0/s"), (123.44, "123.4/s"), (0.25, "4.0 s")]
)
def test_a_slow_rate_is_told_in_seconds_for_a_step(rate: float | None, words: str) -> None:
    assert speed(rate) == words


# Below the table


def test_spares_are_named() -> None:
    status = describe(view("a-1", "b-1", "c-1", newest=generation(1, "a-1"), go=1), "j")
    assert foot_lines(status, {})[0] == "Spare: b-1, c-1"
    assert [row[0] for row in rows(status, {})] == ["0", "-", "-"]


def test_who_is_lost_is_missing_by_name_and_who_has_not_come_is_counted() -> None:
    lost = describe(view("a-1", newest=generation(1, "a-1", "b-1"), go=1), "j")
    assert foot_lines(lost, {}) == ["Missing: b-1 is no longer registered"]
    none = describe(view(), "j")
    assert foot_lines(none, {}) == ["Missing: 1 node: not started yet, or cannot connect to etcd"]


def test_who_leaves_does_not_count() -> None:
    leaves = member("b-1", MemberState.DRAINING, "SIGTERM")
    status = describe(view("a-1", leaves, newest=generation(1, "a-1", "b-1"), go=1), "j")
    assert foot_lines(status, {}) == ["Missing: b-1 does not count: it is leaving (SIGTERM)"]


def test_that_nodes_cannot_be_asked_is_one_line_for_all_of_them() -> None:
    status = describe(view("a-1", "b-1", newest=generation(1, "a-1", "b-1"), go=1), "j")
    assert foot_lines(status, {"a-1": "cannot query node a-1: refused", "b-1": "the same"}) == [
        "No details: cannot query node a-1: refused (and 1 more)"
    ]
