"""One check and how it is shown (pure)."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from launcher.text.sanitize import sanitize_line

DETAILS_MAX = 40
"""Lines below a check; the rest is counted."""


class CheckLevel(StrEnum):
    """How a check came out. Only `fail` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


COLOURS = {CheckLevel.OK: "32", CheckLevel.WARN: "33", CheckLevel.FAIL: "1;31"}


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """What was looked at, what was found, and what to do about it. `details` are lines of a small table."""

    level: CheckLevel
    name: str
    text: str
    hint: str = msgspec.field(default="", name="mend")
    details: tuple[str, ...] = ()


def ok(name: str, text: str, details: tuple[str, ...] = ()) -> Check:
    """All is well."""
    return Check(level=CheckLevel.OK, name=name, text=text, details=details)


def note(name: str, text: str, hint: str) -> Check:
    """All is well, and the hint makes it better."""
    return Check(level=CheckLevel.OK, name=name, text=text, hint=hint)


def warn(name: str, text: str, hint: str = "", details: tuple[str, ...] = ()) -> Check:
    """It works, but perhaps not as the user thinks."""
    return Check(level=CheckLevel.WARN, name=name, text=text, hint=hint, details=details)


def fail(name: str, text: str, hint: str = "", details: tuple[str, ...] = ()) -> Check:
    """A job cannot run like this."""
    return Check(level=CheckLevel.FAIL, name=name, text=text, hint=hint, details=details)


def warning(check: Check) -> str:
    """A check as one line for people who start something, "" if all is well."""
    return "" if check.level is CheckLevel.OK else f"{check.name}: {check.text}; {check.hint}"


def lines(check: Check, *, colours: bool = False) -> list[str]:
    """The line of a check, and those below it."""
    word = f"{check.level:<4}"
    if colours:
        word = f"\x1b[{COLOURS[check.level]}m{word}\x1b[0m"
    text = sanitize_line(f"{check.name}: {check.text}" + (f"; {check.hint}" if check.hint else ""))
    shown = [sanitize_line(detail) for detail in check.details[:DETAILS_MAX]]
    if len(check.details) > DETAILS_MAX:
        shown.append(f"and {len(check.details) - DETAILS_MAX} more")
    return [f"{word}  {text}", *(f"        {detail}" for detail in shown)]
