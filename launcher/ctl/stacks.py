"""`elastic-ctl stacks`: where the threads of a worker are now, from the node that runs it."""

from __future__ import annotations

import argparse
from typing import Final

from launcher.job import process_location
from launcher.job.inspect_client import node_of
from launcher.job.named_job import WHO, NamedJob, Subcommand
from launcher.system.descriptors import write_stderr_line
from launcher.system.stdout import write_stdout
from launcher.text.terminal_filter import RAW_HELP, filter_stream
from launcher.wire.inspect_messages import StacksQuestion


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rank", metavar="RANK", help="a rank; in a parameter-server job also server.0, heter.0")
    parser.add_argument("--raw", action="store_true", help=RAW_HELP)


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    role, index = process_location.named(asked.rank)
    async with await node_of(job, role, index, "none has stack traces") as client:
        answer = await client.stacks(StacksQuestion(role, index))
    write_stderr_line(answer.how, WHO)
    text = (answer.text.removesuffix("\n") + "\n").encode()
    write_stdout(text if asked.raw else filter_stream(text))
    return 0


COMMAND: Final = Subcommand(
    "stacks",
    "show the stack traces of a worker's threads, now",
    _arguments,
    _run,
    examples=(("Show where rank 3 is", "elastic-ctl stacks 3"),),
)
