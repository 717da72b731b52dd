"""Ends a job at a user's request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from elastic._text import counted
from elastic.core.kv import KeyRange
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView
from elastic.errors import StoreError
from launcher.job import orders
from launcher.job.named_job import NamedJob
from launcher.job.submit import OrderRejected, ended, operator, submit
from launcher.job.watch import JobWatch

RETURN_SPARE_S: Final = 1.0
"""A node renews its lease four times per TTL, and registers again within this time."""
LEASE_TTL_S: Final = 5.0
"""The lease TTL of a job without a spec; the default of `--lease-ttl`."""


def why(*, at_once: bool) -> str:
    """Return the reason for the final status."""
    return f"elastic-ctl stop{' --now' if at_once else ''} by {operator()}"


async def stop(
    job: NamedJob, reason: str, *, at_once: bool, tell: Callable[[str], object] = lambda _: None
) -> tuple[str, StoreView | None]:
    """Stop the job; return a line about the result, and the job as it was then (None: it had ended before).

    If no node is registered, it waits until none can return, and then ends the job; `tell` gets a message about that.
    Raises what `submit` raises.
    """

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None:
            return None
        if view.spec is None and view.generation is None and not view.unreadable and not view.members:
            raise OrderRejected(f"{job.job_id} has never started: there is nothing to stop")
        at = round(time.time(), 3)
        if at_once:
            return orders.write_verdict(job.keys, view, reason, at)
        if obstacle := _no_save(job, view):
            raise OrderRejected(
                f"{job.job_id}: {obstacle}; restore it, or end the job immediately: elastic-ctl stop --now"
            )
        return orders.order_stop(job.keys, view, reason, at)

    view, written = await submit(job, order, lambda _: reason.partition(" by ")[0])
    if not written:
        return ended(job, view), None
    if at_once:
        nodes = f"; the workers of {counted(len(view.members), 'node')} are being stopped" if view.members else ""
        return f"{job.job_id} is stopped{nodes}", view
    if not view.members:
        tell(f"no node is registered: {job.job_id} ends unless a node returns within {_absence_s(view):g} s")
        return await _end_empty_job(job, view, reason, tell)
    return _will_save(job, view), view


def _will_save(job: NamedJob, view: StoreView) -> str:
    nodes = counted(len(view.members), "node")
    agents = "its agent exits" if len(view.members) == 1 else "their agents exit"
    return f"{job.job_id}: the workers of {nodes} will save and exit, then {agents}"


def _no_save(job: NamedJob, view: StoreView) -> str:
    """Return why agents cannot let their workers save: a key that they need cannot be parsed; "" if they can."""
    if damaged := (*view.unreadable, *_unreadable_members(job, view)):
        return f"cannot parse {damaged[0]}, so no node could save"
    return f"{job.keys.spec} is missing, so no node could save" if view.spec is None and view.members else ""


def _unreadable_members(job: NamedJob, view: StoreView) -> list[str]:
    """Return the unreadable keys of members if there are no readable ones."""
    return [] if view.members else [key for key in view.damaged if key.startswith(job.keys.members)]


async def _end_empty_job(
    job: NamedJob, stopped: StoreView, reason: str, tell: Callable[[str], object]
) -> tuple[str, StoreView | None]:
    """End a job that was stopped while no node was registered, unless a node registers meanwhile."""
    async with JobWatch(job, tell) as newest:
        while not newest.view.members and newest.view.verdict is None:
            if await end_if_deserted(job, newest, reason):
                return f"{job.job_id} is stopped", stopped
        view = newest.view
    return (_will_save(job, view), stopped) if view.verdict is None else (ended(job, view), None)


async def end_if_deserted(job: NamedJob, newest: JobWatch, reason: str) -> bool:
    """Write the final status of a stopped job once no node can return; False if something else happens before."""
    if not await _wait_until_empty(job, newest):
        return False
    at = round(time.time(), 3)

    def order(view: StoreView) -> Transaction | None:
        if view.members or view.verdict is not None:
            return None
        if odd := _unreadable_members(job, view):
            raise OrderRejected(f"{job.job_id}: cannot parse {odd[0]}; delete it, or use elastic-ctl stop --now")
        return orders.write_verdict(job.keys, view, reason, at, deserted=True)

    _, written = await submit(job, order, lambda _: "no node is left: ending the job")
    return written


def _absence_s(view: StoreView) -> float:
    """Return the time after which a node without a key is gone: a live node would have written its key again."""
    return (view.spec.value.lease_ttl_s if view.spec is not None else LEASE_TTL_S) + RETURN_SPARE_S


def run_of(view: StoreView) -> tuple[str, int]:
    """Return the incarnation of the store and the run of the job."""
    store = view.incarnation.value if view.incarnation is not None else ""
    return store, view.spec.value.run if view.spec is not None else 0


LOOK_EVERY_S: Final = 1.0
"""Interval of the queries that show whether etcd answers; a slower answer counts as a stalled etcd."""


async def _wait_until_empty(job: NamedJob, newest: JobWatch) -> bool:
    """Wait until no node has been registered for longer than a lease; False if something else happens before.

    A lease can end early, and a stalled etcd ends all leases: a live node then writes its key again, and its workers
    may just be saving. Only time in which etcd answers counts.
    """
    clock = asyncio.get_running_loop().time
    run, absence_s = run_of(newest.view), _absence_s(newest.view)
    since = clock()
    while (left_s := since + absence_s - clock()) > 0:
        await newest.changes(min(left_s, LOOK_EVERY_S))
        view = newest.view
        if view.members or view.verdict is not None or run_of(view) != run:
            return False
        if not await _answers(job):
            since = clock()
    return True


async def _answers(job: NamedJob) -> bool:
    """Return whether etcd answers as fast as a healthy one."""
    try:
        async with asyncio.timeout(LOOK_EVERY_S):
            await job.store.list(KeyRange.key(job.keys.spec), keys_only=True)
    except (StoreError, TimeoutError):
        return False
    return True
