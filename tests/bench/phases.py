"""The phases of a recovery, as the job's events have them: `{"what": "recovery", "generation": g, "phases": {...}}`.

Where no event has them there are none, and nobody misses them.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec


def of(log_dir: Path, generation: int) -> dict[str, float]:
    """Milliseconds of each phase on the way to a generation, from events.jsonl."""
    path = log_dir / "events.jsonl"
    if not path.exists():
        return {}
    for line in reversed(path.read_bytes().splitlines()):
        event: dict[str, Any] = msgspec.json.decode(line)
        if event["what"] == "recovery" and event["generation"] == generation:
            found = event.get("phases", {})
            return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}
    return {}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each phase over some rounds, in the order of the first one."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: round(statistics.median(one[name] for one in rounds if name in one), 1) for name in names}
