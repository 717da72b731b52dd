"""The state of one agent: a record for each subject, and `AgentState`, which contains them (pure).

Times are seconds of this node's monotonic clock. A generation's number, `g`, is 0 if there is none. Revisions are those
of the store, 0 if nothing has been read or written. `NEVER` is a time in the past.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from msgspec import Struct

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import Action, LinkTarget
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare
from elastic.core.membership.decision import Decision, DecisionPolicy
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Generation, GenerationMember, JobSpec, Outcome, Stamp, WorkerExit
from elastic.core.ps.model import Task
from elastic.core.run_deadline import NEVER, RunDeadline
from elastic.core.transactions import Transaction
from elastic.core.view import StoreView

DEADLINE_SPARE_S = 3.0
"""Seconds before the deadline of a drain at which the workers must be gone, so that the node can record their end and
leave in time."""


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
    """This agent's own timeouts, in seconds.

    Its watch must show what it wrote within `watch_patience_s` to twice that time; otherwise the agent lists the store.
    """

    stop_timeout_s: float
    failure_stop_timeout_s: float
    watch_patience_s: float = 1.0
    join_timeout_s: float | None = None


class InboundLink(Struct, frozen=True):
    """The link of a node to this one: when to check next whether it belongs to the job, and whether it ever did."""

    check_at: float
    confirmed: bool = False


class SilentPeer(Struct, frozen=True):
    """Since when a node has been silent, and the silence timeout that has passed since then, in seconds.

    `heard_at`: when this agent last received something from the node. `since` is later if the silence was restarted,
    for example by a step of the workers.
    """

    since: float
    timeout_s: float
    heard_at: float


class PeerTrial(Struct, frozen=True):
    """The newest trial whether a silent node answers (`TryPeer`); its answer if `answered_at` is not `NEVER`.

    `silence` and `create_revision`: the silence and the registration of the node that the trial is about. `reached_by`
    and `unreached_by`: its results; `unheard`: the nodes that this one had not heard for some intervals when the answer
    arrived. `helpers`: the nodes that were asked to try; `asked` and `answered`: how many were asked and how many have
    answered, including earlier trials about the same silence.
    """

    number: int
    silence: SilentPeer
    create_revision: int
    asked_at: float
    helpers: tuple[str, ...] = ()
    answered_at: float = NEVER
    reached_by: tuple[str, ...] = ()
    unreached_by: tuple[str, ...] = ()
    unheard: frozenset[str] = frozenset()
    asked: int = 0
    answered: int = 0


class PendingEviction(Struct, frozen=True):
    """A member that is being evicted: its registration, the generation, and what is known of its silence."""

    node: str
    host: str
    create_revision: int
    lease: int
    g: int
    silent_s: float
    unreached_by: tuple[str, ...]


class PendingDrain(Struct, frozen=True):
    """A drain, and the time at which it was requested."""

    at: float
    exit_code: int
    reason: str
    deadline: float | None = None

    @property
    def workers_until(self) -> float:
        """When the workers must be gone at the latest."""
        return float("inf") if self.deadline is None else self.deadline - DEADLINE_SPARE_S

    def unheard_at(self, patience_s: float) -> float:
        """When the node stops its workers if the leader does not react; they keep at least half of the time left."""
        return self.at + min(patience_s, max((self.workers_until - self.at) / 2, 0.0))


class Relisting(StrEnum):
    """Whether the mirror should list again; its next listing resets this to `NONE`."""

    NONE = "none"
    WANTED = "wanted"
    ASKED = "asked"


class Standing(StrEnum):
    """The state of this node's registration."""

    NO_LEASE = "no lease"
    LEASE_ASKED = "lease requested"
    NO_KEY = "a lease, no key yet"
    REGISTERED = "registered"


STANDINGS: dict[str, dict[Standing, Standing]] = {
    "lease asked": {Standing.NO_LEASE: Standing.LEASE_ASKED},
    "lease failed": {Standing.LEASE_ASKED: Standing.NO_LEASE},
    "lease granted": {Standing.NO_LEASE: Standing.NO_KEY, Standing.LEASE_ASKED: Standing.NO_KEY},
    "key seen": {Standing.NO_KEY: Standing.REGISTERED},
    "lease gone": dict.fromkeys((Standing.NO_KEY, Standing.REGISTERED), Standing.NO_LEASE),
}
"""Every step of a registration, and the standing that it leads to from each other one; else it changes nothing."""


