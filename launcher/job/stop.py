"""The order to end a job."""

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
"""A node asks for its lease four times in the time that it lasts, and registers again within this."""
LEASE_TTL_S: Final = 5.0
"""The lease of a job whose spec is gone; the default of `--lease_ttl`."""


def why(*, at_once: bool) -> str:
    """The reason of such an order, for the verdict."""
    return f"elastic-ctl stop{' --now' if at_once else ''} by {operator()}"


async def stop(
    job: NamedJob, reason: str, *, at_once: bool, tell: Callable[[str], object] = lambda _: None
) -> tuple[str, StoreView | None]:
    """Give the order; the line that says what follows, and the job as it was then; None: it had ended before.

    Where no node is registered it waits until none can be about to come back, and ends the job; `tell` hears of that.
    Raises what `submit` raises.
    """

    def order(view: StoreView) -> Transaction | None:
        if view.verdict is not None:
            return None
        if view.spec is None and view.generation is None and not view.unreadable and not view.members:
            raise OrderRejected(f"{job.job_id} has never begun: nothing is to be stopped")
        at = round(time.time(), 3)
        if at_once:
            return orders.write_verdict(job.keys, view, reason, at)
        if trouble := _no_save(job, view):
            raise OrderRejected(
                f"{job.job_id}: {trouble}; put it right, or end the job at once: elastic-ctl stop --now"
            )
        return orders.order_stop(job.keys, view, reason, at)

    view, written = await submit(job, order, lambda _: reason.partition(" by ")[0])
    if not written:
        return ended(job, view), None
    if at_once:
        nodes = f"; {counted(len(view.members), 'node')} end at once" if view.members else ""
        return f"{job.job_id} is stopped{nodes}", view
    if not view.members:
        tell(f"no node is registered: {job.job_id} ends when none has come back within {_absence_s(view):g} s")
        return await _end_empty_job(job, view, reason, tell)
    return _will_save(job, view), view


def _will_save(job: NamedJob, view: StoreView) -> str:
    return f"{job.job_id}: {counted(len(view.members), 'node')} will save, stop their workers and end"


def _no_save(job: NamedJob, view: StoreView) -> str:
    """Why agents cannot have their workers save: what they go by cannot be read; "" if they can."""
    if damaged := (*view.unreadable, *_unreadable_members(job, view)):
        return f"{damaged[0]} cannot be read, so nobody could save"
    return f"{job.keys.spec} is not there, so nobody could save" if view.spec is None and view.members else ""


def _unreadable_members(job: NamedJob, view: StoreView) -> list[str]:
    """Keys of members that cannot be read, where that is all that there is of members."""
    return [] if view.members else [key for key in view.damaged if key.startswith(job.keys.members)]


async def _end_empty_job(
    job: NamedJob, stopped: StoreView, reason: str, tell: Callable[[str], object]
) -> tuple[str, StoreView | None]:
    """End a job that was stopped while nobody was registered, unless somebody is within the time that this takes."""
    async with JobWatch(job, tell) as newest:
        while not newest.view.members and newest.view.verdict is None:
            if await end_if_deserted(job, newest, reason):
                return f"{job.job_id} is stopped", stopped
        view = newest.view
    return (_will_save(job, view), stopped) if view.verdict is None else (ended(job, view), None)


async def end_if_deserted(job: NamedJob, newest: JobWatch, reason: str) -> bool:
    """Write the verdict of a job that is stopped once nobody can come back; False if something else happens before."""
    if not await _wait_until_empty(job, newest):
        return False
    at = round(time.time(), 3)

    def order(view: StoreView) -> Transaction | None:
        if view.members or view.verdict is not None:
            return None
        if odd := _unreadable_members(job, view):
            raise OrderRejected(f"{job.job_id}: {odd[0]} cannot be read; delete it, or use elastic-ctl stop --now")
        return orders.write_verdict(job.keys, view, reason, at, deserted=True)

    _, written = await submit(job, order, lambda _: "no node is left: the end")
    return written


def _absence_s(view: StoreView) -> float:
    """After so long nobody comes back whose key is gone: who still runs writes it sooner."""
    return (view.spec.value.lease_ttl_s if view.spec is not None else LEASE_TTL_S) + RETURN_SPARE_S


def run_of(view: StoreView) -> tuple[str, int]:
    """Which run of which store's job it is."""
    store = view.incarnation.value if view.incarnation is not None else ""
    return store, view.spec.value.run if view.spec is not None else 0


LOOK_EVERY_S: Final = 1.0
"""So often etcd is asked, while it is waited that nobody comes back; one that takes longer stands still."""


async def _wait_until_empty(job: NamedJob, newest: JobWatch) -> bool:
    """Wait until nobody has been registered for longer than a lease lasts; False if something else happens before.

    A lease can end early, and an etcd that stands still ends all of them: such a node writes its key again, and its
    workers may just be saving. Only time in which etcd answers counts.
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
    """Tell whether etcd answers as fast as it does where nothing is wrong."""
    try:
        async with asyncio.timeout(LOOK_EVERY_S):
            await job.store.list(KeyRange.key(job.keys.spec), keys_only=True)
    except (StoreError, TimeoutError):
        return False
    return True
