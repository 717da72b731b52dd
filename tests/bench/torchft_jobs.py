"""torchft as a contender: a lighthouse and replica groups of one worker each. They take the places of store and nodes.

torchft is not in the environment of this project: `make torchft` installs it, with a torch, into one of its own.

A group that dies closes its connections, and the collective of the others fails at once; now and then one of them is
left in it. A group that is silent leaves them all in it, until its own timeout, 60 s by default, whatever the heartbeat
timeout is. So the tuned contender has both. Of three groups two are most of them: the next quorum waits for the join
timeout of the lighthouse, 0.1 s. Of two groups one is not: it waits for the heartbeat timeout, 5 s by default.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.bench.jobs import STEP_S, Contender, Store
from tests.bench.nodes import ROOT
from tests.cluster.hosts import Cluster

PYTHON = ROOT / ".venv-torchft" / "bin" / "python"
TRAINING = Path(__file__).with_name("torchft_training.py")
DEFAULT_HEARTBEAT_S, DEFAULT_COLLECTIVE_S = 5.0, 60.0
"""Of a lighthouse, and of a process group, without the setting."""
TUNED_S = 0.3
DEFAULTS, TUNED = "torchft, defaults", f"torchft, heartbeat and collective timeouts {TUNED_S:g} s"

LIGHTHOUSE = """
import sys, time
from torchft.coordination import LighthouseServer
server = LighthouseServer(bind=sys.argv[1] + ":0", min_replicas=1, heartbeat_timeout_ms=int(sys.argv[2]))
print(server.address().rpartition(":")[2], flush=True)
time.sleep(1e6)
"""
"""It prints its port. Its own address would be the machine's name, which no network namespace resolves."""


def missing() -> str:
    """Why torchft does not contend here, "" if it does."""
    return "" if PYTHON.exists() else "not installed (make torchft)"


def lighthouse(heartbeat_s: float) -> Store:
    """A lighthouse that takes a replica group for lost after so many seconds without a heartbeat."""

    @contextlib.contextmanager
    def store(cluster: Cluster | None = None) -> Iterator[str]:
        address = "127.0.0.1" if cluster is None else cluster.first.address
        command = [str(PYTHON), "-c", LIGHTHOUSE, address, f"{1000 * heartbeat_s:.0f}"]
        words = command if cluster is None else cluster.first.command(command)
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            try:
                assert process.stdout is not None
                port = process.stdout.readline().strip()
                if not port:
                    raise RuntimeError("torchft's lighthouse did not start")
                yield f"{address}:{port}"
            finally:
                process.kill()

    return store


def contender(name: str, heartbeat_s: float, collective_s: float, *, within_steps: bool) -> Contender:
    """torchft with these timeouts, everything else by default; the time of a step passes within it or after it."""
    waits = (0.0, STEP_S) if within_steps else (STEP_S, 0.0)

    def command(store: str, _: str, logs: Path) -> list[str]:
        return [str(PYTHON), str(TRAINING), store, str(logs / "steps.log"), *map(str, (*waits, collective_s))]

    return Contender(name, lighthouse(heartbeat_s), command)


def contenders(*, within_steps: bool) -> list[Contender]:
    """torchft by default, and with both of its timeouts at 0.3 s."""
    return [
        contender(DEFAULTS, DEFAULT_HEARTBEAT_S, DEFAULT_COLLECTIVE_S, within_steps=within_steps),
        contender(TUNED, TUNED_S, TUNED_S, within_steps=within_steps),
    ]
