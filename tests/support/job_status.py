"""Jobs in the store, made of values."""

from __future__ import annotations

from collections.abc import Mapping

from elastic.core.model import (
    Budget,
    ChangeReason,
    Generation,
    GenerationMember,
    Go,
    JobSpec,
    Leader,
    Member,
    MemberState,
    Np,
    Outcome,
    Predecessor,
    Verdict,
)
from elastic.core.view import StoredDocument, StoreView

SPEC = JobSpec(np=Np(low=1, high=3, first=1), slots=2, restarts_max=3)


def member(node: str, state: MemberState = MemberState.READY, reason: str = "") -> Member:
    host = node.partition("-")[0]
    return Member(host=host, slots=2, masters=(7000,), ports=(8000, 8001), state=state, drain_reason=reason)


def generation(
    g: int, *nodes: str, before: Predecessor | None = None, why: ChangeReason = ChangeReason.FIRST, run: int = 1
) -> Generation:
    members = tuple(GenerationMember(node, node.partition("-")[0], (7000,), (8000, 8001)) for node in nodes)
    return Generation(
        g=g,
        run=run,
        leader="t",
        why=why,
        reason="so it is",
        members=members,
        slots=2,
        before=before,
        budget=Budget(charged=1),
    )


def view(
    *registered: str | Member,
    spec: JobSpec | None = SPEC,
    newest: Generation | None = None,
    go: int | None = None,
    outcomes: Mapping[tuple[int, str], Outcome] | None = None,
    verdict: Verdict | None = None,
    leader: str = "",
) -> StoreView:
    """A job in the store; members are registered in the order given. Nobody leads unless `leader` is given."""
    members: dict[str, StoredDocument[Member]] = {}
    for revision, one in enumerate(registered, 10):
        node, value = (one, member(one)) if isinstance(one, str) else (f"{one.host}-1", one)
        members[node] = StoredDocument(value, revision, revision, 1)
    opened = Go(g=go, master="a:7000", budget=Budget(charged=2)) if go is not None else None
    return StoreView(
        revision=50,
        incarnation=StoredDocument("i", 1, 1),
        leader=StoredDocument(Leader(node=leader, host="h"), 10, 10, 1) if leader else None,
        spec=StoredDocument(spec, 2, 2) if spec is not None else None,
        generation=StoredDocument(newest, 20, 20) if newest is not None else None,
        go=StoredDocument(opened, 21, 21) if opened is not None else None,
        verdict=StoredDocument(verdict, 40, 40) if verdict is not None else None,
        members=members,
        outcomes={key: StoredDocument(value, 30, 30) for key, value in (outcomes or {}).items()},
        complete=True,
    )
