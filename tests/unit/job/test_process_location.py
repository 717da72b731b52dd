"""Which node has a process, by what stands in the store."""

from __future__ import annotations

from typing import Any

import pytest

from elastic.core.model import ChangeReason, Generation, GenerationMember, Go, JobSpec, Np, Predecessor
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from elastic.core.view import StoredDocument, StoreView
from elastic.errors import ConfigError
from launcher.job.process_location import ProcessLocation, locate, named, why_absent

SPEC = JobSpec(np=Np(low=1, high=3, first=1), slots=2)


def view(*, go: int | None, before: Predecessor | None = None, run: int = 1, tasks: bool = False) -> StoreView:
    """Generation 4 with nodes a and b, two slots each."""
    spread = {"a-1": (Task(Role.SERVER, 0), Task(Role.WORKER, 1)), "b-1": (Task(Role.WORKER, 0),)} if tasks else {}
    members = tuple(TaskMember(node, node[0], (7000,), (8000, 8001), spread.get(node, ()), 9) for node in spread)
    collective = tuple(GenerationMember(node, node[0], (7000,), (8000, 8001)) for node in ("a-1", "b-1"))
    common: dict[str, Any] = {
        "g": 4,
        "run": run,
        "leader": "t",
        "why": ChangeReason.FIRST,
        "reason": "r",
        "slots": 2,
        "before": before,
    }
    made = ClusterSpec(**common, members=members) if tasks else Generation(**common, members=collective)
    opened = Go(g=go, master="a:7000", budget=made.budget) if go is not None else None
    return StoreView(
        spec=StoredDocument(SPEC, 1, 1),
        generation=StoredDocument(made, 2, 2),
        go=StoredDocument(opened, 3, 3) if opened is not None else None,
        complete=True,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0", (Role.WORKER, 0)),
        ("12", (Role.WORKER, 12)),
        ("worker.3", (Role.WORKER, 3)),
        ("workerlog.3", (Role.WORKER, 3)),
        ("server.0", (Role.SERVER, 0)),
        ("serverlog.1", (Role.SERVER, 1)),
        ("heter.2", (Role.HETER, 2)),
    ],
)
def test_a_process_is_named_by_its_rank_or_its_role_or_its_log(text: str, found: tuple[Role, int]) -> None:
    assert named(text) == found


@pytest.mark.parametrize("text", ["", "-1", "x", "server", "server.", "server.x", "1.5", "9999999999", "٣", "0\n"])
def test_what_names_no_process_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"server\.0"):
        named(text)


def test_a_rank_is_on_the_node_of_its_place_once_there_is_a_go() -> None:
    assert [locate(view(go=4), Role.WORKER, rank) for rank in range(5)] == [
        ProcessLocation("a-1", "a", (4, 0)),
        ProcessLocation("a-1", "a", (4, 0)),
        ProcessLocation("b-1", "b", (4, 0)),
        ProcessLocation("b-1", "b", (4, 0)),
        None,
    ]


def test_while_the_gate_is_closed_it_is_where_it_was_before() -> None:
    before = Predecessor(3, ("c-host-1", "a-1"), ChangeReason.NODE_LOST)
    assert locate(view(go=3, before=before), Role.WORKER, 1) == ProcessLocation("c-host-1", "c-host", (3, 0))
    assert locate(view(go=3, before=before), Role.WORKER, 4) is None
    assert locate(view(go=None), Role.WORKER, 0) is None


def test_a_seat_is_where_the_roster_has_it_with_its_revision() -> None:
    assert locate(view(go=4, tasks=True), Role.SERVER, 0) == ProcessLocation("a-1", "a", (4, 9))
    assert locate(view(go=4, tasks=True), Role.WORKER, 0) == ProcessLocation("b-1", "b", (4, 9))
    assert locate(view(go=4, tasks=True), Role.HETER, 0) is None


def test_of_an_older_run_nothing_is_there() -> None:
    assert locate(view(go=4, run=2), Role.WORKER, 0) is None
    assert locate(StoreView(), Role.WORKER, 0) is None


def test_why_a_process_is_nowhere_is_a_sentence() -> None:
    assert why_absent(view(go=4), Role.WORKER, 7) == "there is no rank 7: generation 4 has the ranks 0 to 3"
    assert "its workers by rank, 0 to 3" in why_absent(view(go=4), Role.SERVER, 0)
    assert why_absent(view(go=4, tasks=True), Role.SERVER, 5) == (
        "there is no server 5 now: generation 4 has 1 of that role"
    )
    assert why_absent(StoreView(), Role.WORKER, 0) == "there is no rank 0 yet: no generation has formed"
