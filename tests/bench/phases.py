"""The phases of a recovery, as the job's events have them: `{"what": "recovery", "generation": g, "phases": {...}}`.

Where no event has them there are none, and nobody misses them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

LIMIT_S = 1.5
"""The event comes after the first step: its node has to hear of the step. A launcher without events has no phases."""
POLL_S = 0.05


def of(log_dir: Path, generation: int) -> dict[str, float]:
    """Milliseconds of each phase on the way to a generation, from events.jsonl."""
    deadline = time.monotonic() + LIMIT_S
    path = log_dir / "events.jsonl"
    while path.exists():
        if found := _found(path, generation):
            return found
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
    return {}


def medians(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The median of each phase over some rounds, in the order of the first one."""
    names = dict.fromkeys(name for one in rounds for name in one)
    return {name: round(statistics.median(one[name] for one in rounds if name in one), 1) for name in names}


def _found(path: Path, generation: int) -> dict[str, float]:
    whole, _, _ = path.read_bytes().rpartition(b"\n")  # A line may still be on its way.
    for line in reversed(whole.splitlines()):
        event: dict[str, Any] = msgspec.json.decode(line)
        if event["what"] == "recovery" and event["generation"] == generation:
            return {str(name): 1000 * float(length_s) for name, length_s in event["phases"].items()}
    return {}
