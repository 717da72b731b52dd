"""`elastic-ctl scale`, `drain` and `stop`: each writes a request to etcd and waits until the job has followed it."""

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
from launcher.job import common_flags
from launcher.job.confirmation import confirm, on_a_terminal
from launcher.job.named_job import WHO, NamedJob, Subcommand, opened_job, write
from launcher.job.stop import end_if_deserted, run_of, stop, why
from launcher.job.submit import DEADLINE_MIN_S, drain, ended, scale
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.text.sanitize import sanitize_line

# Change the number of nodes.


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
    "scale",
    "change how many nodes a job uses, or how many pods it has, while it runs",
    _scale_arguments,
    alone=_scale,
    examples=(
        ("Use 2 to 4 nodes", "elastic-ctl scale --np 2:4"),
        ("Change a Job in Kubernetes to 4 pods", "elastic-ctl scale --k8s-job train --np 4"),
    ),
)


# Make nodes leave gracefully.


def _drain_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="NODE|M_id|HOST", help="a node's id, its M_id, or a host with all its nodes"
    )
    parser.add_argument(
        "--deadline",
        type=readers.argument(duration(DEADLINE_MIN_S)),
        metavar=METAVAR,
        help="time until the host goes away; its workers must have exited 3 s earlier, at the latest (default: none; "
        "--save-timeout and --stop-timeout always apply)",
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="return once the request is written, without waiting for the nodes"
    )


async def _drain(job: NamedJob, asked: argparse.Namespace) -> int:
    line, nodes = await drain(job, asked.targets, asked.deadline)
    write([line])
    return 0 if asked.no_wait or not nodes else await _wait_until_gone(job, nodes)


async def _wait_until_gone(job: NamedJob, nodes: Sequence[str]) -> int:
    """Wait until the nodes have left, and report each."""
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
                    write([f"generation {world.g} is running: {size}, world size {world.world_size}"])
                g = world.g
            if not waited:
                return 0
            await newest.changes()


DRAIN: Final = Subcommand(
    "drain",
    "make nodes leave: their workers save and exit, the other nodes continue",
    _drain_arguments,
    _drain,
    examples=(
        ("Drain all nodes of a host", "elastic-ctl drain 10.0.0.6"),
        ("Drain node rank 1 of a host that goes away in 2 minutes", "elastic-ctl drain 1 --deadline 2m"),
    ),
)


# End the job for good.


def _stop_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--now", action="store_true", help="do not let the workers save: they get 2 s (--failure-stop-timeout)"
    )
    parser.add_argument(
        "--no-wait", action="store_true", help="return once the request is written, without waiting for the job's end"
    )
    common_flags.add_yes(parser)


async def _stop(job: NamedJob, asked: argparse.Namespace) -> int:
    if not asked.yes and on_a_terminal() and (view := await job.view()).verdict is None:
        confirm(_question(job, view, at_once=asked.now), f"job {job.job_id} continues")
    reason = why(at_once=asked.now)
    line, stopped = await stop(job, reason, at_once=asked.now, tell=partial(write_stderr_line, who=WHO))
    write([line])
    return 0 if asked.no_wait or stopped is None else await _wait_until_ended(job, stopped, reason)


def _question(job: NamedJob, view: StoreView, *, at_once: bool) -> str:
    nodes = counted(len(view.members), "node")
    what = "be stopped without saving" if at_once else "save and exit"
    return f"Stop job {job.job_id} for good? The workers on {nodes} will {what}."


async def _wait_until_ended(job: NamedJob, stopped: StoreView, reason: str) -> int:
    """Wait until the final status is written and every node has left. If all nodes have died, write it here."""
    run = run_of(stopped)
    said = False
    async with JobWatch(job, partial(write_stderr_line, who=WHO)) as newest:
        while True:
            view = newest.view
            if not (view.incarnation or view.spec or view.generation or view.verdict or view.unreadable):
                write([f"{job.job_id} was deleted while waiting"])
                return 0
            if view.verdict is None and (said or run_of(view) != run):
                write([f"{job.job_id} was started again"])
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
    "stop",
    "end a job: its workers save, its agents exit with code 0",
    _stop_arguments,
    _stop,
    examples=(
        ("Save and end the job, after a question on a terminal", "elastic-ctl stop --job-id j1"),
        ("End it at once, without saving and without a question", "elastic-ctl stop --job-id j1 --now -y"),
    ),
)
