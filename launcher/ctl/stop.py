"""`elastic-ctl stop`: the job ends, for good."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from elastic.core.view import StoreView
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.stop import end_job, run_of, stop, wait_until_empty, why
from launcher.job.submit import ended
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not let the workers save: they get 2 s (--loss_grace)")
    parser.add_argument(
        "--no_wait", action="store_true", help="give the order, and do not wait until the job has ended"
    )


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    reason = why(at_once=asked.now)
    line, stopped = await stop(job, reason, at_once=asked.now, tell=partial(write_stderr_line, who=WHO))
    write([line])
    return 0 if asked.no_wait or stopped is None else await _wait(job, stopped, reason)


async def _wait(job: NamedJob, stopped: StoreView, reason: str) -> int:
    """Until the verdict is there and every node has left. Where all of them died meanwhile, it is written here."""
    run = run_of(stopped)
    said = False
    async with JobWatch(job, partial(write_stderr_line, who=WHO)) as newest:
        while True:
            view = newest.view
            if not (view.incarnation or view.spec or view.generation or view.verdict or view.unreadable):
                write([f"{job.job_id} was deleted meanwhile"])
                return 0
            if view.verdict is None and (said or run_of(view) != run):
                write([f"{job.job_id} runs again meanwhile"])
                return 0
            if view.verdict is not None and not said:
                write([ended(job, view)])
                said = True
            if not view.members:
                if said:
                    return 0
                if not await wait_until_empty(job, newest):
                    continue
                await end_job(job, reason)
            await newest.changes()


COMMAND: Final = Subcommand(
    "stop", "end a job: its workers save and leave, its agents end with exit code 0", _arguments, _run
)
