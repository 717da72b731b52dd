"""What README.md says against torchrun: the figures of docs/bench in which both were measured, or its way in words."""

from __future__ import annotations

from pathlib import Path

from tests.bench import results
from tests.bench.results import ENVIRONMENT, OURS

TORCHRUN, DEFAULTS, TUNED, MEETING = "torchrun", "torchrun, defaults", "torchrun, tuned", "torch's rendezvous"
KILL, FIRST = "SIGKILL of a node", "command to first step, 3 nodes"
STATE, SILENT = f"{KILL}, state from memory (100 MB)", "silent node"
SILENT_SHORT = f"{SILENT}, --silence_timeout 0.3"
NOT_MEASURED = "not measured"


def rows(folder: Path = results.FOLDER) -> list[tuple[str, str, str, str]]:
    """What happens, ours, torchrun's, and the command that measures it."""
    known = {
        (one.what, one.who): one.value for name in ("recovery", "start", "scale") for one in results.read(name, folder)
    }

    def seconds(what: str, who: str = OURS) -> str:
        return f"{known[what, who]:.3g} s"

    lost = f"{known['drain: steps lost', OURS]:.0f} steps lost"
    by_default, tuned = seconds(KILL, DEFAULTS), seconds(KILL, TUNED)
    other = f"{by_default}; {tuned} with shorter timeouts"
    host = "as above, and the job ends where that host holds the store of c10d"
    ours, leader = seconds(KILL), seconds("SIGKILL of the proposer's node")
    silent = f"{seconds(SILENT)}; {seconds(SILENT_SHORT)} with `--silence_timeout 0.3`"
    drain = f"{seconds('drain, step to step')}, {lost}"
    meeting = f"64 in {seconds('64 agents meet', MEETING)}, 128 in {seconds('128 agents meet', MEETING)}"
    found = (
        ("SIGKILL of a node, script without state: until the next step", ours, other, "recovery --kinds node"),
        ("the same, the node has rank 0", leader, host, "recovery --kinds proposer"),
        ("SIGKILL of a node, library and 100 MB of state", seconds(STATE), NOT_MEASURED, "recovery --kinds state"),
        ("a host goes silent: power failure, lost network", silent, NOT_MEASURED, "recovery --kinds silent"),
        ("a node leaves in order: from step to step", drain, "scripts are not asked to save", "recovery --kinds drain"),
        ("agents meet, without workers", f"1,000 in {seconds('1000 agents meet')}", meeting, "scale"),
        ("three nodes: command to first step", seconds(FIRST), seconds(FIRST, TORCHRUN), "start --nodes 3"),
    )
    return [
        (what, mine, theirs, f"{ENVIRONMENT}python -m tests.bench.{command}") for what, mine, theirs, command in found
    ]
