"""Hundreds of membership changes in one job of real agents and workers: does anything grow that should not?

    python -m tests.bench.leaks [--changes 500] [--seed 1]

Two agents live through all of it, and everything that can grow in them, in their nurseries, on the machine, in etcd
and in the log folder is looked at after each change. A third node is killed, drained and started again; workers are
killed, or fail by themselves; nurseries are killed; the job is scaled down and up; etcd is started again with its data.
The figures go to docs/bench/leaks.json; the exit code is 1 if something grew.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, Put
from elastic.core.model import JobSpec
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.store.embedded import find_etcd
from elastic.store.etcd import EtcdStore
from launcher.config import readers
from tests.bench import leakparts, results, steplog
from tests.bench.nodes import Node, ended, wait_until
from tests.support.etcd_servers import Server, one_server

SCRIPT = Path(__file__).with_name("leaks_training.py")
STEP_S = 0.01
LIMIT_S = 120.0
"""So long may one change take; a new node imports torch."""
ETCD_EVERY = 50
STEPS = 3
"""Of every rank after each change: then it has made progress, and no budget is used up in a row."""


class Stage:
    """One job, its two lasting nodes, and the third one, which comes and goes."""

    def __init__(self, folder: Path, etcd: Server) -> None:
        self.folder, self.etcd = folder, etcd
        self.mark = f"leaks-{os.getpid()}-{folder.name}"
        self.tmp, self.logs = folder / "tmp", folder / "log"
        self.tmp.mkdir()
        self.log = steplog.Reader(folder / "steps.log")
        self.generation = 0
        self.started = 0
        alone = subprocess.run([*leakparts.OWN_SHM, "true"], check=False, capture_output=True).returncode == 0
        self.within = leakparts.OWN_SHM if alone else ()
        self.nodes: list[Node] = []

    def command(self) -> list[str]:
        """What each node is."""
        return [
            *self.within,
            *(sys.executable, "-m", "launcher", "--elastic-server", self.etcd.endpoint, "--job-id", "leaks"),
            *(
                "--np",
                "1:3",
                "--nproc-per-node",
                "1",
                "--join-window",
                "0.2",
                "--scale-up-interval",
                "0",
                "--lease-ttl",
                "5",
            ),
            *("--max-restarts", "1000000", "--log-dir", str(self.logs), "--failure-stop-timeout", "1"),
            *("--checkpoint-dir", str(self.folder / "checkpoints"), str(SCRIPT), str(self.folder / "steps.log")),
            str(STEP_S),
        ]

    def start(self) -> None:
        """One more node."""
        self.started += 1
        environ = {"TMPDIR": str(self.tmp), "LEAKS_MARK": self.mark, "CUDA_VISIBLE_DEVICES": ""}
        self.nodes.append(Node(self.command(), self.folder / f"node{self.started}.out", environ))

    def world(self, size: int) -> None:
        """Wait for a newer generation of so many ranks that has made some steps."""

        def there() -> bool:
            newest = [step for step in self.log.read()[-2000:] if step.generation > self.generation]
            done = Counter((step.generation, step.rank) for step in newest if step.world == size)
            newest_g = max((g for g, _ in done), default=0)
            return sum(count >= STEPS for (g, _), count in done.items() if g == newest_g) == size

        wait_until(there, LIMIT_S, f"a world of {size} after generation {self.generation}", self.nodes)
        self.generation = self.log.steps[-1].generation
        self.log.steps = self.log.steps[-200:]

    def pid_of(self, rank: int) -> int:
        """The worker that has this rank."""
        return next(step.pid for step in reversed(self.log.steps) if step.rank == rank)

    def nursery(self, node: Node) -> psutil.Process:
        """The nursery of a node."""
        return next(child for child in node.process.children() if "launcher.nursery.main" in " ".join(child.cmdline()))

    def scale(self, np: str) -> None:
        """Write what an operator wants into the spec."""

        async def write() -> None:
            store, keys = EtcdStore([self.etcd.endpoint]), JobKeys("leaks")
            (entry,) = (await store.list(KeyRange.key(keys.spec))).entries
            spec: JobSpec = decode(keys, keys.spec, entry.value)
            await store.txn((), (Put(keys.spec, encode(msgspec.structs.replace(spec, np=readers.np(np)))),))
            await store.close()

        asyncio.run(write())

    def sample(self) -> dict[str, float]:
        """Everything that may grow, at this moment."""
        found: dict[str, float] = {}
        for number, node in enumerate(self.nodes[:2], 1):
            found |= leakparts.of_process(node.process, f"agent {number}")
            found |= leakparts.of_process(self.nursery(node), f"nursery {number}")
            found[f"agent {number} CPU, s"] = sum(node.process.cpu_times()[:2])
            if self.within:
                found[f"agent {number} /dev/shm entries"] = float(len(leakparts.shm_of(node.process.pid)))
        return found | leakparts.of_machine(self.mark, self.tmp, self.logs) | leakparts.of_etcd(self.etcd.endpoint)


# --- what happens -------------------------------------------------------------------------------------------------


def worker_killed(stage: Stage, rng: random.Random) -> Iterator[int]:
    """SIGKILL to a worker."""
    os.kill(stage.pid_of(rng.randrange(3)), signal.SIGKILL)
    yield 3


def worker_fails(stage: Stage, rng: random.Random) -> Iterator[int]:
    """A worker ends with exit code 3."""
    os.kill(stage.pid_of(rng.randrange(3)), signal.SIGUSR1)
    yield 3


def node_killed(stage: Stage, rng: random.Random) -> Iterator[int]:
    """SIGKILL to the third node with all its processes, and a new one."""
    stage.nodes.pop().kill()
    yield 2
    stage.start()
    yield 3


def agent_killed(stage: Stage, rng: random.Random) -> Iterator[int]:
    """SIGKILL to the third agent alone, and a new one."""
    stage.nodes.pop().kill_agent()
    yield 2
    stage.start()
    yield 3


def node_drained(stage: Stage, rng: random.Random) -> Iterator[int]:
    """SIGTERM to the third node, and a new one."""
    stage.nodes.pop().drain()
    yield 2
    stage.start()
    yield 3


def scaled(stage: Stage, rng: random.Random) -> Iterator[int]:
    """One node fewer is wanted, then one more again."""
    stage.scale("1:2")
    yield 2
    stage.scale("1:3")
    yield 3


def nursery_killed(stage: Stage, rng: random.Random) -> Iterator[int]:
    """SIGKILL to the nursery of the third node; its agent starts another."""
    stage.nursery(stage.nodes[2]).kill()
    yield 3


KINDS: tuple[tuple[Callable[[Stage, random.Random], Iterator[int]], float], ...] = (
    (worker_killed, 30),
    (worker_fails, 30),
    (scaled, 20),
    (node_killed, 4),
    (agent_killed, 3),
    (node_drained, 4),
    (nursery_killed, 2),
)


def changes(stage: Stage, rng: random.Random, count: int) -> Iterator[str]:
    """Make so many changes; each time the next world runs, its name."""
    made = 0
    while made < count:
        kind = rng.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
        for size in kind(stage, rng):
            stage.world(size)
            made += 1
            yield kind.__name__
            if made % ETCD_EVERY == 0:
                stage.etcd.kill()
                stage.etcd.start()


def measure(count: int, seed: int, folder: Path) -> tuple[list[dict[str, float]], Counter[str], float]:
    """Run the job; a sample after each change, how many of each kind there were, and the seconds that it took."""
    rng = random.Random(seed)
    etcd = one_server(find_etcd(), folder / "etcd").start()
    stage = Stage(folder, etcd)
    samples: list[dict[str, float]] = []
    kinds: Counter[str] = Counter()
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(ended(stage.nodes))
            for _ in range(3):
                stage.start()
            stage.world(3)
            began_s = time.monotonic()
            for name in changes(stage, rng, count):
                kinds[name] += 1
                samples.append(stage.sample())
                if len(samples) % 50 == 0:
                    print(f"{len(samples)} changes, {time.monotonic() - began_s:.0f} s", flush=True)
            return samples[:count], kinds, time.monotonic() - began_s
    finally:
        etcd.kill()


def figures(found: list[leakparts.Row], count: int) -> list[results.Figure]:
    """How much each quantity grew, and what it was at the end."""
    how = f"python -m tests.bench.leaks --changes {count}"
    return [
        results.figure(
            f"{row.name}: growth over {count} changes", results.OURS, "", [row.grew], how, goal=row.bound.slack
        )
        for row in found
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="leaks-") as scratch:
        samples, kinds, took_s = measure(args.changes, args.seed, Path(scratch))
    every = max(args.changes // 5, 1)
    found = leakparts.rows(samples, every)
    print(f"{len(samples)} changes in {took_s:.0f} s: " + ", ".join(f"{name} {n}" for name, n in kinds.most_common()))
    print("\n".join(leakparts.table(found, every)))
    results.write("leaks", figures(found, args.changes), args.results)
    leaks = [row.name for row in found if row.flat is False]
    print(f"{'leaks: ' + ', '.join(leaks) if leaks else 'nothing leaks'}")
    return 1 if leaks else 0


if __name__ == "__main__":
    sys.exit(main())
