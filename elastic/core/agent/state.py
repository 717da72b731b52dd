"""What one agent knows: a record for each subject, and `AgentState`, which holds them (pure).

Times are seconds of this node's monotonic clock; a generation's number, or `g`, is 0 where there is none. Revisions are
those of the store, 0 where nothing has been read or written. `NEVER` is a time in the past.
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
"""So long before the deadline of a drain the workers are gone: their end is recorded, and the node leaves."""


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


class InboundLink(Struct, frozen=True):
    """A node that has a link to this one: when to see next whether it belongs to the job, and whether it ever did."""

    check_at: float
    confirmed: bool = False


class SilentPeer(Struct, frozen=True):
    """Since when a node is silent, and the timeout that is over since then, in seconds.

    `heard_at`: when something came from it last. `since` is later where its silence was restarted, for example by a
    step of its workers.
    """

    since: float
    timeout_s: float
    heard_at: float


class PeerTrial(Struct, frozen=True):
    """The newest trial whether a silent node answers (`TryPeer`); its answer if `answered_at` is not `NEVER`.

    `silence` and `create_revision`: what it is about, and which registration of the node. `reached_by` and
    `unreached_by`: what came of it; `unheard`: the nodes that this one has not heard for some intervals when the answer
    came. `helpers`: the nodes that were asked; `asked` and `answered`: how many were and how many have answered, with
    the trials before this one about the same silence.
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
    """A member that is being evicted: its registration, from which generation, and what is known of its silence."""

    node: str
    host: str
    create_revision: int
    lease: int
    g: int
    silent_s: float
    unreached_by: tuple[str, ...]


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
        """When the node stops its workers if the leader does not react: they need some of the time that is left."""
        return self.at + min(patience_s, max((self.workers_until - self.at) / 2, 0.0))


class Relisting(StrEnum):
    """Whether the mirror is to list again; its next listing leads back to `NONE`."""

    NONE = "none"
    WANTED = "wanted"
    ASKED = "asked"


class Standing(StrEnum):
    """How far this node's registration has got."""

    NO_LEASE = "no lease"
    LEASE_ASKED = "a lease is asked for"
    NO_KEY = "a lease, no key yet"
    REGISTERED = "registered"


STANDINGS: dict[str, dict[Standing, Standing]] = {
    "lease asked": {Standing.NO_LEASE: Standing.LEASE_ASKED},
    "lease failed": {Standing.LEASE_ASKED: Standing.NO_LEASE},
    "lease granted": {Standing.NO_LEASE: Standing.NO_KEY, Standing.LEASE_ASKED: Standing.NO_KEY},
    "key seen": {Standing.NO_KEY: Standing.REGISTERED},
    "lease gone": dict.fromkeys((Standing.NO_KEY, Standing.REGISTERED), Standing.NO_LEASE),
}
"""Every step of a registration, and where it leads from each standing; from the others it leads nowhere."""


class StopKind(StrEnum):
    """How the workers are being stopped; each kind gives way only to those below it."""

    ORDERLY = "orderly"  # not at all yet, or with what the first SIGTERM left them
    PLANNED = "planned"  # nothing is broken: they may save
    HURRIED = "hurried"  # for a loss, a failure, or an operator who does not wait
    CUT_SHORT = "cut short"  # the time of a drain is up


@dataclass(slots=True)
class StoreState:
    """The mirror of the store, and what must show in it before this agent writes again."""

    view: StoreView = field(default_factory=StoreView)
    listing: int = 0  # the listing that `view` continues; the mirror counts them
    looks: int = 0  # how many views were shown so far
    incarnation: str | None = None  # of the store that this agent works with
    replaced: bool = False  # another store, or an empty one, is there, and workers of the old one still run
    first_revision: int = 0  # of the first view
    floor: int = 0  # a view of an older revision than this does not show what this agent wrote or was refused for
    listing_wanted: int = 0  # an answer was lost: only this listing shows whether the transaction took place
    relist: Relisting = Relisting.NONE
    behind_since: float | None = None  # since when the view does not show what it should
    inflight: Transaction | None = None  # sent, and not answered
    sent_at: tuple[int, int] = (0, 0)  # `looks` and `listing` when the last transaction was sent

    def want_listing(self) -> None:
        """Have the mirror list again, unless it was asked to since its last listing."""
        if self.relist is Relisting.NONE:
            self.relist = Relisting.WANTED


