"""The command `elastic-ctl`: looks at a job in the store from any machine that reaches it, and steers it.

Every subcommand is a row of `COMMANDS`. The flags that name the job are those of `elastic-launch`, with their
environment variables.

Exit codes: 0 done, 1 there is no such job or worker, its node cannot be asked, the job has ended or cannot be forgotten
yet, or, of doctor, a check failed, 2 wrong command line, or stdout takes nothing, 3 the store says no, 4 the store does
not answer. Of `scale` in Kubernetes the API server stands for the store.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NoReturn

from elastic.errors import ConfigError
from launcher import __version__
from launcher.config.argv import argparse_kind, help_parser
from launcher.config.flags import BY_NAME
from launcher.ctl import events, forget, list_jobs, logs, orders, report, status, ui
from launcher.doctor import command as doctor
from launcher.job.named_job import WHO, Subcommand, opened_job
from launcher.system import limits
from launcher.system.descriptors import discard_unflushed, open_standard, write_stderr_line
from launcher.system.stdout import print_result, run_reporting_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic-ctl` with these arguments (the process's own by default); its exit code.

    What goes wrong is one line on stderr, never a stack trace.
    """
    open_standard()
    try:
        return run_reporting_errors(
            partial(_start, sys.argv[1:] if argv is None else argv), partial(write_stderr_line, who=WHO)
        )
    finally:
        discard_unflushed()


def _start(argv: Sequence[str]) -> int:
    asked = parser().parse_args([_underscored(word) for word in argv])
    limits.check_limits(0)
    return asyncio.run(_run(asked, os.environ))


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    command: Subcommand = asked.command
    if command.run is None:
        assert command.alone is not None
        return await command.alone(asked, environ)
    async with opened_job(vars(asked), environ) as job:
        return await command.run(job, asked)


# The command line.


class _CtlParser(argparse.ArgumentParser):
    """Tells a mistake as an error of ours, in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; {self.prog} --help lists all")

    def _print_message(self, message: str, file: object = None) -> None:
        """Write help and version; argparse itself says nothing where they cannot be written."""
        print_result(message)


def parser() -> argparse.ArgumentParser:
    """The command line with all subcommands."""
    made = _CtlParser(
        prog="elastic-ctl", description="Look at a job of elastic-launch, and steer it.", allow_abbrev=False
    )
    made.add_argument("--version", action="version", version=f"elastic-ctl {__version__}")
    commands = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        own = commands.add_parser(command.name, help=command.help, description=command.help, allow_abbrev=False)
        command.arguments(own)
        whose = own.add_argument_group("which etcd, and which job" if "job_id" in command.flags else "which etcd")
        for name in sorted(command.flags, key=lambda name: name not in FIRST):
            flag = BY_NAME[name]
            default = f"default: {flag.default}; " if flag.default else ""
            text = f"{flag.help} ({default}{flag.variables[0]})".replace("%", "%%")
            whose.add_argument(f"--{name}", help=text, **argparse_kind(flag))
        own.set_defaults(command=command)
    return made


def _underscored(word: str) -> str:
    """A flag with dashes in its name, as we write it; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, equals, text = word.partition("=")
    return f"--{name[2:].replace('-', '_')}{equals}{text}"


# What a shell needs to complete the words of `elastic-ctl` and `elastic-launch`.


HOW: Final = {
    "bash": '# In ~/.bashrc:  eval "$(elastic-ctl completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(elastic-ctl completion zsh)"',
    "fish": "# In ~/.config/fish/config.fish:  elastic-ctl completion fish | source",
}
"""How each shell comes to read its script."""


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(HOW), help="the shell that reads it")


async def _complete(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Write the script for one of the shells in `HOW`: complete flags of both commands, subcommands, and files."""
    import shtab

    launch = help_parser()
    for name in ("script", "arguments"):
        launch.add_argument(name, nargs="*" if name == "arguments" else "?").complete = shtab.FILE  # type: ignore[attr-defined]
    print_result("\n".join([HOW[asked.shell], *(shtab.complete(one, asked.shell) for one in (launch, parser()))]))
    return 0


FIRST: Final = ("elastic_server", "job_id", "key_prefix")
"""Flags that every reader of the help needs; those of a guarded etcd come after them."""

COMMANDS: Final[tuple[Subcommand, ...]] = (
    status.COMMAND,
    list_jobs.COMMAND,
    events.COMMAND,
    ui.COMMAND,
    report.COMMAND,
    logs.LOGS,
    logs.STACKS,
    orders.SCALE,
    orders.DRAIN,
    orders.STOP,
    forget.COMMAND,
    Subcommand(
        "doctor",
        "look for what is wrong: on this machine, with --elastic_server also with etcd, with --job_id also in the job",
        doctor.arguments,
        alone=doctor.run,
    ),
    Subcommand(
        "completion",
        "write a script with which bash, zsh or fish completes elastic-launch and elastic-ctl",
        _completion_arguments,
        alone=_complete,
        flags=(),
    ),
)
