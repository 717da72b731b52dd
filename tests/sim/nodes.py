"""What the simulation is made of: a job, a node with everything around its core, and observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from elastic.agentevents import Event
from elastic.agentstate import AgentCore
from elastic.decisions import Decision
from elastic.keys import JobKeys, ViewReader
from elastic.model import Generation
from elastic.proposals import Transaction
from elastic.store.base import Entry, Range

if TYPE_CHECKING:
    from tests.sim.world import World

KILL_S = 0.25
"""A SIGKILL has emptied a node after at most this time."""
DEADLINE_S = 1.0
"""A call to the store that has no answer by then is given up."""
RELIST_EVERY_S = 30.0
KEYS = JobKeys("sim")


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Job:
    """The training itself: how much is done, how much there is to do, and how each step of it is found again."""

    work_s: float
    done_s: float = 0.0
    began: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    failures: int = 0
    """Failures that scripts had by themselves; only these may be charged."""
    bad_until: dict[str, float] = field(default_factory=dict)
    """Hosts on which workers fail soon after each start, and until when."""


@dataclass
class WorkerSet:
    """One node's workers of one generation, as the nursery sees them.

    `listens`: they leave a planned stop by themselves, after they have saved; `failing`: one of them fails in that.
    """

    incarnation: str
    generation: Generation
    hangs: bool
    listens: bool = False
    stopping: bool = False
    failing: bool = False


@dataclass(eq=False)
class Node:
    """One agent with everything around it."""

    name: str
    host: str
    core: AgentCore
    links: bool
    rate: float = 1.0
    offset: float = 0.0
    alive: bool = True
    agent_frozen: bool = False
    frozen: bool = False
    thawed_at: float = -1e9
    cut: bool = False
    astray: bool = False
    unlinkable: bool = False
    silent_at: float = 1e9
    deaf: bool = False
    inbox: list[Event] = field(default_factory=list)
    exit_code: int | None = None
    # mirror
    ranges: tuple[Range, ...] = ()
    scope: tuple[bool, str | None] = (False, None)
    entries: dict[str, Entry] = field(default_factory=dict)
    revision: int = 0
    listing: int = 0
    listed_at: int = 0
    listed: bool = False
    follows: tuple[int, int] = (0, 0)
    graves: dict[str, int] = field(default_factory=dict)
    store_number: int = 0
    reader: ViewReader = field(default_factory=lambda: ViewReader(KEYS))
    # links
    targets: dict[str, int] = field(default_factory=dict)
    linked: frozenset[str] = frozenset()
    # session
    lease: int | None = None
    # nursery
    workers: WorkerSet | None = None
    run_until: float = -1e9
    last_decision: Decision | None = None

    @property
    def hears(self) -> bool:
        """The agent can act now."""
        return self.alive and not self.frozen and not self.agent_frozen


class Observer:
    """Looks at the world after everything that happens in it."""

    def after_event(self, world: World) -> None:
        """Any event."""

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """A transaction that changed something."""

    def after_expiry(self, world: World, nodes: list[Node]) -> None:
        """Leases that ran out."""

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Workers that start (they are in `node.workers` already)."""

    def after_exit(self, world: World, node: Node, workers: WorkerSet, code: int) -> None:
        """A worker that ended by itself (it is still in `node.workers`)."""
