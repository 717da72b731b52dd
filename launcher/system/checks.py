"""One check of the doctor, and its output (pure)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from launcher.text.sanitize import sanitize_line

DETAILS_MAX = 40
"""Maximum detail lines below a check; the others are counted."""


class CheckLevel(StrEnum):
    """The result of a check. Only `fail` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


COLOURS = {CheckLevel.OK: "32", CheckLevel.WARN: "33", CheckLevel.FAIL: "1;31"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """The name of a check, its result, and the fix. `details` are the lines of a small table."""

    level: CheckLevel
    name: str
    text: str
    hint: str = ""
    details: tuple[str, ...] = ()


def ok(name: str, text: str, details: tuple[str, ...] = ()) -> Check:
    """Return a passed check."""
    return Check(level=CheckLevel.OK, name=name, text=text, details=details)


def note(name: str, text: str, hint: str) -> Check:
    """Return a passed check with a hint that improves the set-up."""
    return Check(level=CheckLevel.OK, name=name, text=text, hint=hint)


def warn(name: str, text: str, hint: str = "", details: tuple[str, ...] = ()) -> Check:
    """Return a check that found a possible problem."""
    return Check(level=CheckLevel.WARN, name=name, text=text, hint=hint, details=details)


def fail(name: str, text: str, hint: str = "", details: tuple[str, ...] = ()) -> Check:
    """Return a failed check: a job cannot run like this."""
    return Check(level=CheckLevel.FAIL, name=name, text=text, hint=hint, details=details)


def warning(check: Check) -> str:
    """Format a check as a warning of one line, "" if it passed."""
    return "" if check.level is CheckLevel.OK else f"{check.name}: {check.text}; {check.hint}"


def lines(check: Check, *, colours: bool = False) -> list[str]:
    """Format a check as one line, with its details below it."""
    word = f"{check.level:<4}"
    if colours:
        word = f"\x1b[{COLOURS[check.level]}m{word}\x1b[0m"
    text = sanitize_line(f"{check.name}: {check.text}" + (f"; {check.hint}" if check.hint else ""))
    shown = [sanitize_line(detail) for detail in check.details[:DETAILS_MAX]]
    if len(check.details) > DETAILS_MAX:
        shown.append(f"and {len(check.details) - DETAILS_MAX} more")
    return [f"{word}  {text}", *(f"        {detail}" for detail in shown)]
