"""Scales a job and drains nodes: writes each change once, and retries if the job has changed."""

from __future__ import annotations

import getpass
import re
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from elastic._text import counted
from elastic.core.agent.state import DEADLINE_SPARE_S
from elastic.core.kv import KeyRange, Operation, Put
from elastic.core.model import Np
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import ConfigError, ElasticError, OutcomeUnknown
from launcher.history import events
from launcher.job import orders
from launcher.job.named_job import NO_SUCH_JOB, NamedJob
from launcher.text.failure_report import ended_lines
from launcher.text.sanitize import sanitize_line

TRIES_MAX: Final = 20
"""Attempts to write a change to a job that changes at the same time."""
NAME_SHOWN_MAX: Final = 64
DEADLINE_MIN_S: Final = DEADLINE_SPARE_S + 1.0
"""A shorter deadline would leave no time for the workers."""

_M_ID: Final = re.compile(r"[0-9]{1,9}")


class OrderRejected(ElasticError):
    """The job cannot do that, for the reason in the message. Nothing was written."""

    exit_code = NO_SUCH_JOB


async def submit(
    job: NamedJob, order: Callable[[StoreView], Transaction | None], what: Callable[[StoreView], str]
) -> tuple[StoreView, bool]:
    """Execute the transaction that `order` returns for the current view; None: there is nothing to change.

    `what` describes the change for the job's history, which the same transaction writes. Returns the view, and whether
    anything was written. If the answer of etcd is lost, the transaction is repeated, which is safe: every change states
    the wanted result. Raises `OrderRejected`, `StoreError`, and what `NamedJob.view` raises.
    """
    for _ in range(TRIES_MAX):
        view = await job.view()
        transaction = order(view)
        if transaction is None:
            return view, False
        noted = await _noted(job, view, what(view), transaction)
        try:
            result = await job.store.txn(transaction.compares, (*transaction.then, *noted))
        except OutcomeUnknown:
            continue
        if result.succeeded:
            return view, True
    raise OrderRejected(f"job {job.job_id} is changing; try again")


async def _noted(job: NamedJob, view: StoreView, text: str, transaction: Transaction) -> tuple[Operation, ...]:
    """Return the operations that add the change, and a final status if it writes one, to the history of the job."""
    g = view.generation.value.g if view.generation is not None else 0
    at = round(time.time(), 3)
    order = events.HistoryEvent(at=at, node=operator(), what=events.EventKind.ACTION, g=g, text=text[: events.TEXT_MAX])
    listing = await job.store.list(KeyRange.prefix(job.keys.events), keys_only=True)
    present = sorted(entry.key for entry in listing.entries)
    noted: list[Operation] = []
    for event in (order, *events.events_of(job.keys, transaction, operator(), at)):
        written = events.remember(job.keys, event, present)
        noted += written
        present += [operation.key for operation in written if isinstance(operation, Put)]
    return tuple(noted)


def ended(job: NamedJob, view: StoreView) -> str:
    """Return how a job with a final status ended, in one line."""
    assert view.verdict is not None
    return sanitize_line(ended_lines(view.verdict.value, job.job_id, time.time())[0])


