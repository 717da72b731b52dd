"""Giving an order: scale and drain; how each is written once, tried again where the job had changed, and noted."""

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
"""A job that changes more often than this while an order is given is not told it."""
NAME_SHOWN_MAX: Final = 64
DEADLINE_MIN_S: Final = DEADLINE_SPARE_S + 1.0
"""Of a shorter one nothing would be left for the workers."""

_M_ID: Final = re.compile(r"[0-9]{1,9}")


class OrderRejected(ElasticError):
    """The job cannot do that, as its line says. Nothing was written."""

    exit_code = NO_SUCH_JOB


async def submit(
    job: NamedJob, order: Callable[[StoreView], Transaction | None], what: Callable[[StoreView], str]
) -> tuple[StoreView, bool]:
    """Write what `order` makes of the job as it stands; it makes None of one that needs nothing.

    `what` says it in the job's history, which is written in the same transaction. Gives that view, and whether
    something was written. Where an answer was lost it is written again: every order says how things are to be, so that
    it may stand twice. Raises `OrderRejected`, `StoreError`, and what `NamedJob.view` raises.
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
    raise OrderRejected(f"{job.job_id} changes too fast to be told anything; try again")


async def _noted(job: NamedJob, view: StoreView, text: str, transaction: Transaction) -> tuple[Operation, ...]:
    """What puts an order into the history of the job, and the verdict if it is one: no agent tells of that."""
    g = view.generation.value.g if view.generation is not None else 0
    at = round(time.time(), 3)
    order = events.HistoryEvent(at=at, node=operator(), what=events.EventKind.ORDER, g=g, text=text[: events.TEXT_MAX])
    listing = await job.store.list(KeyRange.prefix(job.keys.events), keys_only=True)
    present = sorted(entry.key for entry in listing.entries)
    noted: list[Operation] = []
    for event in (order, *events.events_of(job.keys, transaction, operator(), at)):
        written = events.remember(job.keys, event, present)
        noted += written
        present += [operation.key for operation in written if isinstance(operation, Put)]
    return tuple(noted)


def ended(job: NamedJob, view: StoreView) -> str:
    """How a job that has a verdict ended, in one line."""
    assert view.verdict is not None
    return sanitize_line(ended_lines(view.verdict.value, job.job_id, time.time())[0])


def operator() -> str:
    """Who gives the order, in words for others: user and host, at most 129 signs that a terminal shows."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # No such user in this container.
        user = "somebody"
    return f"{sanitize_line(user)[:NAME_SHOWN_MAX]}@{sanitize_line(socket.gethostname())[:NAME_SHOWN_MAX]}"


# Another number of nodes.


async def scale(job: NamedJob, wanted: Np) -> str:
    """Give the order; the line that says what follows. Raises `ConfigError`, and what `submit` raises."""

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
        return f"{run}: {out} of them will leave the world and wait as {'a spare' if out == 1 else 'spares'}"
    if registered < np.low:
        until = f"holds until {counted(np.low - registered, 'more comes', 'more come')}"
        if inside and view.go is not None and generation is not None and view.go.value.g == generation.g:
            return f"it trains on with {inside}; after the next change it {until}"  # No world ends for want of others.
        return f"{counted(registered, 'node')} here: the job {until}"
    if registered > inside and np.high > inside:
        new = min(registered, np.high) - inside
        return f"{run}: {counted(new, 'that waits', 'that wait')} will be taken in"
    return f"{run}: that stays, until others come"


# Nodes that leave.


async def drain(job: NamedJob, targets: Sequence[str], deadline_s: float | None) -> tuple[str, list[str]]:
    """Give the order; the line that says what follows, and the nodes that were told to leave.

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
        return f"{job.job_id}: {', '.join(map(sanitize_line, nodes))} left meanwhile", []
    left = len(set(view.members) - set(leaving))
    low = view.spec.value.np.low if view.spec is not None else 1
    holds = f"; {counted(left, 'node')} left, fewer than the {low} that may run: the job holds until others come"
    whom = f"{', '.join(map(sanitize_line, leaving))} {'is' if len(leaving) == 1 else 'are'}"
    return f"{job.job_id}: {whom} told to leave{holds if left < low else ''}", leaving


async def _submit_drain(
    job: NamedJob, nodes: Sequence[str], reason: str, deadline_s: float | None
) -> tuple[StoreView, list[str]]:
    """Tell those that are still there, all in one transaction, so that the world changes once; the view, and whom."""

    def present(view: StoreView) -> list[str]:
        return [node for node in nodes if node in view.members]

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None or not present(view):
            return None
        return orders.order_drain(job.keys, view, present(view), reason, deadline_s, round(time.time(), 3))

    view, written = await submit(job, order, lambda view: f"elastic-ctl drain {' '.join(present(view))}")
    return view, present(view) if written else []


def chosen(view: StoreView, targets: Sequence[str]) -> list[str]:
    """The members that these words name: node ids, M_ids, hosts. Raises `ConfigError` for one that names none."""
    generation = view.generation.value if view.generation is not None else None
    nodes: dict[str, None] = {}
    for target in targets:
        hosts = [node for node, stored in view.members.items() if stored.value.host == target]
        if target in view.members:
            nodes[target] = None
        elif _M_ID.fullmatch(target) and generation is not None and int(target) < len(generation.members):
            node = generation.members[int(target)].node
            if node not in view.members:
                raise ConfigError(f"M_id {target} is {node}, which is not registered any more")
            nodes[node] = None
        elif hosts:
            nodes.update(dict.fromkeys(hosts))
        else:
            known = ", ".join(view.members) or "none is registered"
            raise ConfigError(f"{target!r} is no node, M_id or host of this job; its nodes: {known}")
    return list(nodes)