@dataclass(slots=True)
class Registration:
    """The lease, and this node's key under it."""

    prepared: bool = True  # the nursery has loaded what workers need: a node that is chosen starts them at once
    standing: Standing = Standing.NO_LEASE
    lease: int | None = None
    lease_ttl_s: float = 0.0
    grant_again_at: float = NEVER  # no lease is asked for before this time
    create_revision: int = 0  # of this node's key
    registered_at_revision: int = 0  # a later view without the key shows that it is gone
    unproven_refresh: tuple[float, float] | None = (
        None  # a refresh before the key was there: when it was sent, and the TTL
    )
    outdated: tuple[int, int] | None = None  # a registration was refused; `StoreState.sent_at` of its request
    members_exist: bool | None = None  # whether any node is registered, None if that is not known
    lookup_again_at: float = NEVER  # that is not asked before this time
    attempts: int = 0  # how often it tried to register; each try proposes another incarnation
    joined_at: float | None = None  # when it was registered last
    refusal: str = ""  # why the job does not take this node
    reported_lines: tuple[str, ...] = ()  # what was said to people about joining, each line once

    @property
    def registered(self) -> bool:
        """Whether this node's key is in the store, under its lease."""
        return self.standing is Standing.REGISTERED

    def step(self, step: str) -> None:
        """Take a step of `STANDINGS`."""
        self.standing = STANDINGS[step].get(self.standing, self.standing)


@dataclass(slots=True)
class Succession:
    """Which node leads, and what this agent does when it does."""

    vacant_since: float | None = None  # since when no living node leads, as far as this agent sees
    lead_again_at: float = NEVER  # after a refusal this node does not try to lead before this time
    mirrors_all: bool = False  # whether the mirror was asked for everything
    revoked: frozenset[int] = frozenset()  # leases of dead nodes that were revoked
    decision: Decision | None = None  # the newest decision, None while another node leads
    refused_compares: tuple[Compare, ...] = ()  # what the newest refused proposal compared
    propose_again_at: float = NEVER  # the same is not proposed before this time


@dataclass(slots=True)
class Links:
    """Which nodes this agent has a link to, whether it doubts them, and the links that others have to this node."""

    targets: Mapping[str, LinkTarget] = field(default_factory=dict)  # the nodes that this agent keeps a link to
    watched_for: tuple[StoreView, frozenset[tuple[str, int]]] | None = None  # the targets were made of these
    up: frozenset[str] = frozenset()  # watched nodes whose link is up
    doubted: bool = False  # they are asked again and again whether they are there
    heard_at: float = NEVER  # when the newest question was asked that none of them has missed
    vouch_asked_at: float = NEVER  # when this node asked for a vouch last
    inbound: Mapping[str, InboundLink] = field(default_factory=dict)  # the oldest link first
    looking_up: str = ""  # the node of an inbound link whose key is being read


@dataclass(slots=True)
class Silence:
    """Which nodes this agent does not hear, and what it has found out about them."""

    heartbeats: tuple[float, float] = (0.0, 0.0)  # what the links do by now (`SetHeartbeats`)
    peers: Mapping[str, SilentPeer] = field(default_factory=dict)  # the nodes that are silent
    held_up_at: float = NEVER  # when this agent itself continued after it had been held up
    counts_from: float = NEVER  # no silence before this counts: until then the store did not answer
    trials: Mapping[str, PeerTrial] = field(default_factory=dict)  # the newest of each silent node
    number: int = 0  # of the newest trial
    evicting: PendingEviction | None = None  # what the transaction under way carries out
    leader: tuple[str, int] = ("", 0)  # the node that leads, and the create revision of its registration
    leader_since: float = NEVER  # when this agent saw that


