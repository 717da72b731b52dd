"""The command `elastic-ctl`: looks at a job in the store from any machine that reaches it.

Every subcommand is a row of `COMMANDS`. The flags that name the job are those of `elastic-launch`, with their
environment variables.

Exit codes: 0 done, 1 there is no such job or, of doctor, a check failed, 2 wrong command line, or stdout takes nothing,
3 the store says no, 4 the store does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import msgspec

from elastic.errors import ConfigError, ElasticError
from elastic.keys import JobKeys, View, ViewReader
from elastic.store.base import Store
from launcher import __version__, access, history, shortage, status
from launcher.commandline import named_values
from launcher.descriptors import let_go_of_unsaid, open_standard, say
from launcher.doctor import command as doctor
from launcher.flags import BY_NAME
from launcher.status import NodeState
from launcher.telling import answer, told
from launcher.values import Servers

JOB_FLAGS: Final = (*access.FLAGS, "job_id", "key_prefix")
"""The flags of `elastic-launch` that name a job; every subcommand has them."""

NO_SUCH_JOB = 1
WHO = "elastic-ctl"

STYLES: Final = {
    NodeState.RUNNING: "green",
    NodeState.DONE: "green",
    NodeState.STOPPING: "yellow",
    NodeState.WAITING: "yellow",
    NodeState.DRAINING: "yellow",
    NodeState.LOST: "bold red",
}


@dataclass(frozen=True, slots=True)
class Job:
    """The job that was named, and its store."""

    job_id: str
    keys: JobKeys
    store: Store
    servers: tuple[str, ...]

    async def view(self) -> View:
        """Everything that stands in the store about the job, at one revision. Raises `NoSuchJob` if that is nothing."""
        listing = await self.store.list(self.keys.everything[0])
        if not listing.entries:
            raise NoSuchJob(f"there is no job {self.job_id} at {', '.join(self.servers)} below {self.keys.root}")
        entries = {entry.key: entry for entry in listing.entries}
        return ViewReader(self.keys).read(entries, listing.revision, complete=True, follows=None)


class NoSuchJob(ElasticError):
    """Nothing stands in the store under this job id."""

    exit_code = NO_SUCH_JOB


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand. `arguments` adds what it takes beside the flags of the job; `run` gives the exit code.

    One with `alone` instead of `run` needs no job, and opens the store itself if it is given one.
    """

    name: str
    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[Job, argparse.Namespace], Awaitable[int]] | None = None
    alone: Callable[[argparse.Namespace, Mapping[str, str]], Awaitable[int]] | None = None


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic-ctl` with these arguments (the process's own by default); its exit code.

    What goes wrong is one line on stderr, never a stack trace.
    """
    open_standard()
    try:
        return told(partial(_start, sys.argv[1:] if argv is None else argv), partial(say, who=WHO))
    finally:
        let_go_of_unsaid()


def _start(argv: Sequence[str]) -> int:
    asked = _parser().parse_args([_underscored(word) for word in argv])
    shortage.check(0)
    return asyncio.run(_run(asked, os.environ))


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    command: Command = asked.command
    if command.run is None:
        assert command.alone is not None
        return await command.alone(asked, environ)
    servers, job_id, key_prefix = named_job(vars(asked), environ)
    way, warnings = access.access(named_values(vars(asked), environ, JOB_FLAGS), environ)
    for line in warnings:
        say(f"warning: {line}", WHO)
    store = way.open()
    try:
        return await command.run(Job(job_id, JobKeys(job_id, key_prefix), store, servers.endpoints), asked)
    finally:
        await store.close()


def named_job(asked: Mapping[str, str | None], environ: Mapping[str, str]) -> tuple[Servers, str, str]:
    """Server, job id and key prefix, from the flags (by name) and the environment, as `elastic-launch` reads them.

    Inside a worker the job is the worker's. Raises `ConfigError` that names what is missing or wrong.
    """
    given = named_values(asked, environ, JOB_FLAGS)
    for name in ("elastic_server", "job_id"):
        flag = BY_NAME[name]
        if not given.get(flag.field):
            raise ConfigError(f"which job? add --{name} {flag.metavar.partition(',')[0]}, or set {flag.variables[0]}")
    key_prefix = BY_NAME["key_prefix"]
    return given["servers"], given["job_id"], given.get(key_prefix.field, key_prefix.default)


# The command line.


class _Parser(argparse.ArgumentParser):
    """Tells a mistake as an error of ours, in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; {self.prog} --help lists all")

    def _print_message(self, message: str, file: object = None) -> None:
        """Write help and version; argparse itself says nothing where they cannot be written."""
        answer(message)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="elastic-ctl", description="Look at a job of elastic-launch.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"elastic-ctl {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        for name in JOB_FLAGS:
            flag = BY_NAME[name]
            default = f"default: {flag.default}; " if flag.default else ""
            text = f"{flag.help} ({default}{flag.variables[0]})".replace("%", "%%")
            own.add_argument(f"--{name}", metavar=flag.metavar, help=text)
        command.arguments(own)
        own.set_defaults(command=command)
    return parser


def _underscored(word: str) -> str:
    """A flag with dashes in its name, as we write it; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, equals, text = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{text}"


# elastic-ctl status


def _status_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object, for scripts")


async def _status(job: Job, asked: argparse.Namespace) -> int:
    described = status.describe(await job.view(), job.job_id)
    if asked.json:
        _write((msgspec.json.encode(described).decode(),))
        return 0
    _write(status.head_lines(described, time.time()))
    if described.nodes:
        (_draw if sys.stdout.isatty() else _align)(described)
    return 0


# elastic-ctl events


def _events_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")


async def _events(job: Job, asked: argparse.Namespace) -> int:
    found = await history.read(job.store, job.keys)
    if not found:
        await job.view()  # Raises if there is no such job; one that has just begun has no events.
    _write(msgspec.json.encode(event).decode() if asked.json else history.in_words(event) for event in found)
    return 0


def _align(described: status.JobStatus) -> None:
    """The table in plain columns, for files and other programs."""
    rows = [status.COLUMNS, *(status.cells(node) for node in described.nodes)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    _write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)


def _draw(described: status.JobStatus) -> None:
    """The table on a terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(*status.COLUMNS, box=box.SIMPLE_HEAD)
    for node in described.nodes:
        table.add_row(*map(Text, status.cells(node)), style=STYLES.get(node.state, ""))
    console = Console()
    with console.capture() as drawn:  # It would end the process by itself where nobody reads.
        console.print(table)
    answer(drawn.get())


def _write(lines: Iterable[str]) -> None:
    """Write lines to stdout."""
    answer("".join(f"{line}\n" for line in lines))


COMMANDS: Final[tuple[Command, ...]] = (
    Command("status", "show a job: its generation, its nodes, and what it waits for", _status_arguments, _status),
    Command("events", "show what happened to a job, oldest first: who, what, when, why", _events_arguments, _events),
    Command(
        "doctor",
        "look for what is wrong: on this machine, with --elastic_server also with etcd, with --job_id also in the job",
        doctor.arguments,
        alone=doctor.run,
    ),
)

if __name__ == "__main__":
    sys.exit(main())
