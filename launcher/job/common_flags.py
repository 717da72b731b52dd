"""Flags that several subcommands of `elastic-ctl` have, with one spelling and one short form each."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, Final

from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text

TEXT: Final = "text"
JSON: Final = "json"

WATCH_S: Final = 2.0
WATCH_S_MIN: Final = 0.2
"""The shortest interval, in seconds, of repeated queries: each one asks all nodes, or reads all jobs."""
WATCH_S_MAX: Final = 86_400.0


def add_output(parser: argparse.ArgumentParser, json_help: str) -> None:
    """Add `-o json`, and `--json`, which means the same. `json_help` says what the JSON is."""
    parser.add_argument("-o", "--output", choices=(TEXT, JSON), default=TEXT, metavar="text|json", help=json_help)
    parser.add_argument("--json", action="store_const", dest="output", const=JSON, help="the same as -o json")


def whole_number(high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from 0 to `high`."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) <= len(str(high)) and int(text) <= high):
            raise ValueError(f"{text!r} is not a number from 0 to {high}")
        return int(text)

    return read


def wants_json(asked: argparse.Namespace) -> bool:
    """Return whether the output is JSON."""
    return bool(asked.output == JSON)


def add_follow(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add `-f`."""
    parser.add_argument("-f", "--follow", action="store_true", help=help_text)


def add_lines(parser: argparse.ArgumentParser, high: int, default: int | None, help_text: str) -> None:
    """Add `-n N`, a number from 0 to `high`."""
    read = readers.argument(whole_number(high))
    parser.add_argument("-n", "--lines", "--tail", metavar="N", type=read, default=default, help=help_text)


def add_watch(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add `-w [DURATION]`, in seconds; None without it."""
    watch: dict[str, Any] = {"nargs": "?", "const": WATCH_S, "metavar": METAVAR}
    parser.add_argument(
        "-w",
        "--watch",
        type=readers.argument(duration(WATCH_S_MIN, WATCH_S_MAX)),
        help=f"{help_text} (default: {duration_text(WATCH_S)})",
        **watch,
    )


def add_yes(parser: argparse.ArgumentParser) -> None:
    """Add `-y`."""
    parser.add_argument("-y", "--yes", action="store_true", help="skip the question that is asked on a terminal")