class StopKind(StrEnum):
    """How the workers are being stopped; only a kind further down can replace another one."""

    ORDERLY = "orderly"  # not stopped yet, or with the full stop timeout
    PLANNED = "planned"  # nothing is broken: they may save
    HURRIED = "hurried"  # after a node or worker failure, or for an operator who does not wait
    CUT_SHORT = "cut short"  # the deadline of a drain is near


@dataclass(slots=True)
class StoreState:
    """The mirror of the store, and what it must show before this agent writes again."""

    view: StoreView = field(default_factory=StoreView)
    listing: int = 0  # the listing that `view` continues; the mirror counts them
    looks: int = 0  # the number of views so far
    incarnation: str | None = None  # of the store that this agent works with
    replaced: bool = False  # the store was replaced or emptied, and workers of the old one still run
    first_revision: int = 0  # of the first view
    floor: int = 0  # an older view does not show what this agent wrote, or why a transaction was refused
    listing_wanted: int = 0  # an answer was lost: only this listing shows whether the transaction succeeded
    relist: Relisting = Relisting.NONE
    behind_since: float | None = None  # since when the view has been behind
    inflight: Transaction | None = None  # sent, and not answered
    sent_at: tuple[int, int] = (0, 0)  # `looks` and `listing` when the last transaction was sent

    def want_listing(self) -> None:
        """Request another listing, unless one has been requested since the last one."""
        if self.relist is Relisting.NONE:
            self.relist = Relisting.WANTED


@dataclass(slots=True)
class Registration:
    """The lease, and this node's key under it."""

    prepared: bool = True  # the nursery has loaded what workers need, so that they can start at once
    standing: Standing = Standing.NO_LEASE
    lease: int | None = None
    lease_ttl_s: float = 0.0
    grant_again_at: float = NEVER  # the agent asks for no lease before this time
    create_revision: int = 0  # of this node's key
    registered_at_revision: int = 0  # a later view without the key shows that it is gone
    unproven_refresh: tuple[float, float] | None = (
        None  # a refresh before the key existed: when it was sent, and the TTL
    )
    outdated: tuple[int, int] | None = None  # a registration was refused; `StoreState.sent_at` of its request
    members_exist: bool | None = None  # whether any node is registered, None if that is not known
    lookup_again_at: float = NEVER  # the agent does not read `members_exist` before this time
    attempts: int = 0  # attempts to register; each proposes another incarnation
    joined_at: float | None = None  # when the node last registered
    refusal: str = ""  # why the job refuses this node
    reported_lines: tuple[str, ...] = ()  # log lines about joining that were printed; each is printed once

    @property
    def registered(self) -> bool:
        """Whether this node's key is in the store, under its lease."""
        return self.standing is Standing.REGISTERED

    def step(self, step: str) -> None:
        """Take a step of `STANDINGS`."""
        self.standing = STANDINGS[step].get(self.standing, self.standing)


@dataclass(slots=True)
class Succession:
    """Which node leads, and what this agent does as the leader."""

    vacant_since: float | None = None  # since when no living node has led, as far as this agent knows
    lead_again_at: float = NEVER  # after a refusal this node does not try to lead before this time
    mirrors_all: bool = False  # whether the mirror follows everything
    revoked: frozenset[int] = frozenset()  # leases of dead nodes that were revoked
    decision: Decision | None = None  # the newest decision, None while another node leads
    refused_compares: tuple[Compare, ...] = ()  # what the newest refused proposal compared
    propose_again_at: float = NEVER  # the same proposal is not sent again before this time