@dataclass(slots=True)
class Workers:
    """This node's workers: what they are to run, how they are stopped, and how they ended."""

    target: Stamp = (0, 0)  # the start whose go is awaited, or was given last
    g: int = 0  # the generation of the workers that run or ran last
    since: int = 0  # which start in it that is (`Stamp`)
    count: int = 0  # how many there are
    one_world: bool = True  # whether they form one world with those of other nodes (`Generation.one_world`)
    tasks: tuple[Task, ...] = ()  # their tasks in a parameter-server job
    cluster_spec_rev: int = 0  # the newest revision of the cluster spec that was published to them
    gone: bool = True  # no process of theirs is left
    started_at: float = 0.0
    step: int = -1  # the highest that one has reported
    run_deadline: RunDeadline = field(default_factory=RunDeadline)
    run_until: float = NEVER  # the deadline that the nursery knows
    stop: StopKind = StopKind.ORDERLY
    forced: bool = False  # this node had to end them
    hung: bool = False  # they made no steps any more
    unreached: tuple[str, ...] = ()  # nodes of the generation that they wait for and do not reach
    own_exits: list[WorkerExit] = field(default_factory=list)  # of workers that ended before a signal of ours
    also_exits: list[WorkerExit] = field(default_factory=list)  # of workers that were ending when the signal came
    finished: Stamp = (0, 0)  # the newest start that is over
    outcome_wanted: tuple[int, Outcome] | None = None  # to be recorded, with its generation
    outcome_written: tuple[int, Outcome] | None = None  # recorded last
    outcome_refused: tuple[int, Outcome] | None = None  # the newest word before the end that the store refused
    recorded_at: float = NEVER
    record_again_s: float = 0.0  # after this pause a word that others wait for is recorded once more
    reported: Stamp = (0, 0)  # the start signal or revision whose failure was reported last
    spare_g: int = 0  # the newest generation that this node has said to be a spare of

    @property
    def start(self) -> Stamp:
        """Which start the workers belong to."""
        return (self.g, self.since)


@dataclass(slots=True)
class Leaving:
    """Why this node leaves, and how far it has got."""

    drain: PendingDrain | None = None  # the first request to leave, with the earliest deadline of all
    announced: bool = False  # the node's key says that it drains
    orders_read_to: int = 0  # an operator's order of an older revision was for another node of this name
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
    entered_at: float = 0.0  # when the agent came into its phase
    actions: list[Action] = field(default_factory=list)  # asked of the shell since the last event
    wake_at: float | None = None  # when the agent wants to be called although nothing happens
    memory: DecisionMemory = field(default_factory=DecisionMemory)  # what `decide` goes by apart from the view
    store: StoreState = field(default_factory=StoreState)
    registration: Registration = field(default_factory=Registration)
    succession: Succession = field(default_factory=Succession)
    links: Links = field(default_factory=Links)
    silence: Silence = field(default_factory=Silence)
    workers: Workers = field(default_factory=Workers)
    leaving: Leaving = field(default_factory=Leaving)

    @property
    def view(self) -> StoreView:
        """What the mirror shows."""
        return self.store.view

    @property
    def spec(self) -> JobSpec:
        """The job's spec; before there is one, what this node would write."""
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
        """Which start the newest generation asks of this node; (0, 0) if none."""
        generation = self.generation
        start = generation.start_of(self.me.node) if generation is not None and self.member is not None else None
        return start or (0, 0)

    @property
    def may_run_again(self) -> bool:
        """Tell whether the verdict may be replaced.

        It was asked for, this node has not joined yet, the verdict was there at its first look, and no member is
        alive; one that just ended well is waited for as long as its lease may last.
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
        """Ask the shell for something."""
        self.actions.append(action)

    def first_of(self, times: Iterable[float]) -> float:
        """The earliest of these times that is still to come, infinity if none is."""
        first = float("inf")
        for time in times:
            if self.now < time < first:
                first = time
        return first

    def forget_store(self) -> None:
        """Begin anew in a store that has never seen this node."""
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
        """The lease is gone, and with it this node's key.

        The workers run on for as long as the lease has given the right: it may have ended before its time, by a
        person's hand or by that of a leader of etcd who was not the leader any more (etcd 15247), and soon there is the
        next.
        """
        self.registration.lease = self.registration.unproven_refresh = None
        self.registration.step("lease gone")
        self.registration.members_exist = self.registration.outdated = None
        self.registration.create_revision = 0
        self.leaving.announced = False
