"""torchft as a contender: a lighthouse and replica groups of one worker each. They take the places of store and nodes.

torchft is not in the environment of this project: `make torchft` installs it, with a torch, into one of its own.

A replica group that dies closes its connections, and the collective of the others fails at once. One that is silent
leaves them in the collective until its own timeout, 60 s by default, whatever the heartbeat timeout is. So the tuned
contender has both.
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


def contender(name: str, heartbeat_s: float, collective_s: float) -> Contender:
    """torchft with these timeouts, everything else by default."""

    def command(store: str, _: str, logs: Path) -> list[str]:
        return [str(PYTHON), str(TRAINING), store, str(logs / "steps.log"), str(STEP_S), str(collective_s)]

    return Contender(name, lighthouse(heartbeat_s), command)


def contenders() -> list[Contender]:
    """torchft by default, and with both of its timeouts at 0.3 s."""
    return [
        contender("torchft, defaults", DEFAULT_HEARTBEAT_S, DEFAULT_COLLECTIVE_S),
        contender(f"torchft, heartbeat and collective timeouts {TUNED_S:g} s", TUNED_S, TUNED_S),
    ]
