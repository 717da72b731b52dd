"""The event queue and the one source of randomness: the same seed gives the same run."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable

from elastic.core.agent.events import Event
from elastic.core.model import JobSpec, Np
from elastic.store.memory_core import MemoryCore
from tests.sim.nodes import Job, Node, Stranger, Violation

LATENCY_S = (0.0005, 0.005)
TIMEOUTS_S = (1.0, 1.0, 0.4, 0.0)
"""The silence timeouts of the seeds."""


class Clockwork:
    """Virtual time, the store's content, the nodes by name, and what one seed chose."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        self.seed = seed
        self.defect = defect
        self.random = random.Random(seed)
        self.aside = random.Random(f"{seed} aside")
        """For what was added later: what the seeds draw from `random` stays as it was."""
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.store = MemoryCore()
        self.store_number = 0
        self.store_up = True
        self.store_down_since = -1e9
        self.nodes: dict[str, Node] = {}
        self.strangers: list[Stranger] = []
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.late_answers = 0.0
        self.revokes_lost = False
        """Whether the requests that end the leases of the dead are lost."""
        self.runs_again = False
        """Whether somebody will come who runs the job again, although it has ended."""
        self.watch_faults = True
        rng = self.random
        size = rng.randint(3, 7)
        low = rng.randint(1, max(1, size - 2))
        self.np = rng.choice(
            [Np(low=1, high=size, first=size), Np(low=low, high=size - rng.randint(0, 1), first=low)]
            + ([Np(low=low, high=low, first=low)] if rng.random() < 0.3 else [])
        )
        self.size = size
        self.links = rng.random() < 0.6
        self.spec = JobSpec(
            np=self.np,
            slots=rng.choice([1, 1, 2]),
            join_window_s=rng.choice([1.0, 3.0]),
            scale_up_interval_s=rng.choice([5.0, 15.0, None]),
            restarts_max=rng.choice([2, 4, 30]),
            lease_ttl_s=rng.choice([2.0, 5.0]),
            etcd_outage_timeout_s=rng.choice([15.0, 30.0]),
            silence_timeout_s=random.Random(f"{seed} silence").choice(TIMEOUTS_S),
            fatal_exit_codes=(9,),
            ips=tuple(rng.sample([f"h{number}" for number in range(size)], size)) if seed % 5 == 3 else (),
        )
        self.job = Job(work_s=rng.uniform(35.0, 70.0), listens=rng.random() < 0.6)

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Call later; calls of the same moment keep their order."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, call))

    def log(self, text: str) -> None:
        """Keep a line for the person who replays a seed."""
        self.trace.append(f"{self.now:9.3f} {text}")

    def fail(self, guarantee: str, text: str) -> None:
        """Say that a guarantee was broken."""
        self.log(f"VIOLATION of guarantee {guarantee}: {text}")
        raise Violation(f"seed {self.seed}: guarantee {guarantee}: {text}")

    def local(self, node: Node) -> float:
        """A node's own clock."""
        return node.offset + self.now * node.rate

    def latency(self) -> float:
        """One way, seconds."""
        return self.random.uniform(*LATENCY_S)

    def feed(self, node: Node, event: Event) -> None:
        """Give an event to an agent."""
        raise NotImplementedError

    def _later(self, node: Node, delay: float, event: Event) -> None:
        self.after(delay, lambda: self.feed(node, event))
