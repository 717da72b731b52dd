"""Giving an order: written once, tried again where the job had changed, noted in its history."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Callable
from typing import Final

from elastic.core.kv import KeyRange, Operation, Put
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import ElasticError, OutcomeUnknown
from launcher.history import events
from launcher.job.named_job import NO_SUCH_JOB, NamedJob
from launcher.text.failure_report import ended_lines
from launcher.text.sanitize import sanitize_line

TRIES_MAX: Final = 20
"""A job that changes more often than this while an order is given is not told it."""
NAME_SHOWN_MAX: Final = 64


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
