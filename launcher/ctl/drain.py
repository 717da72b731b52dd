"""`elastic-ctl drain`: nodes leave in order; their workers save, and the others go on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Final

from elastic._text import counted
from launcher.config import readers
from launcher.config.durations import METAVAR, duration
from launcher.job.drain import DEADLINE_MIN_S, drain
from launcher.job.named_job import WHO, NamedJob, Subcommand, write
from launcher.job.submit import ended
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.text.sanitize import sanitize_line


def _arguments(parser: argparse.ArgumentParser) -> None:
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


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    line, told = await drain(job, asked.targets, asked.deadline)
    write([line])
    return 0 if asked.no_wait or not told else await _wait(job, told)


async def _wait(job: NamedJob, nodes: Sequence[str]) -> int:
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


COMMAND: Final = Subcommand(
    "drain", "tell nodes to leave: their workers save and end, and the others go on", _arguments, _run
)
