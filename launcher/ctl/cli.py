"""The command `elastic-ctl`: shows a job and changes it, from any machine that can connect to its etcd.

`GROUPS` lists the subcommands. The flags that name the job are those of `elastic-launch`, with the same environment
variables. docs/reference/exit-codes.md lists the exit codes.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from elastic.errors import ConfigError
from launcher.config.flags import JOB_FLAGS
from launcher.config.help_page import help_parser
from launcher.ctl import events, forget, list_jobs, orders, report, stacks, status, ui, version, wait
from launcher.ctl.command_line import (
    CommandGroup,
    CommandTable,
    CtlParser,
    add_connection_flags,
    make_parser,
    no_such_command,
)
from launcher.ctl.logs import command as logs
from launcher.doctor import command as doctor
from launcher.job.named_job import WHO, Subcommand, opened_job
from launcher.system import limits
from launcher.system.descriptors import discard_unflushed, open_standard, write_stderr_line
from launcher.system.stdout import print_result, run_reporting_errors


def main(argv: Sequence[str] | None = None) -> int:
    """Run `elastic-ctl` with these arguments (the process's own by default) and return its exit code.

    An error is one line on stderr, never a stack trace.
    """
    open_standard()
    try:
        return run_reporting_errors(
            partial(_start, sys.argv[1:] if argv is None else argv), partial(write_stderr_line, who=WHO)
        )
    finally:
        discard_unflushed()


def _start(argv: Sequence[str]) -> int:
    asked = parser().read(argv)
    limits.check_limits(0)
    return asyncio.run(_run(asked, os.environ))


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    command: Subcommand = asked.command
    if command.run is None:
        assert command.alone is not None
        return await command.alone(asked, environ)
    async with opened_job(vars(asked), environ) as job:
        return await command.run(job, asked)


def parser(*, every_flag: bool = False) -> CtlParser:
    """The command line with all subcommands. With `every_flag` the help of each shows all connection flags."""
    return make_parser(TABLE, every_flag=every_flag)


# `help` and `options`.


def _help_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="?", metavar="COMMAND", help="the command; without it, all commands are listed")


async def _help(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    whole = parser()
    if asked.topic is not None and asked.topic not in whole.commands:
        raise ConfigError(no_such_command(asked.topic, whole.commands))
    print_result((whole if asked.topic is None else whole.commands[asked.topic]).format_help())
    return 0


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    pass


async def _options(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Show the connection flags."""
    shown = CtlParser(prog=WHO, usage=f"{WHO} COMMAND [flags]", add_help=False)
    add_connection_flags(shown, JOB_FLAGS, every_flag=True)
    print_result(shown.format_help())
    return 0


# `completion`.


HOW: Final = {
    "bash": '# In ~/.bashrc:  eval "$(elastic-ctl completion bash)"',
    "zsh": '# In ~/.zshrc, after compinit:  eval "$(elastic-ctl completion zsh)"',
    "fish": "# In ~/.config/fish/config.fish:  elastic-ctl completion fish | source",
}
"""How each shell loads its script."""


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=list(HOW), metavar="|".join(HOW), help="the shell that loads the script")


async def _complete(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Write the script for one of the shells in `HOW`: flags of both commands, subcommands, and files."""
    import shtab

    launch = help_parser()
    for name in ("script", "arguments"):
        launch.add_argument(name, nargs="*" if name == "arguments" else "?").complete = shtab.FILE  # type: ignore[attr-defined]
    parsers = (launch, parser(every_flag=True))
    print_result("\n".join([HOW[asked.shell], *(shtab.complete(each, asked.shell) for each in parsers)]))
    return 0


TOOLS: Final = (
    Subcommand(
        "doctor",
        "find problems of this machine, of etcd (with --elastic-server) and of a job (with --job-id)",
        doctor.arguments,
        alone=doctor.run,
        examples=(
            ("Check this machine", "elastic-ctl doctor"),
            ("Check this machine, etcd and the job", "elastic-ctl doctor --elastic-server 10.0.0.5:2379 --job-id j1"),
        ),
    ),
    version.COMMAND,
    Subcommand(
        "completion",
        "write a script with which bash, zsh or fish completes elastic-launch and elastic-ctl",
        _completion_arguments,
        alone=_complete,
        flags=(),
        examples=(("Load it in bash, for this session", 'eval "$(elastic-ctl completion bash)"'),),
    ),
    Subcommand(
        "options",
        "show the flags that name the etcd and the job, with TLS, etcd users and secrets",
        _no_arguments,
        alone=_options,
        flags=(),
        examples=(("Show them", "elastic-ctl options"),),
    ),
    Subcommand(
        "help",
        "show the help of a command",
        _help_arguments,
        alone=_help,
        flags=(),
        examples=(("Show the flags of logs", "elastic-ctl help logs"),),
    ),
)

GROUPS: Final = (
    CommandGroup(
        "Look at a job",
        (
            status.COMMAND,
            list_jobs.COMMAND,
            wait.COMMAND,
            events.COMMAND,
            logs.COMMAND,
            stacks.COMMAND,
            ui.COMMAND,
            report.COMMAND,
        ),
    ),
    CommandGroup("Change a job", (orders.SCALE, orders.DRAIN, orders.STOP)),
    CommandGroup("Clean up", (forget.COMMAND,)),
    CommandGroup("Tools", TOOLS),
)

TABLE: Final = CommandTable(
    GROUPS,
    examples=(
        ("Name the etcd and the job once", "export ELASTIC_ETCD=10.0.0.5:2379 ELASTIC_JOB_ID=j1"),
        ("Show the job until it ends", "elastic-ctl status --watch"),
        ("Follow the log of rank 0", "elastic-ctl logs 0 --follow"),
    ),
)
