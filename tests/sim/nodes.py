"""What the simulation is made of: a job, a node with everything around its core, and observers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from elastic.core.agent.actions import NoteSilence
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import Event
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, KeyValue, WatchBatch
from elastic.core.membership.decision import Decision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Generation
from elastic.core.transactions import Transaction
from elastic.core.view import StoredDocument, StoreView
from elastic.core.view_reader import ViewReader
from launcher.peers.doubt import LinkDoubt
from launcher.peers.silence_detector import SilenceDetector

if TYPE_CHECKING:
    from tests.sim.world import World

KILL_S = 0.25
"""A SIGKILL has emptied a node after at most this time."""
DEADLINE_S = 1.0
"""A call to the store that has no answer by then is given up."""
RELIST_EVERY_S = 30.0
NEVER = float("inf")
KEYS = JobKeys("sim")
FATAL, HOPELESS, UNSTARTABLE, RESTART_ASKED = 9, 7, 2, 101
"""Exit codes: one that must not be tried again, one of a script that has said that no start would go better, one of a
script that cannot start, and one of a script that asks for a restart."""


class SharedReader(ViewReader):
    """Decodes a document once for everybody who reads it: the work is the same, and a run has many readers."""

    def _decode(self, entry: KeyValue) -> StoredDocument[Any] | None:
        return _decoded(entry)


@lru_cache(maxsize=512)
def _decoded(entry: KeyValue) -> StoredDocument[Any] | None:
    return ViewReader(KEYS)._decode(entry)


class Violation(AssertionError):
    """A guarantee was broken."""


@dataclass
class Job:
    """The training itself: how much is done, how much there is to do, and how each step of it is found again."""

    work_s: float
    done_s: float = 0.0
    began: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)
    failures: int = 0
    """Failures that scripts had by themselves; only these may be charged."""
    machine_failures: int = 0
    """Failures of machines; of these only what is more than `MACHINE_FAULTS_MAX` may be."""
    bad_until: dict[str, float] = field(default_factory=dict)
    """Hosts on which workers fail soon after each start, and until when."""
    left: dict[tuple[str, int], set[str]] = field(default_factory=dict)
    """Who of each world has left a planned stop as it was asked to."""
    listens: bool = False
    """Whether the script uses the library, so that its workers can be asked to leave."""


@dataclass
class WorkerSet:
    """One node's workers of one generation, as the nursery sees them.

    `listens`: they leave a planned stop by themselves, after they have saved, once they have said so (`listening`);
    `asked`: they were asked to, and not signalled; `failing`: one of them fails in that. `overdue`: their right to run
    has ended. `broken`: one of them has failed, and the others are still there; `alone`: in a planned stop, too.
    """

    incarnation: str
    generation: Generation
    hangs: bool
    listens: bool = False
    listening: bool = False
    stopping: bool = False
    asked: bool = False
    overdue: bool = False
    broken: bool = False
    failing: bool = False
    alone: bool = False
    stalled_at: float | None = None
    """Since when they wait, while a machine of their world is cut from the others."""
    watched: bool = False


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
    acted_at: float = -1e9
    """When it last looked for silence and sent heartbeats, or could have done so."""
    continued_at: float = -1e9
    """When it went on after it had been held up for so long that it must have noticed."""
    thawed_at: float = -1e9
    cut: bool = False
    astray: bool = False
    unlinkable: bool = False
    apart: bool = False
    apart_from: set[str] = field(default_factory=set)
    deaf_to: set[str] = field(default_factory=set)
    """Nodes whose packets do not arrive here, although what it sends arrives there."""
    silent_at: float = 1e9
    deaf: bool = False
    drained_at: float | None = None
    goes_at: float = NEVER
    """When its machine is taken back."""
    slow_until: float = -1e9
    doubt: LinkDoubt = field(init=False)
    detector: SilenceDetector = field(init=False)
    sends_heartbeats: bool = False
    silence_timeout_s: float = 0.0
    next_look: float = NEVER
    stepped_at: float = -1e9
    """When its workers made a step that all members had a part in, on its own clock."""
    inbox: list[Event] = field(default_factory=list)
    exit_code: int | None = None
    # mirror
    ranges: tuple[KeyRange, ...] = ()
    complete: bool = False
    entries: dict[str, KeyValue] = field(default_factory=dict)
    revision: int = 0
    listing: int = 0
    listed_at: int = 0
    listed: bool = False
    follows_at: int = 0
    follows: int = 0
    graves: dict[str, int] = field(default_factory=dict)
    store_number: int = 0
    reader: ViewReader = field(default_factory=lambda: SharedReader(KEYS))
    # links
    targets: dict[str, int] = field(default_factory=dict)
    linked: frozenset[str] = frozenset()
    dialled: tuple[str, ...] = ()
    """Who has a link to it, as its core was told."""
    granted_until: float = -1e9
    """Until when members have really granted it the right to run, on its own clock."""
    # session
    lease: int | None = None
    # nursery
    nursery: bool = True
    warm: bool = True
    nurseries: int = 0
    """How many nurseries and successors it has had."""
    learned: bool = False
    """Whether its nursery has loaded what the script imports."""
    successor_ready_at: float | None = None
    """When the successor of its nursery has done its imports, None if there is none."""
    lock_until: float = -1e9
    """Until when a nursery or a successor of a killed agent holds the lock of the node."""
    workers: WorkerSet | None = None
    run_until: float = -1e9
    # what is planned for it in the queue
    wake_planned: float = NEVER
    deadline_planned: float = NEVER
    last_decision: Decision | None = None
    # what it knew when it sent the transaction that reached the store last
    sent_view: StoreView | None = None
    sent_memory: DecisionMemory = field(default_factory=DecisionMemory)
    sent_created: int = 0
    # batches that its mirror does not show yet, of this store and these ranges, looked for up to this revision
    unseen: tuple[tuple[int, tuple[KeyRange, ...]], int, list[WatchBatch]] = ((0, ()), 0, [])

    def __post_init__(self) -> None:
        """Its links watch for silence."""
        self.detector = SilenceDetector(self._heard_by_step)

    def _heard_by_step(self, name: str) -> float:
        generation = self.core.facts.generation
        if generation is None or generation.g != self.core.facts.workers.g or generation.index(name) is None:
            return -NEVER
        return self.stepped_at if generation.one_world else -NEVER

    @property
    def hears(self) -> bool:
        """The agent can act now."""
        return self.alive and not self.frozen and not self.agent_frozen


@dataclass
class Stranger:
    """Somebody outside the job who knows its secret and says that it is the node `name`.

    It has a link to every node of `links`, and grants a day whenever one of them asks, for so many `answers`.
    """

    name: str
    links: set[str]
    answers: int = 1_000_000


class Observer:
    """Looks at the world after everything that happens in it."""

    def after_event(self, world: World) -> None:
        """Any event."""

    def after_commit(self, world: World, node: Node, transaction: Transaction) -> None:
        """A transaction that changed something."""

    def after_send(self, world: World, node: Node, transaction: Transaction) -> float:
        """A transaction that is on its way; the answer is for how long it lingers, in seconds."""
        return 0.0

    def after_refusal(self, world: World, node: Node, transaction: Transaction) -> None:
        """A transaction that the store refused."""

    def after_note(self, world: World, node: Node, note: NoteSilence) -> None:
        """A node that suspects, clears or has evicted another one."""

    def after_revoke(self, world: World, node: Node, lease: int) -> None:
        """A node that asks the store to end the lease of another one."""

    def after_expiry(self, world: World, nodes: list[Node]) -> None:
        """Leases that ran out."""

    def after_start(self, world: World, node: Node, generation: Generation) -> None:
        """Workers that start (they are in `node.workers` already)."""

    def after_exit(self, world: World, node: Node, workers: WorkerSet, code: int) -> None:
        """A worker that ended by itself (it is still in `node.workers`)."""

    def after_hand_over(self, world: World, node: Node, ready_at: float) -> None:
        """A successor that takes a node over; it was ready at `ready_at`."""