@dataclass(slots=True)
class Links:
    """The links of this agent to other nodes, whether it doubts them, and the links of other nodes to this one."""

    targets: Mapping[str, LinkTarget] = field(default_factory=dict)  # the nodes that this agent keeps a link to
    watched_for: tuple[StoreView, frozenset[tuple[str, int]]] | None = None  # the inputs of `targets`
    up: frozenset[str] = frozenset()  # watched nodes whose link is up
    doubted: bool = False  # the watched nodes are pinged repeatedly
    heard_at: float = NEVER  # when the newest ping was sent that all of them have answered
    vouch_asked_at: float = NEVER  # when this node last asked for a vouch
    inbound: Mapping[str, InboundLink] = field(default_factory=dict)  # the oldest link first
    looking_up: str = ""  # the node of an inbound link whose key is being read


@dataclass(slots=True)
class Silence:
    """The nodes that this agent does not hear, and what it has found out about them."""

    heartbeats: tuple[float, float] = (0.0, 0.0)  # the current settings of the links (`SetHeartbeats`)
    peers: Mapping[str, SilentPeer] = field(default_factory=dict)  # the nodes that are silent
    held_up_at: float = NEVER  # when this agent itself resumed after it had been suspended
    counts_from: float = NEVER  # no silence before this counts: until then the store did not answer
    trials: Mapping[str, PeerTrial] = field(default_factory=dict)  # the newest of each silent node
    number: int = 0  # of the newest trial
    evicting: PendingEviction | None = None  # the eviction of the transaction in flight
    leader: tuple[str, int] = ("", 0)  # the node that leads, and the create revision of its registration
    leader_since: float = NEVER  # when this agent first saw this leader


@dataclass(slots=True)
class Workers:
    """This node's workers: their assignment, how they are stopped, and how they ended."""

    target: Stamp = (0, 0)  # the start that waits for its start signal, or got the last one
    g: int = 0  # the generation of the workers that run or ran last
    since: int = 0  # the number of their start in it (`Stamp`)
    count: int = 0  # the number of workers
    one_world: bool = True  # whether they form one world with those of other nodes (`Generation.one_world`)
    tasks: tuple[Task, ...] = ()  # their tasks in a parameter-server job
    cluster_spec_rev: int = 0  # the newest revision of the cluster spec that was published to them
    gone: bool = True  # none of their processes is left
    started_at: float = 0.0
    step: int = -1  # the highest reported step
    run_deadline: RunDeadline = field(default_factory=RunDeadline)
    run_until: float = NEVER  # the deadline that the nursery knows
    stop: StopKind = StopKind.ORDERLY
    forced: bool = False  # this node had to end them
    hung: bool = False  # they have stopped making steps
    unreached: tuple[str, ...] = ()  # nodes of the generation that cannot be reached while the workers wait
    own_exits: list[WorkerExit] = field(default_factory=list)  # of workers that ended before our signal
    also_exits: list[WorkerExit] = field(default_factory=list)  # of workers that were ending at our signal
    finished: Stamp = (0, 0)  # the newest start that is over
    outcome_wanted: tuple[int, Outcome] | None = None  # to be recorded, with its generation
    outcome_written: tuple[int, Outcome] | None = None  # recorded last
    outcome_refused: tuple[int, Outcome] | None = None  # the newest outcome before the end that the store refused
    recorded_at: float = NEVER
    record_again_s: float = 0.0  # after this pause an outcome that others wait for is recorded once more
    reported: Stamp = (0, 0)  # the start signal or revision whose failure was reported last
    spare_g: int = 0  # the newest generation for which this node has reported that it is a spare

    @property
    def start(self) -> Stamp:
        """The start that the workers belong to."""
        return (self.g, self.since)


@dataclass(slots=True)
class Leaving:
    """Why this node leaves, and which steps it has completed."""

    drain: PendingDrain | None = None  # the first request to leave, with the earliest deadline of all
    announced: bool = False  # the node's key shows the drain
    orders_read_to: int = 0  # an operator's order up to this revision was for an earlier node with this name
    deregistered: bool = False  # its key is deleted
    idle_since: float = 0.0  # since when no generation has run
    exit_code: int = 0


