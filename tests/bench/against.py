"""What README.md says against torchrun apart from the recovery times: figures of docs/bench that have both."""

from __future__ import annotations

from pathlib import Path

from tests.bench import results
from tests.bench.results import ENVIRONMENT, OURS

TORCHRUN, MEETING = "torchrun", "torch's rendezvous"
KILL, FIRST = "SIGKILL of a node", "command to first step, 3 nodes"
SILENT = "silent node"


def rows(folder: Path = results.FOLDER) -> list[tuple[str, str, str, str]]:
    """What happens, ours, torchrun's, and the command that measures it."""
    known = {
        (one.what, one.who): one.value for name in ("recovery", "start", "scale") for one in results.read(name, folder)
    }

    def seconds(what: str, who: str = OURS) -> str:
        return f"{known[what, who]:.3g} s"

    meeting = f"64 in {seconds('64 agents meet', MEETING)}, 128 in {seconds('128 agents meet', MEETING)}"
    lost = f"{known['drain: steps lost', OURS]:.0f}"
    found = (
        ("a node drains: steps lost", lost, "scripts are not asked to save", "recovery --kinds drain"),
        ("agents meet, without workers", f"1,000 in {seconds('1000 agents meet')}", meeting, "scale"),
        ("three nodes: command to first step", seconds(FIRST), seconds(FIRST, TORCHRUN), "start --nodes 3"),
    )
    return [
        (what, mine, theirs, f"{ENVIRONMENT}python -m tests.bench.{command}") for what, mine, theirs, command in found
    ]
