"""When the nodes of a job have prepared what their script imports, as `launcher.log` has it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

BEGUN = "preparing a fork server with the script's imports"
READY = "the next workers start with the script's imports preloaded"
NOTHING = "the script imports nothing that the fork server has not loaded"
DONE = (READY, NOTHING)
"""A node that has logged one of them prepares nothing more."""
LIMIT_S = 60.0
"""From the first step until the last node is done."""


def first_logged(log_dir: Path, *texts: str) -> dict[str, float]:
    """The wall clock at which each node first logged one of these texts, by node."""
    path = log_dir / "launcher.log"
    found: dict[str, float] = {}
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        time, _, rest = line.partition(" ")
        node, _, message = rest.partition(" ")
        if message.startswith(texts):
            found.setdefault(node, datetime.fromisoformat(time).timestamp())
    return found
