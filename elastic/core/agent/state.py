"""What one agent knows (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import Action, LinkTarget
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, KeyValue
from elastic.core.membership.decision import Decision, DecisionPolicy
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Generation, GenerationMember, Outcome, Task, WorkerExit
from elastic.core.run_deadline import RunDeadline
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView

DEADLINE_SPARE_S = 3.0
"""So long before the deadline of a drain the workers are gone: their end is recorded, and the node leaves."""

Stamp = tuple[int, int]
"""One start of a node's processes: the generation, and the revision of its roster that gave the node its seats."""


class Phase(StrEnum):
    """The phases of `elastic.core.agent.table`."""

    JOINING = "joining"
    SPARE = "spare"
    GATED = "gated"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    LEAVING = "leaving"
    ENDED = "ended"


class Timeouts(Struct, frozen=True):
    """This agent's own times, in seconds.

    What it wrote and follows is shown by its watch within `watch_patience_s`, at most twice of it; otherwise it lists.
    """

    grace_s: float
    loss_grace_s: float
    watch_patience_s: float = 1.0
    elastic_timeout_s: float | None = None


@dataclass(slots=True)
class AgentState:
    """Everything that one agent knows. Changed by events, row effects and duties only."""

    me: NodeIdentity
    keys: JobKeys
    limits: Timeouts
    policy: DecisionPolicy
    now: float
    wall_at_zero: float = 0.0
    phase: Phase = Phase.JOINING
    entered_at: float = 0.0
    actions: list[Action] = field(default_factory=list)
    wake_at: float | None = None
    # the store
    view: StoreView = field(default_factory=StoreView)
    listing: int = 0
    looks: int = 0
    sent_at: tuple[int, int] = (0, 0)
    outdated: tuple[int, int] | None = None
    incarnation: str | None = None
    another_store: bool = False
    first_revision: int = 0
    floor: int = 0
    listing_wanted: int = 0
    relist_wanted: bool = False
    relist_asked: int = -1
    behind_since: float | None = None
    inflight: Transaction | None = None
    # session and registration
    prepared: bool = True
    lease: int | None = None
    lease_ttl_s: float = 0.0
    refreshed: tuple[float, float] | None = None
    granting: bool = False
    grant_again_at: float = float("-inf")
    registered: int | None = None
    registered_at_revision: int = 0
    keyless: bool = False
    joined_at: float | None = None
    refusal: str = ""
    joins: int = 0
    somebody_lives: bool | None = None
    ask_again_at: float = float("-inf")
    told: tuple[str, ...] = ()
    left: bool = False
    # the line of proposers
    following: tuple[bool, str | None] | None = None
    passed: frozenset[str] = frozenset()
    passed_g: int = 0
    older_cursor: int | None = None
    older_asked: int | None = None
    older_node: str | None = None
    older_again_at: float = float("-inf")
    older_known: KeyValue | None = None
    # links
    targets: Mapping[str, LinkTarget] = field(default_factory=dict)
    watched_at: tuple[StoreView, frozenset[tuple[str, int]], tuple[bool, str | None]] | None = None
    links_up: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    asked: int = 0
    asked_at: float = float("-inf")
    asked_whom: frozenset[str] = frozenset()
    asked_about: int = 0
    awaiting: bool = False
    heard_at: float = float("-inf")
    answered: frozenset[str] = frozenset()
    vouch_asked_at: float = float("-inf")
    yielding: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    dialled: Mapping[str, InboundLink] = field(default_factory=dict)
    looking_up: str = ""
    revoked: frozenset[int] = frozenset()
    # the proposer
    memory: DecisionMemory = field(default_factory=DecisionMemory)
    decision: Decision | None = None
    decided: int = 0
    refused: tuple[Compare, ...] = ()
    propose_again_at: float = float("-inf")
    # workers
    target: Stamp = (0, 0)
    workers_g: int = 0
    workers_since: int = 0
    tasks: tuple[Task, ...] = ()
    cluster_spec_rev: int = 0
    workers_gone: bool = True
    forced: bool = False
    hurried: bool = False
    cut_short: bool = False
    planned: bool = False
    hung: bool = False
    unreached: tuple[str, ...] = ()
    own_exits: list[WorkerExit] = field(default_factory=list)
    also_exits: list[WorkerExit] = field(default_factory=list)
    started_at: float = 0.0
    step: int = -1
    finished: Stamp = (0, 0)
    outcome_wanted: tuple[int, Outcome] | None = None
    outcome_written: tuple[int, Outcome] | None = None
    outcome_refused: tuple[int, Outcome] | None = None
    recorded_at: float = float("-inf")
    record_again_s: float = 0.0
    run_deadline: RunDeadline = field(default_factory=RunDeadline)
    run_until: float = float("-inf")
    # leaving
    drain: PendingDrain | None = None
    drain_said: bool = False
    told_at_revision: int = 0
    idle_since: float = 0.0
    exit_code: int = 0
    reported: Stamp = (0, 0)
    spare_g: int = 0

    @property
    def generation(self) -> Generation | None:
        """The newest generation of the present run."""
        stored, spec = self.view.generation, self.view.spec
        if stored is None or spec is None or stored.value.run != spec.value.run:
            return None
        return stored.value

    @property
    def place(self) -> GenerationMember | None:
        """This node's place in the newest generation, None if it has none or is asked to leave."""
        generation = self.generation
        index = generation.index(self.me.node) if generation is not None else None
        if generation is None or index is None or generation.members[index].leaving:
            return None
        return generation.members[index]

    @property
    def stamp(self) -> Stamp:
        """Which start the newest generation asks of this node; (0, 0) if none."""
        place = self.place
        return (self.generation.g, place.since) if self.generation is not None and place is not None else (0, 0)

    @property
    def may_run_again(self) -> bool:
        """Tell whether the verdict may be replaced.

        It was asked for, this node has not joined yet, the verdict was there at its first look, and no member is
        alive; one that just ended well is waited for as long as its lease may last.
        """
        verdict = self.view.verdict
        return (
            self.me.rerun
            and self.joined_at is None
            and verdict is not None
            and verdict.mod_revision <= self.first_revision
            and (self.somebody_lives is not True or self.now < self.entered_at + 2 * self.me.spec.lease_ttl_s)
        )

    @property
    def tag(self) -> str:
        """What this node's newest proposal is called."""
        return f"{self.me.node}/{self.registered}/{self.decided}"

    def act(self, action: Action) -> None:
        """Ask the shell for something."""
        self.actions.append(action)

    def want_outcome(self, g: int, outcome: Outcome) -> None:
        """Record this as soon as the store can be reached."""
        self.outcome_wanted = (g, outcome)

    def forget_store(self) -> None:
        """Begin anew in a store that has never seen this node."""
        self.another_store = False
        self.target = self.finished = (0, 0)
        self.workers_g = self.workers_since = self.spare_g = self.cluster_spec_rev = 0
        self.reported = (0, 0)
        self.outcome_wanted = self.outcome_written = self.outcome_refused = None
        memory = self.memory
        self.memory = DecisionMemory(
            linked=memory.linked, dead=memory.dead, distrusted=memory.distrusted, size_before=memory.size_before
        )
        self.asked_about, self.revoked, self.yielding = 0, frozenset(), {}
        self.passed, self.passed_g = frozenset(), 0

    def unregister(self) -> None:
        """Nothing stands in the store for this node any more."""
        self.registered = None
        self.somebody_lives = None
        self.outdated = None
        self.older_cursor = self.older_asked = self.older_node = self.older_known = None
        self.drain_said = False


class InboundLink(Struct, frozen=True):
    """A node that has a link to this one: when to see next whether it belongs to the job, and whether it ever did."""

    check_at: float
    confirmed: bool = False


class PendingDrain(Struct, frozen=True):
    """A drain, and when it was asked for."""

    at: float
    exit_code: int
    reason: str
    deadline: float | None = None

    @property
    def workers_until(self) -> float:
        """When the workers are to be gone at the latest."""
        return float("inf") if self.deadline is None else self.deadline - DEADLINE_SPARE_S

    def unheard_at(self, patience_s: float) -> float:
        """When the node stops its workers by itself if nobody reacts: they need some of the time that is left."""
        return self.at + min(patience_s, max((self.workers_until - self.at) / 2, 0.0))
