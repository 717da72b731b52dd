"""`elastic-ctl scale`: another number of nodes for a job that runs or waits."""

from __future__ import annotations

import argparse
from typing import Final

from launcher.config import readers
from launcher.job.named_job import NamedJob, Subcommand, write
from launcher.job.scale import scale


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--np",
        required=True,
        type=readers.argument(readers.np),
        metavar="N|N+|MIN:MAX",
        help="how many nodes, as in elastic-launch: N, N+ (every node that joins), or MIN:MAX (N:N is exactly N)",
    )


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    write([await scale(job, asked.np)])
    return 0


COMMAND: Final = Subcommand("scale", "change how many nodes a job uses, while it runs", _arguments, _run)
