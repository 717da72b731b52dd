"""The parser of `elastic-ctl`: subcommands in groups, flags on either side of the subcommand, and the help texts."""

from __future__ import annotations

import argparse
import difflib
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from elastic.errors import ConfigError
from launcher import __version__
from launcher.config.flags import BY_NAME
from launcher.config.help_page import HELP_WIDTH, argparse_kind
from launcher.job.named_job import WHO, Subcommand
from launcher.system.stdout import print_result

SUGGESTION_CUTOFF: Final = 0.6
"""How alike (0 to 1) a mistyped command or flag must be to a real one for it to be proposed."""

COMMON_FLAGS: Final = ("elastic_server", "job_id", "key_prefix")
"""The connection flags that the help of each subcommand shows; `elastic-ctl options` shows all of them."""

TEXTS: Final = ("-h", "--help", "--version")
"""Flags that print a text, whatever the other arguments are."""

HINTS: Final[Mapping[str, str]] = {
    "cancel": "stop",
    "dashboard": "ui",
    "delete": "forget",
    "describe": "status",
    "get": "list",
    "history": "events",
    "jobs": "list",
    "kill": "stop",
    "log": "logs",
    "ls": "list",
    "ps": "list",
    "rm": "forget",
    "tail": "logs",
    "top": "status --watch",
    "watch": "status --watch",
}
"""Subcommands of other programs, with what to write instead."""

