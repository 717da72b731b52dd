"""What README.md says against torchrun: the figures of docs/bench in which both were measured, or its way in words."""

from __future__ import annotations

from pathlib import Path

from tests.bench import results
from tests.bench.results import OURS

TORCHRUN, DEFAULTS, TUNED, MEETING = "torchrun", "torchrun, defaults", "torchrun, tuned", "torch's rendezvous"
KILL, FIRST = "SIGKILL of a node", "command to first step, 3 nodes"


def rows(folder: Path = results.FOLDER) -> list[tuple[str, str, str, str]]:
    """What happens, ours, torchrun's, and the command that measures it."""
    known = {
        (one.what, one.who): one.value for name in ("recovery", "start", "scale") for one in results.read(name, folder)
    }

    def seconds(what: str, who: str = OURS) -> str:
        return f"{known[what, who]:.3g} s"

    lost = f"{known['drain: steps lost', OURS]:.0f} steps lost"
    by_default, tuned, few = seconds(KILL, DEFAULTS), seconds(KILL, TUNED), seconds("32 agents meet", MEETING)
    other = f"{by_default}; {tuned} tuned for it"
    host = "as above, and the job ends where that host holds the store of c10d"
    ours, proposer = seconds(KILL), seconds("SIGKILL of the proposer's node")
    drain = f"{seconds('drain, step to step')}, {lost}"
    meeting = f"32 in {few}; 64 not within 120 s"
    found = (
        ("a node is killed: until the next step", ours, other, "recovery --kinds node"),
        ("the node with rank 0 is killed", proposer, host, "recovery --kinds proposer"),
        ("a node leaves in order: from step to step", drain, "scripts are not asked to save", "recovery --kinds drain"),
        ("1,000 agents meet", seconds("1000 agents meet"), meeting, "scale"),
        ("three nodes: command to first step", seconds(FIRST), seconds(FIRST, TORCHRUN), "start --nodes 3"),
    )
    return [(what, mine, theirs, f"python -m tests.bench.{command}") for what, mine, theirs, command in found]
