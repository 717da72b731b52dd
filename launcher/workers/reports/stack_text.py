"""The stacks of a process's threads, as python's faulthandler writes them, among other things that it writes (pure)."""

from __future__ import annotations

import re

_THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):$")
_FRAME = re.compile(r'^  (?:File ".*", line (?:\d+|\?\?\?) in .*|<[^>]+>|\.\.\.)$')


def _shown(line: str) -> str:
    """A line without signs that would steer a terminal: a thread and a function may have any name."""
    return "".join(sign if sign.isprintable() else "\ufffd" for sign in line)


def stacks_in(said: bytes) -> str:
    """The stacks in what a process wrote, "" if there are none. What other threads wrote in between is left out."""
    kept: list[str] = []
    inside = False
    for line in said.decode(errors="replace").split("\n"):
        if _THREAD.match(line):
            if kept:
                kept.append("")
            kept.append(_shown(line))
            inside = True
        elif inside and _FRAME.match(line):
            kept.append(_shown(line))
    return "\n".join(kept)
