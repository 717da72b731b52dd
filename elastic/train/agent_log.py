"""One line for people from inside a worker: said by its agent, or on stderr where there is none."""

from __future__ import annotations

import sys

from elastic.channel.client import Note, fitting
from elastic.train import report


def say(text: str, *, warn: bool = False) -> None:
    """Say something once, in one line; never fails. `warn`: also with --quiet."""
    text = fitting(" ".join(text.splitlines()))
    end = report.end()
    if end is None or not end.send(Note(text, warn)):
        sys.stderr.write(f"[elastic] {text}\n")
        sys.stderr.flush()
