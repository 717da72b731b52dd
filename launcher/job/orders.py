"""The transactions by which a user changes a job: scale, drain and stop (pure).

Each transaction succeeds only if nothing that it was based on has changed, the store has the same incarnation, and the
job has no final status. If several change the same value, the last one applies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import OPERATIONS_MAX, Compare, Delete, KeyRange, Operation, Put
from elastic.core.model import DrainOrder, FinalStatus, JobSpec, Np, StopOrder, Verdict
from elastic.core.ps.model import PsJobSpec
from elastic.core.transactions import Transaction
from elastic.core.view import StoredDocument, StoreView, encode

NOTED_MAX = 4
"""Operations of the same transaction that add the action, and a final status, to the history of the job."""
LEAVING_MAX = (OPERATIONS_MAX - NOTED_MAX - 2) // 3
"""Nodes that one transaction can drain: two compares and a key for each."""


def order_scale(keys: JobKeys, view: StoreView, np: Np) -> Transaction:
    """Return the transaction that changes np in the spec, which the view must have."""
    assert view.spec is not None
    spec: JobSpec = msgspec.structs.replace(view.spec.value, np=np)
    compares = (*_guards(keys, view), _as_seen(view, keys.spec, view.spec))
    return Transaction("scale", compares, (Put(keys.spec, encode(spec)),))


def why_np_impossible(spec: JobSpec, np: Np) -> str:
    """Return why a job cannot have this np, with the fix; "" if it can."""
    if spec.ips and np.high > len(spec.ips):
        most = len(spec.ips)
        wanted = "any number of" if np.unlimited else np.high
        return f"--np {np} asks for {wanted} nodes, but the job's --ips lists {most}; use at most {most}"
    if isinstance(spec, PsJobSpec) and not spec.layout.separate:
        return "the tasks of this parameter-server job have fixed hosts; stop the job, and start it with other lists"
    return ""


def order_drain(
    keys: JobKeys, view: StoreView, nodes: Sequence[str], reason: str, within_s: float | None, at: float
) -> Transaction:
    """Return the transaction that drains members of the view, at most `LEAVING_MAX`. The earlier deadline applies.

    It compares no times, because clocks differ: the node counts each deadline from when it receives it, and keeps the
    earlier one. The transaction also deletes the drain keys of nodes that no longer exist.
    """
    compares: list[Compare] = [*_guards(keys, view)]
    then: list[Operation] = []
    for node in nodes:
        stored = view.leaves.get(node)
        before_s = stored.value.within_s if stored is not None else None
        nearer_s = min((limit_s for limit_s in (before_s, within_s) if limit_s is not None), default=None)
        compares.append(Compare.created(keys.member(node), view.members[node].create_revision))
        compares.append(_as_seen(view, keys.leave(node), stored))
        then.append(Put(keys.leave(node), encode(DrainOrder(reason=reason, within_s=nearer_s, at=at))))
    room = OPERATIONS_MAX - NOTED_MAX - len(compares) - len(then)
    gone = [node for node in view.leaves if node not in view.members][:room]
    return Transaction("drain", tuple(compares), (*then, *(Delete(KeyRange.key(keys.leave(node))) for node in gone)))


def order_stop(keys: JobKeys, view: StoreView, reason: str, at: float) -> Transaction:
    """Return the transaction that stops this run as a planned change."""
    order = StopOrder(run=_run(view), reason=reason, at=at)
    return Transaction("stop", _guards(keys, view), (Put(keys.halt, encode(order)),))


def write_verdict(keys: JobKeys, view: StoreView, reason: str, at: float, *, deserted: bool = False) -> Transaction:
    """Return the transaction that ends the job immediately; nodes stop their workers fast. It needs no readable key.

    `deserted`: only if no node is registered.
    """
    g = view.generation.value.g if view.generation is not None else 0
    verdict = Verdict(status=FinalStatus.STOPPED, reason=reason, run=_run(view), g=g, at=at)
    alone = (Compare.empty(keys.members),) if deserted else ()
    compares = (*_guards(keys, view), _as_seen(view, keys.spec, view.spec), *alone)
    return Transaction("stop", compares, (Put(keys.verdict, encode(verdict)),))


def _run(view: StoreView) -> int:
    if view.spec is not None:
        return view.spec.value.run
    return view.generation.value.run if view.generation is not None else 1


def _guards(keys: JobKeys, view: StoreView) -> tuple[Compare, ...]:
    same = (
        Compare.equals(keys.incarnation, encode(view.incarnation.value))
        if view.incarnation is not None
        else _as_seen(view, keys.incarnation, None)
    )
    return (same, _as_seen(view, keys.verdict, None))


def _as_seen(view: StoreView, key: str, stored: StoredDocument[Any] | None) -> Compare:
    """Compare a key with its state in the view: the document, an unreadable one, or none."""
    return Compare.modified(key, stored.mod_revision if stored is not None else view.damaged_at.get(key, 0))
