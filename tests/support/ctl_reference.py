"""The generated part of docs/reference/elastic-ctl.md: each subcommand with its arguments."""

from __future__ import annotations

import argparse
from collections.abc import Iterable

from launcher.config.flags import BY_NAME, JOB_FLAGS
from launcher.ctl import cli
from launcher.ctl.command_line import CtlParser

CONNECTION = {BY_NAME[name].option for name in JOB_FLAGS}


def commands_of_ctl() -> str:
    """A section for each subcommand, below the groups of the help."""
    whole = cli.parser()
    parts = []
    for group in cli.GROUPS:
        parts.append(f"## {group.title}")
        parts += [_section(whole.commands[command.name], command.name) for command in group.commands]
    return "\n\n".join(parts)


def connection_flags() -> str:
    """The flags that name the etcd and the job, with their variables."""
    whole = cli.parser(every_flag=True)
    actions = whole.commands["status"].flags
    return _rows(actions[option] for option in actions if option in CONNECTION)


def _section(parser: CtlParser, name: str) -> str:
    actions = list(dict.fromkeys(parser._actions))
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    own = [action for action in shown if action.dest != "help" and not CONNECTION & set(action.option_strings)]
    names = [(str(action.metavar or action.dest), action.nargs) for action in own if not action.option_strings]
    words = [f"[{each}]" if nargs == "?" else f"{each}…" if nargs == "+" else each for each, nargs in names]
    flags = ["[flags]"] if any(action.option_strings for action in actions if action.dest != "help") else []
    lines = [f"### {name}", "", f"    {' '.join(['elastic-ctl', name, *words, *flags])}", "", str(parser.description)]
    return "\n".join([*lines, "", _rows(own)] if own else lines)


def _rows(actions: Iterable[argparse.Action]) -> str:
    lines = ["| argument | meaning |", "| --- | --- |"]
    for action in actions:
        value = f" {action.metavar}" if action.metavar and action.option_strings else ""
        value = f" [{action.metavar}]" if action.nargs == "?" and action.option_strings else value
        names = ", ".join(f"`{name}`" for name in action.option_strings[:-1])
        last = f"`{(action.option_strings or [str(action.metavar or action.dest)])[-1]}{value}`"
        help_text = (action.help or "").replace("%%", "%")
        cells = (f"{names}, {last}" if names else last, help_text)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)