@dataclass(slots=True)
class AgentState:
    """Everything that one agent knows. Changed by events, row effects and duties only."""

    me: NodeIdentity
    keys: JobKeys
    limits: Timeouts
    policy: DecisionPolicy
    now: float
    wall_at_zero: float = 0.0  # the wall clock, Unix seconds, when this node's clock was 0
    phase: Phase = Phase.JOINING
    entered_at: float = 0.0  # when the agent entered its phase
    actions: list[Action] = field(default_factory=list)  # requested from the shell since the last event
    wake_at: float | None = None  # when the agent expects a `Tick` if no event happens
    memory: DecisionMemory = field(default_factory=DecisionMemory)  # the input of `decide` apart from the view
    store: StoreState = field(default_factory=StoreState)
    registration: Registration = field(default_factory=Registration)
    succession: Succession = field(default_factory=Succession)
    links: Links = field(default_factory=Links)
    silence: Silence = field(default_factory=Silence)
    workers: Workers = field(default_factory=Workers)
    leaving: Leaving = field(default_factory=Leaving)

    @property
    def view(self) -> StoreView:
        """The newest view of the store."""
        return self.store.view

    @property
    def spec(self) -> JobSpec:
        """The job's spec; before there is one, the spec that this node would write."""
        return self.view.spec.value if self.view.spec is not None else self.me.spec

    @property
    def leads(self) -> bool:
        """Whether the leader's key is this node's, under its present lease, as far as the view shows."""
        leader = self.view.leader
        return leader is not None and leader.value.node == self.me.node and leader.lease == self.registration.lease

    @property
    def generation(self) -> Generation | None:
        """The newest generation of the present run."""
        stored, spec = self.view.generation, self.view.spec
        if stored is None or spec is None or stored.value.run != spec.value.run:
            return None
        return stored.value

    @property
    def member(self) -> GenerationMember | None:
        """This node's member in the newest generation, None if it has none or is asked to leave."""
        return self.generation.member(self.me.node) if self.generation is not None else None

    @property
    def stamp(self) -> Stamp:
        """The start that the newest generation asks of this node; (0, 0) if none."""
        generation = self.generation
        start = generation.start_of(self.me.node) if generation is not None and self.member is not None else None
        return start or (0, 0)

    @property
    def may_run_again(self) -> bool:
        """Return whether this node may replace the verdict by a new run.

        The user asked for it, this node has not joined yet, the verdict was in its first view, and no member is alive.
        The node waits for members that have just ended for as long as their leases may last.
        """
        verdict, registration = self.view.verdict, self.registration
        return (
            self.me.rerun
            and registration.joined_at is None
            and verdict is not None
            and verdict.mod_revision <= self.store.first_revision
            and (registration.members_exist is not True or self.now < self.entered_at + 2 * self.me.spec.lease_ttl_s)
        )

    def act(self, action: Action) -> None:
        """Request an action from the shell."""
        self.actions.append(action)

    def first_of(self, times: Iterable[float]) -> float:
        """The earliest of these times that is in the future; infinity if none is."""
        first = float("inf")
        for time in times:
            if self.now < time < first:
                first = time
        return first

    def forget_store(self) -> None:
        """Drop everything that was valid only in the former store."""
        workers, succession = self.workers, self.succession
        self.store.replaced = False
        workers.target = workers.finished = workers.reported = (0, 0)
        workers.g = workers.since = workers.spare_g = workers.cluster_spec_rev = 0
        workers.outcome_wanted = workers.outcome_written = workers.outcome_refused = None
        memory = self.memory
        self.memory = DecisionMemory(
            linked=memory.linked,
            silent=memory.silent,
            heard_since=memory.heard_since,
            dead=memory.dead,
            distrusted=memory.distrusted,
            size_before=memory.size_before,
        )
        succession.revoked = frozenset()

    @property
    def saves(self) -> bool:
        """Whether the workers save before they stop for a planned change."""
        return self.phase is Phase.STOPPING and self.workers.stop is StopKind.PLANNED

    def drop_lease(self) -> None:
        """Note that the lease is gone, and with it this node's key.

        The workers continue until the run deadline: an operator, or a server that no longer led etcd (etcd issue
        15247), may have ended the lease early, and this node soon has the next one.
        """
        self.registration.lease = self.registration.unproven_refresh = None
        self.registration.step("lease gone")
        self.registration.members_exist = self.registration.outdated = None
        self.registration.create_revision = 0
        self.leaving.announced = False
