"""`elastic-ctl scale`, `drain` and `stop`: the orders of an operator, and the wait until one is carried out."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from elastic._text import counted
from elastic.core.view import StoreView
from launcher.config import readers
from launcher.config.durations import METAVAR, duration
from launcher.ctl import pods
from launcher.job.named_job import WHO, NamedJob, Subcommand, opened_job, write
from launcher.job.stop import end_if_deserted, run_of, stop, why
from launcher.job.submit import DEADLINE_MIN_S, drain, ended, scale
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.text.sanitize import sanitize_line

# Another number of nodes, for a job that runs or waits.


def _scale_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--np",
        required=True,
        type=readers.argument(readers.np),
        metavar="N|N+|MIN:MAX",
        help="how many nodes, as in elastic-launch: N, N+ (every node that joins), or MIN:MAX (N:N is exactly N)",
    )
    pods.add_arguments(parser)


async def _scale(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    if pods.named(asked):
        write([await pods.resize(asked, environ)])
        return 0
    async with opened_job(vars(asked), environ) as job:
        write([await scale(job, asked.np)])
    return 0


SCALE: Final = Subcommand(
    "scale", "change how many nodes a job uses, or how many pods it has, while it runs", _scale_arguments, alone=_scale
)


# Nodes leave in order: their workers save, and the others go on.


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="NODE|M_id|HOST", help="a node's id, its M_id, or a host with all its nodes"
    )
    parser.add_argument(
        "--deadline",
        type=readers.argument(duration(DEADLINE_MIN_S)),
        metavar=METAVAR,
        help="the machine goes in this time: its workers get until 3 s before (default: --grace, --save_limit)",
    )
    parser.add_argument(
        "--no_wait", action="store_true", help="give the order, and do not wait until it is carried out"
    )


async def _drain(job: NamedJob, asked: argparse.Namespace) -> int:
    line, told = await drain(job, asked.targets, asked.deadline)
    write([line])
    return 0 if asked.no_wait or not told else await _wait_until_gone(job, told)


async def _wait_until_gone(job: NamedJob, nodes: Sequence[str]) -> int:
    """Until the nodes have left."""
    waited, g = list(nodes), 0
    async with JobWatch(job, partial(write_stderr_line, who=WHO)) as newest:
        while True:
            view = newest.view
            if view.verdict is not None:
                write([ended(job, view)])
                return 0
            gone = [node for node in waited if node not in view.members]
            waited = [node for node in waited if node not in gone]
            write(f"{sanitize_line(node)} has left" for node in gone)
            world = view.generation.value if view.generation is not None else None
            if world is not None and view.go is not None and view.go.value.g == world.g > g:
                size = counted(len(world.members), "node")
                if g:
                    write([f"generation {world.g} runs: {size}, world size {world.world_size}"])
                g = world.g
            if not waited:
                return 0
            await newest.changes()


DRAIN: Final = Subcommand(
    "drain", "tell nodes to leave: their workers save and end, and the others go on", _drain_arguments, _drain
)


# The job ends, for good.


def _stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--now", action="store_true", help="do not let the workers save: they get 2 s (--loss_grace)")
    parser.add_argument(
        "--no_wait", action="store_true", help="give the order, and do not wait until the job has ended"
    )


async def _stop(job: NamedJob, asked: argparse.Namespace) -> int:
    reason = why(at_once=asked.now)
    line, stopped = await stop(job, reason, at_once=asked.now, tell=partial(write_stderr_line, who=WHO))
    write([line])
    return 0 if asked.no_wait or stopped is None else await _wait_until_ended(job, stopped, reason)


async def _wait_until_ended(job: NamedJob, stopped: StoreView, reason: str) -> int:
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
                if not await end_if_deserted(job, newest, reason):
                    continue
            await newest.changes()


STOP: Final = Subcommand(
    "stop", "end a job: its workers save and leave, its agents end with exit code 0", _stop_arguments, _stop
)
