"""What an operator writes into the store, each in one guarded transaction (pure).

An order holds only if nothing that it was based on has changed, the store is the same one, and no verdict is there.
Who gives several orders in one moment gets the one that came last.
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
"""Operations that put an order, and a verdict, into the history of the job, in the same transaction."""
LEAVING_MAX = (OPERATIONS_MAX - NOTED_MAX - 2) // 3
"""Nodes that one transaction tells to leave: two compares and a key for each."""


def order_scale(keys: JobKeys, view: StoreView, np: Np) -> Transaction:
    """Another np in the spec. The view has one."""
    assert view.spec is not None
    spec: JobSpec = msgspec.structs.replace(view.spec.value, np=np)
    compares = (*_guards(keys, view), _as_seen(view, keys.spec, view.spec))
    return Transaction("scale", compares, (Put(keys.spec, encode(spec)),))


def why_np_impossible(spec: JobSpec, np: Np) -> str:
    """Why a job cannot have that np, with the mend; "" if it can."""
    if spec.ips and np.high > len(spec.ips):
        most = len(spec.ips)
        wanted = "any number of" if np.unlimited else np.high
        return f"--np {np} asks for {wanted} nodes, and the job's --ips names {most}; use {most} at most"
    if isinstance(spec, PsJobSpec) and not spec.layout.separate:
        return "the seats of this parameter-server job are fixed on its hosts; stop it, and start it with other lists"
    return ""


def order_drain(
    keys: JobKeys, view: StoreView, nodes: Sequence[str], reason: str, within_s: float | None, at: float
) -> Transaction:
    """Tell members to leave, at most `LEAVING_MAX`. The view has them. The shorter of two deadlines holds.

    No clock is asked how much of the first is over: that of its writer may be another one. The node counts each from
    when it heard of it, and keeps the nearer. What nodes were told that are gone is deleted with it.
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
    """Stop this run as a planned change."""
    order = StopOrder(run=_run(view), reason=reason, at=at)
    return Transaction("stop", _guards(keys, view), (Put(keys.halt, encode(order)),))


def write_verdict(keys: JobKeys, view: StoreView, reason: str, at: float, *, deserted: bool = False) -> Transaction:
    """Write the verdict at once: whoever has workers stops them fast. It needs nothing that can be read.

    `deserted`: only if nobody is registered.
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
    """The key is as it was read: what stood there, or still what cannot be read, or still nothing."""
    return Compare.modified(key, stored.mod_revision if stored is not None else view.damaged_at.get(key, 0))
