"""`elastic-ctl stacks`: where a worker is just now, from the node that has it."""

from __future__ import annotations

import argparse
from typing import Final

from launcher.job import placement
from launcher.job.connect import node_of
from launcher.job.job import Command, Job
from launcher.system.descriptors import say
from launcher.system.stdout import pass_on
from launcher.text.terminal_filter import RAW_HELP, harmless
from launcher.wire.inspect import Stacks


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", help="a rank; in a parameter-server job also server.0, heter.0")
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)


async def _run(job: Job, asked: argparse.Namespace) -> int:
    role, index = placement.named(asked.rank)
    async with await node_of(job, role, index, "none has stacks") as one:
        answer = await one.stacks(Stacks(role, index))
    say(answer.how, "elastic-ctl")
    text = (answer.text.removesuffix("\n") + "\n").encode()
    pass_on(text if asked.raw else harmless(text))
    return 0


COMMAND: Final = Command("stacks", "show the stacks of a worker's threads, now", _arguments, _run)