_NAME_WIDTH: Final = 12


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """A heading of the help, with its subcommands."""

    title: str
    commands: tuple[Subcommand, ...]


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Everything that the help shows: the subcommands in groups, and examples as pairs of purpose and command."""

    groups: tuple[CommandGroup, ...]
    examples: tuple[tuple[str, str], ...] = field(default=())

    @property
    def commands(self) -> tuple[Subcommand, ...]:
        """All subcommands, in the order of the help."""
        return tuple(command for group in self.groups for command in group.commands)


class CtlParser(argparse.ArgumentParser):
    """A parser whose mistakes are a `ConfigError` of one line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what argparse takes; abbreviations of flags are refused."""
        super().__init__(*args, **{"formatter_class": _formatter, "allow_abbrev": False, **kwargs})
        self.commands: dict[str, CtlParser] = {}
        self.help_text = ""
        """The help, if it is not generated from the arguments."""

    @property
    def flags(self) -> Mapping[str, argparse.Action]:
        """The arguments by their flags, short and long."""
        return self._option_string_actions

    def read(self, argv: Sequence[str]) -> argparse.Namespace:
        """Read a command line. Raises `ConfigError`, and `SystemExit` after a help text or the version."""
        return self.parse_args(_arranged(self, [_hyphenated(word) for word in argv]))

    def error(self, message: str) -> NoReturn:
        """Raise `ConfigError`, with the way to the help."""
        raise ConfigError(f"{message}; {self.prog} --help shows the usage")

    def format_help(self) -> str:
        """The help as text."""
        return self.help_text or super().format_help()

    def _print_message(self, message: str, file: object = None) -> None:
        """Write help and version; argparse itself reports no error where they cannot be written."""
        print_result(message)


def make_parser(table: CommandTable, *, every_flag: bool = False) -> CtlParser:
    """The parser of the whole command line. With `every_flag` each help has all connection flags."""
    made = CtlParser(prog=WHO, description="Look at a job of elastic-launch, and change it.")
    made.add_argument("--version", action="version", version=f"{WHO} {__version__}")
    subparsers = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in table.commands:
        summary = f"{command.help[0].upper()}{command.help[1:]}"
        own = subparsers.add_parser(
            command.name, help=summary, description=f"{summary}.", epilog=_examples_text(command.examples)
        )
        command.arguments(own)
        add_connection_flags(own, command.flags, every_flag=every_flag)
        own.set_defaults(command=command)
        made.commands[command.name] = own
    made.help_text = _overview(table)
    return made


def add_connection_flags(parser: argparse.ArgumentParser, names: Iterable[str], *, every_flag: bool) -> None:
    """Add the flags that name the etcd and the job, the most common ones first."""
    ordered = sorted(names, key=lambda name: name not in COMMON_FLAGS)
    hidden = [name for name in ordered if name not in COMMON_FLAGS and not every_flag]
    title = "which etcd, and which job" if "job_id" in ordered else "which etcd"
    about = f"flags for TLS, etcd users and job secrets: {WHO} options" if hidden else None
    group = parser.add_argument_group(title, about)
    for name in ordered:
        flag = BY_NAME[name]
        default = f"default: {flag.default}; " if flag.default else ""
        text = f"{flag.help} ({default}{flag.variables[0]})".replace("%", "%%")
        group.add_argument(flag.option, help=argparse.SUPPRESS if name in hidden else text, **argparse_kind(flag))


def _hyphenated(word: str) -> str:
    """Return a flag with hyphens in its name, as the parser has it; any other word as it is."""
    if not word.startswith("--"):
        return word
    name, equals, text = word.partition("=")
    return f"{name.replace('_', '-')}{equals}{text}"


# The order of the words: flags may come before the subcommand.


def _arranged(parser: CtlParser, words: Sequence[str]) -> list[str]:
    """Return the words with the subcommand first. Raises `ConfigError` for an unknown subcommand or flag."""
    every = {name: action for own in parser.commands.values() for name, action in own.flags.items()}
    front, rest = list[str](), list(words)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        word = rest.pop(0)
        if word in TEXTS:
            return [word]
        name, joined = _flag_name(word)
        if name not in every:
            raise ConfigError(_no_such_flag(name, every, WHO))
        front.append(word)
        if every[name].nargs is None and not joined and rest:
            front.append(rest.pop(0))
    if not rest:
        raise ConfigError(f"no command given; {WHO} --help lists all")
    command = rest.pop(0)
    if command not in parser.commands:
        raise ConfigError(no_such_command(command, parser.commands))
    own = parser.commands[command]
    before_end = rest[: rest.index("--")] if "--" in rest else rest
    for word in (*front, *before_end):
        name, _ = _flag_name(word)
        if name.startswith("--") and name not in own.flags:
            raise ConfigError(_no_such_flag(name, own.flags, own.prog))
    return [command, *front, *rest]


def _flag_name(word: str) -> tuple[str, bool]:
    """Return the flag of a word, and whether its value is in the same word."""
    if word.startswith("--"):
        name, equals, _ = word.partition("=")
        return name, bool(equals)
    return word[:2], len(word) > 2


def _no_such_flag(name: str, flags: Iterable[str], program: str) -> str:
    close = difflib.get_close_matches(name, sorted(flags), n=1, cutoff=SUGGESTION_CUTOFF)
    hint = f"did you mean {close[0]}?" if close else f"{program} --help lists all"
    return f"no such argument: {name}; {hint}"


def no_such_command(name: str, commands: Iterable[str]) -> str:
    """The message about a subcommand that does not exist, with the one that was probably meant."""
    close = difflib.get_close_matches(name, sorted(commands), n=1, cutoff=SUGGESTION_CUTOFF)
    meant = HINTS.get(name) or next(iter(close), "")
    hint = f"did you mean {meant}?" if meant else f"{WHO} --help lists all"
    return f"no such command: {name}; {hint}"


# The help texts.


def _formatter(prog: str) -> argparse.HelpFormatter:
    return argparse.RawDescriptionHelpFormatter(prog, width=_width())


def _width() -> int:
    return min(HELP_WIDTH, shutil.get_terminal_size((HELP_WIDTH, 0)).columns)


def _examples_text(examples: Iterable[tuple[str, str]]) -> str:
    return "\n".join(["examples:", *(f"  # {purpose}\n  {command}" for purpose, command in examples)])


def _overview(table: CommandTable) -> str:
    """The help without a subcommand."""
    lines = [f"usage: {WHO} COMMAND [flags]", "", "Look at a job of elastic-launch, and change it.", ""]
    for group in table.groups:
        lines.append(f"{group.title}:")
        for command in group.commands:
            summary = f"{command.help[0].upper()}{command.help[1:]}"
            indent = " " * (_NAME_WIDTH + 2)
            lines += textwrap.wrap(
                summary, _width(), initial_indent=f"  {command.name:<{_NAME_WIDTH}}", subsequent_indent=indent
            )
        lines.append("")
    lines += [
        _examples_text(table.examples),
        "",
        "Flags may come before or after the command. --elastic-server, --job-id and the other connection flags",
        f"have environment variables: see `{WHO} options`.",
        f"`{WHO} help COMMAND` shows the flags of a command, `{WHO} --version` the version.",
    ]
    return "\n".join(lines) + "\n"