def operator() -> str:
    """Return the user and host of this process for the history, at most 129 printable characters."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # No such user in this container.
        user = "unknown"
    return f"{sanitize_line(user)[:NAME_SHOWN_MAX]}@{sanitize_line(socket.gethostname())[:NAME_SHOWN_MAX]}"


# Another number of nodes.


async def scale(job: NamedJob, wanted: Np) -> str:
    """Change np; return a line about the result. Raises `ConfigError`, and what `submit` raises."""

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None:
            raise OrderRejected(ended(job, view))
        if view.spec is None:
            raise OrderRejected(f"{job.job_id} has no readable spec: start a node first")
        if unfit := orders.why_np_impossible(view.spec.value, wanted):
            raise ConfigError(unfit)
        return None if view.spec.value.np == wanted else orders.order_scale(job.keys, view, wanted)

    view, written = await submit(job, order, lambda view: f"elastic-ctl scale: {_becomes(view, wanted)}")
    assert view.spec is not None
    if not written:
        return f"{job.job_id}: --np is {wanted} already"
    return f"{job.job_id}: {_becomes(view, wanted)}; {_what_follows(view, wanted)}"


def _becomes(view: StoreView, np: Np) -> str:
    return f"--np {view.spec.value.np if view.spec is not None else '?'} becomes {np}"


def _what_follows(view: StoreView, np: Np) -> str:
    generation = view.generation.value if view.generation is not None else None
    inside = len(generation.members) if generation is not None else 0
    registered = len(view.members)
    run = counted(inside, "node runs", "nodes run")
    if np.high < inside:
        out = inside - np.high
        return f"{run}: {out} of them will stop and wait as {'a spare' if out == 1 else 'spares'}"
    if registered < np.low:
        until = f"waits until {counted(np.low - registered, 'more node joins', 'more nodes join')}"
        if inside and view.go is not None and generation is not None and view.go.value.g == generation.g:
            return f"training continues with {inside}; after the next change the job {until}"
        return f"{counted(registered, 'node')} registered: the job {until}"
    if registered > inside and np.high > inside:
        new = min(registered, np.high) - inside
        return f"{run}: {counted(new, 'waiting node', 'waiting nodes')} will join"
    return f"{run}: no change until more nodes join"


# Nodes that leave.


async def drain(job: NamedJob, targets: Sequence[str], deadline_s: float | None) -> tuple[str, list[str]]:
    """Drain nodes; return a line about the result, and the nodes that are draining.

    Raises `ConfigError`, and what `submit` raises.
    """
    view = await job.view()
    if view.verdict is not None:
        raise OrderRejected(ended(job, view))
    nodes = chosen(view, targets)
    reason = f"elastic-ctl drain by {operator()}"
    leaving: list[str] = []
    for at in range(0, len(nodes), orders.LEAVING_MAX):
        view, some = await _submit_drain(job, nodes[at : at + orders.LEAVING_MAX], reason, deadline_s)
        leaving += some
    if not leaving:
        return f"{job.job_id}: {', '.join(map(sanitize_line, nodes))} have already left", []
    left = len(set(view.members) - set(leaving))
    low = view.spec.value.np.low if view.spec is not None else 1
    holds = f"; {counted(left, 'node')} left, fewer than the minimum of {low}: the job waits until more nodes join"
    return f"{job.job_id}: draining {', '.join(map(sanitize_line, leaving))}{holds if left < low else ''}", leaving


async def _submit_drain(
    job: NamedJob, nodes: Sequence[str], reason: str, deadline_s: float | None
) -> tuple[StoreView, list[str]]:
    """Drain the targets that are still registered in one transaction, so that the job restarts once; return both."""

    def present(view: StoreView) -> list[str]:
        return [node for node in nodes if node in view.members]

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None or not present(view):
            return None
        return orders.order_drain(job.keys, view, present(view), reason, deadline_s, round(time.time(), 3))

    view, written = await submit(job, order, lambda view: f"elastic-ctl drain {' '.join(present(view))}")
    return view, present(view) if written else []


def chosen(view: StoreView, targets: Sequence[str]) -> list[str]:
    """Return the members that the targets name: node IDs, M_ids, hosts. Raises `ConfigError` for an unknown one."""
    generation = view.generation.value if view.generation is not None else None
    nodes: dict[str, None] = {}
    for target in targets:
        hosts = [node for node, stored in view.members.items() if stored.value.host == target]
        if target in view.members:
            nodes[target] = None
        elif _M_ID.fullmatch(target) and generation is not None and int(target) < len(generation.members):
            node = generation.members[int(target)].node
            if node not in view.members:
                raise ConfigError(f"M_id {target} is {node}, which is no longer registered")
            nodes[node] = None
        elif hosts:
            nodes.update(dict.fromkeys(hosts))
        else:
            known = ", ".join(view.members) or "none is registered"
            raise ConfigError(f"{target!r} is not a node, node rank (M_id) or host of this job; its nodes: {known}")
    return list(nodes)
