"""What `elastic-launch --help` prints, and the shorter text for a call without arguments.

argparse only lays out the text; `launcher.config.argv` reads the command line.
"""

from __future__ import annotations

import argparse
import shutil
import textwrap
from collections.abc import Mapping
from typing import Any, Final

from launcher.config.argv import EXPLAIN, MODULE
from launcher.config.durations import FORMS, METAVAR, duration_text
from launcher.config.flags import BY_NAME, FLAGS
from launcher.config.setting import BASE, HELP_GROUPS, Flag, option
from launcher.config.torchrun_names import ALIASES

HELP_WIDTH: Final = 110
"""Columns of the help, unless the terminal has fewer."""

SYNOPSIS: Final = """elastic-launch [flags] script.py [arguments of the script]
       elastic-launch [flags] -m module [arguments of the module]"""

COMMON: Final[Mapping[str, str]] = {
    "gpus": "the GPUs to use; default: all",
    "nproc_per_node": "workers on each node; default: one for each GPU",
    "np": "nodes: 4 (continues with fewer if some fail), 1:4 (a range), 4:4 (exactly 4)",
    "elastic_server": "the address of etcd, through which the nodes find each other",
    "job_id": "the name of the job, the same on every node",
    "serve": "start etcd at this address, for nodes on other machines",
    "ips": "all hosts of the job; no etcd needed",
    "local_nodes": "run K nodes on this machine",
    "max_restarts": "restarts after failures of the script; default: 3",
    "checkpoint_dir": "the checkpoints, on storage that every node reads",
    "log_dir": "the logs of the workers; default: log/",
    "console": "the workers whose output is shown: rank0, local0, all or none",
}
"""The flags that most people need, for the text about a call without arguments."""

EXAMPLES: Final = (
    ("four GPUs of this machine", "elastic-launch --gpus 0,1,2,3 train.py --batch_size=64"),
    ("three nodes on this machine, to try what happens when one fails", "elastic-launch --local-nodes 3 train.py"),
    (
        "1 to 4 machines that rendezvous through etcd; the same command on every one",
        "elastic-launch --elastic-server etcd0:2379 --job-id job1 --np 1:4 train.py",
    ),
    (
        "the first of several machines without etcd; it prints the command for the others",
        "elastic-launch --serve 192.168.0.1 train.py",
    ),
    ("parameter servers", "elastic-launch --server-num 2 --worker-num 2 train.py"),
)


def help_text() -> str:
    """The whole help: every flag, in groups, with its default and its environment variable; examples at the end."""
    return f"{help_parser().format_help()}\n{_examples()}"


def short_text() -> str:
    """What a call without arguments prints: the usage, the most common flags, and the examples."""
    flags = {f"{BY_NAME[name].option} {BY_NAME[name].metavar}": text for name, text in COMMON.items()}
    width = max(map(len, flags))
    lines = "".join(f"  {flag:<{width}}  {text}\n" for flag, text in flags.items())
    return f"usage: {SYNOPSIS}\n\nCommon flags:\n{lines}\n{_examples()}\nelastic-launch --help shows all flags.\n"


def _examples() -> str:
    return "Examples:\n" + "".join(f"  # {what}\n  {command}\n" for what, command in EXAMPLES)


class _Formatter(argparse.HelpFormatter):
    """Shows the metavar of a flag once, after all its names, and breaks no line inside the name of a flag."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = ", ".join(action.option_strings)
        return f"{names} {action.metavar}" if action.metavar else names

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return textwrap.fill(
            " ".join(text.split()), width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
        )


def help_parser() -> argparse.ArgumentParser:
    """A parser that has every flag, for its help alone."""
    width = min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 0)).columns)
    parser = argparse.ArgumentParser(
        prog="elastic-launch",
        usage=SYNOPSIS,
        description="Run a PyTorch training script on nodes that may join, leave and fail. Run the same command on "
        "every node.",
        epilog="Precedence: flag, ELASTIC_<FLAG>, variable of another launcher, default; --help-env lists the "
        "variables, --explain shows the values in use. Hyphens and underscores both work in names; abbreviations do "
        f"not. A {METAVAR} is {FORMS}. torchrun's --rdzv-backend, --rdzv-conf, --node-rank and --master-addr are "
        "accepted and have no effect. Exit codes: 0 completed, 1 training failed, 2 wrong command line or "
        "configuration, 3 rejected by the job, 4 temporary problem, try again, 128+n this agent was ended by signal n.",
        add_help=False,
        allow_abbrev=False,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=34, width=width),
    )
    groups = {name: parser.add_argument_group(name) for name in HELP_GROUPS}
    groups[BASE].add_argument("-h", "--help", action="store_true", help="show this help and exit")
    groups[BASE].add_argument(
        "--help-env", action="store_true", help="show every environment variable that is read or set"
    )
    groups[BASE].add_argument("--version", action="store_true", help="show the version")
    groups[BASE].add_argument(
        EXPLAIN, action="store_true", help="print every setting and where its value comes from; start nothing"
    )
    groups[BASE].add_argument(*MODULE, metavar="MODULE", help="run a module as a script, like python -m")
    for flag in FLAGS:
        text = f"{meaning(flag)} (default: {shown_default(flag)}; {', '.join(shown_variables(flag))})".replace(
            "%", "%%"
        )
        names = (*flag.spellings, *map(option, aliases_of(flag)))
        groups[flag.group].add_argument(*names, help=text, **argparse_kind(flag))
    return parser


def aliases_of(flag: Flag) -> tuple[str, ...]:
    """The other names of a flag that the help shows."""
    return tuple(name for name, alias in ALIASES.items() if alias.flag == flag.name)


def meaning(flag: Flag) -> str:
    """The help text of a flag, with what its other names mean."""
    return "; ".join((flag.help, *(text for name in aliases_of(flag) if (text := ALIASES[name].help))))


def argparse_kind(flag: Flag) -> dict[str, Any]:
    """Return the arguments with which argparse reads a flag: with a value, or as a switch with the text ""."""
    return {"action": "store_const", "const": ""} if flag.switch else {"metavar": flag.metavar}


def shown_default(flag: Flag) -> str:
    """The default of a flag, as the help shows it."""
    if flag.shown:
        return flag.shown
    if flag.switch:
        return "off"
    return duration_text(flag.default) if flag.metavar == METAVAR else str(flag.default)


def shown_variables(flag: Flag) -> tuple[str, ...]:
    """The environment variables of a flag that the help shows: its own, and those of other launchers."""
    return (flag.variables[0], *flag.environs)
