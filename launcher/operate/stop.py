"""`elastic-ctl stop`: the job ends, for good."""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Final

from elastic.keys import View
from elastic.proposals import Transaction
from launcher.descriptors import say
from launcher.operate import orders
from launcher.operate.job import WHO, Command, Job, write
from launcher.operate.newest import Newest
from launcher.operate.ordering import CannotOrder, ended, give, operator
from launcher.report import of_nodes


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not let the workers save: they get 2 s (--loss_grace)")
    parser.add_argument(
        "--no_wait", action="store_true", help="give the order, and do not wait until the job has ended"
    )


async def _run(job: Job, asked: argparse.Namespace) -> int:
    reason = why(at_once=asked.now)
    line, stopped = await stop(job, reason, at_once=asked.now)
    write([line])
    return 0 if asked.no_wait or stopped is None else await _wait(job, stopped, reason)


def why(*, at_once: bool) -> str:
    """The reason of such an order, for the verdict."""
    return f"elastic-ctl stop{' --now' if at_once else ''} by {operator()}"


async def stop(job: Job, reason: str, *, at_once: bool) -> tuple[str, View | None]:
    """Give the order; the line that says what follows, and the job as it was then; None: it had ended before.

    Raises what `give` raises.
    """

    def order(view: View) -> Transaction | None:
        if view.verdict is not None:
            return None
        if view.spec is None and view.generation is None and not view.unreadable and not view.members:
            raise CannotOrder(f"{job.job_id} has never begun: nothing is to be stopped")
        if not at_once and (trouble := _no_save(job, view)):
            raise CannotOrder(f"{job.job_id}: {trouble}; put it right, or end the job at once: elastic-ctl stop --now")
        at = round(time.time(), 3)
        if at_once or not view.members or view.spec is None:  # Nobody is there who could write the verdict.
            return orders.end(job.keys, view, reason, at)
        return orders.halt(job.keys, view, reason, at)

    view, written = await give(job, order, lambda _: reason.partition(" by ")[0])
    if not written:
        return ended(job, view), None
    nodes = of_nodes(len(view.members))
    if at_once or not view.members:
        return f"{job.job_id} is stopped; {nodes} end at once" if view.members else f"{job.job_id} is stopped", view
    return f"{job.job_id}: {nodes} will save, stop their workers and end", view


def _no_save(job: Job, view: View) -> str:
    """Why agents cannot have their workers save: what they go by cannot be read; "" if they can."""
    if view.unreadable:
        return f"{view.unreadable[0]} cannot be read, so nobody could save"
    return f"{job.keys.spec} is not there, so nobody could save" if view.spec is None and view.members else ""


async def _wait(job: Job, stopped: View, reason: str) -> int:
    """Until the verdict is there and every node has left. Where all of them died meanwhile, it is written here."""
    run = _run_of(stopped)
    said = False
    async with Newest(job, partial(say, who=WHO)) as newest:
        while True:
            view = newest.view
            if not (view.incarnation or view.spec or view.generation or view.verdict or view.unreadable):
                write([f"{job.job_id} was deleted meanwhile"])
                return 0
            if view.verdict is None and (said or _run_of(view) != run):
                write([f"{job.job_id} runs again meanwhile"])
                return 0
            if view.verdict is not None and not said:
                write([ended(job, view)])
                said = True
            if not view.members:
                if said:
                    return 0
                at = round(time.time(), 3)
                await give(job, partial(_end, job, reason, at), lambda _: "no node is left: the end")
            await newest.changes()


def _end(job: Job, reason: str, at: float, view: View) -> Transaction | None:
    """The verdict of a job that is stopped and that nobody is left in."""
    return None if view.members or view.verdict is not None else orders.end(job.keys, view, reason, at)


def _run_of(view: View) -> tuple[str, int]:
    """Which run of which store's job it is."""
    store = view.incarnation.value if view.incarnation is not None else ""
    return store, view.spec.value.run if view.spec is not None else 0


COMMAND: Final = Command(
    "stop", "end a job: its workers save and leave, its agents end with exit code 0", _arguments, _run
)
