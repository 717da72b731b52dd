"""What one agent knows, and how each event changes it (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from msgspec import Struct

from elastic.agentevents import (
    Action,
    Answered,
    Drain,
    Event,
    Exited,
    Gone,
    Granted,
    GrantFailed,
    Hung,
    Linked,
    LinksAnswered,
    LinkTarget,
    Listens,
    Older,
    Prepared,
    ProvenDead,
    ProvenGone,
    Refreshed,
    Say,
    SessionLost,
    Tick,
    ViewChanged,
    VouchAsked,
    Vouched,
)
from elastic.keys import JobKeys, View
from elastic.membership import Decision, Memory, Policy, remember
from elastic.model import Generation, Member, Outcome, Place, Seat, Spec, WorkerExit
from elastic.proposals import Transaction
from elastic.right import Right
from elastic.store.base import Entry

GRANT_RETRY_S = 0.5
SEEN_BY_ITS_WRITER = ("register", "say", "form", "go", "verdict")
"""Transactions that change what every agent follows: the next one waits until the view shows them."""


Stamp = tuple[int, int]
"""One start of a node's processes: the generation, and the revision of its roster that gave the node its seats."""


class Phase(StrEnum):
    """The phases of `elastic.agentstate`."""

    JOINING = "joining"
    SPARE = "spare"
    GATED = "gated"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"
    LEAVING = "leaving"
    ENDED = "ended"


class Me(Struct, frozen=True):
    """This node. `incarnation` and `secret` are written if the store has none."""

    node: str
    member: Member
    spec: Spec
    incarnation: str
    secret: str = ""
    force: bool = False
    rerun: bool = False
    allow_mismatch: bool = False


class Limits(Struct, frozen=True):
    """This agent's own times, in seconds.

    What it wrote and follows is shown by its watch within `watch_patience_s`, at most twice of it; otherwise it lists.
    """

    grace_s: float = 15.0
    loss_grace_s: float = 2.0
    watch_patience_s: float = 1.0
    elastic_timeout_s: float | None = None


@dataclass(slots=True)
class Facts:
    """Everything that one agent knows. Changed by events, row effects and duties only."""

    me: Me
    keys: JobKeys
    limits: Limits
    policy: Policy
    now: float
    wall_at_zero: float = 0.0
    phase: Phase = Phase.JOINING
    entered_at: float = 0.0
    actions: list[Action] = field(default_factory=list)
    wake_at: float | None = None
    # the store
    view: View = field(default_factory=View)
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
    granting: bool = False
    grant_again_at: float = float("-inf")
    registered: int | None = None
    registered_at_revision: int = 0
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
    older_known: Entry | None = None
    # links
    targets: Mapping[str, LinkTarget] = field(default_factory=dict)
    watched_at: tuple[View, frozenset[tuple[str, int]], tuple[bool, str | None]] | None = None
    links_up: frozenset[str] = frozenset()
    silent: frozenset[str] = frozenset()
    asked: int = 0
    asked_at: float = float("-inf")
    asked_about: int = 0
    awaiting: bool = False
    heard_at: float = float("-inf")
    vouch_asked_at: float = float("-inf")
    yielding: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    revoked: frozenset[int] = frozenset()
    # the proposer
    memory: Memory = field(default_factory=Memory)
    decision: Decision | None = None
    decided: int = 0
    # workers
    target: Stamp = (0, 0)
    workers_g: int = 0
    workers_since: int = 0
    seats: tuple[Seat, ...] = ()
    roster_rev: int = 0
    workers_gone: bool = True
    forced: bool = False
    hurried: bool = False
    planned: bool = False
    hung: bool = False
    own_exits: list[WorkerExit] = field(default_factory=list)
    also_exits: list[WorkerExit] = field(default_factory=list)
    started_at: float = 0.0
    step: int = -1
    finished: Stamp = (0, 0)
    outcome_wanted: tuple[int, Outcome] | None = None
    outcome_written: tuple[int, Outcome] | None = None
    outcome_refused: tuple[int, Outcome] | None = None
    right: Right = field(default_factory=Right)
    run_until: float = float("-inf")
    # leaving
    drain: DrainAsked | None = None
    drain_said: bool = False
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
    def place(self) -> Place | None:
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
        self.workers_g = self.workers_since = self.spare_g = self.roster_rev = 0
        self.reported = (0, 0)
        self.outcome_wanted = self.outcome_written = self.outcome_refused = None
        self.memory = Memory(linked=self.memory.linked, dead=self.memory.dead, distrusted=self.memory.distrusted)
        self.asked_about, self.revoked, self.yielding = 0, frozenset(), {}
        self.passed, self.passed_g = frozenset(), 0

    def unregister(self) -> None:
        """Nothing stands in the store for this node any more."""
        self.registered = None
        self.somebody_lives = None
        self.outdated = None
        self.older_cursor = self.older_asked = self.older_node = self.older_known = None
        self.drain_said = False


class DrainAsked(Struct, frozen=True):
    """A drain, and when it was asked for."""

    at: float
    signal: int
    reason: str


def absorb(f: Facts, event: Event) -> None:
    """Take in one event."""
    match event:
        case ViewChanged():
            _view(f, event)
        case Granted():
            f.granting = False
            f.lease, f.lease_ttl_s = event.lease, event.ttl_s
            f.right = replace(f.right, outage_limit_s=_spec(f).store_outage_limit_s)
            f.right = f.right.refreshed(event.sent_at, event.ttl_s)
        case GrantFailed():
            f.granting = False
            f.grant_again_at = f.now + GRANT_RETRY_S
        case Refreshed():
            if event.lease == f.lease:
                f.right = replace(f.right, outage_limit_s=_spec(f).store_outage_limit_s)
                f.right = f.right.refreshed(event.sent_at, event.ttl_s)
        case SessionLost():
            if event.lease == f.lease:
                _session_lost(f)
        case Answered():
            _answered(f, event)
        case Older():
            _older(f, event)
        case Exited():
            if event.g == f.workers_g and not f.workers_gone and (event.own or event.also):
                (f.own_exits if event.own else f.also_exits).append(event.exit)
        case Hung():
            if event.g == f.workers_g and not f.workers_gone:
                f.own_exits.extend(event.exits)
                f.hung = True
        case Listens():
            if event.g == f.workers_g and not f.workers_gone:
                f.memory = replace(f.memory, listening=event.g)
        case Gone():
            if event.g == f.workers_g:
                f.workers_gone = True
                f.step = max(f.step, event.step)
        case Prepared():
            f.prepared = True
        case Drain():
            if f.drain is None:
                f.drain = DrainAsked(f.now, event.signal, event.reason)
        case Linked():
            f.links_up = event.nodes
            f.silent &= event.nodes
            f.memory = replace(f.memory, linked=f.links_up - f.silent)
        case LinksAnswered():
            _heard(f, event)
        case VouchAsked():
            recent = {node: times for node, times in f.yielding.items() if f.now <= times[1] + f.right.ttl_s / 2}
            first, _ = recent.get(event.node, (f.now, f.now))
            f.yielding = {**recent, event.node: (first, f.now)}
        case Vouched():
            if event.g == f.workers_g and not f.workers_gone:
                f.right = f.right.vouched(event.until)
        case ProvenGone():
            if event.host not in f.memory.distrusted:
                f.memory = replace(f.memory, gone=f.memory.gone | {(event.node, event.create_revision)})
        case ProvenDead():
            f.memory = replace(f.memory, dead=f.memory.dead | {event.node})
        case Tick():
            pass


def _heard(f: Facts, event: LinksAnswered) -> None:
    """Who did not answer the newest question is not heard, until it answers another one or is linked anew."""
    if event.number != f.asked:
        return
    f.awaiting = False
    f.heard_at = f.asked_at
    f.silent = f.links_up - event.nodes
    f.memory = replace(f.memory, linked=f.links_up - f.silent, answered_g=max(f.memory.answered_g, f.asked_about))


def _spec(f: Facts) -> Spec:
    return f.view.spec.value if f.view.spec is not None else f.me.spec


def _view(f: Facts, event: ViewChanged) -> None:
    f.view = event.view
    f.looks += 1
    if event.listing != f.listing:
        f.relist_wanted = False
    f.listing = event.listing
    if not f.first_revision:
        f.first_revision = max(event.view.revision, 1)
    incarnation = event.view.incarnation.value if event.view.incarnation is not None else None
    # A key that a person damaged or deleted is not another store; one that is empty has no spec either.
    known = f.keys.incarnation not in event.view.damaged and (incarnation is not None or event.view.spec is None)
    if known and f.incarnation is not None and incarnation != f.incarnation:
        f.floor = 0
        f.lease = None
        f.right = f.right.lost()
        f.unregister()
        if f.workers_gone:
            f.forget_store()
        else:
            f.another_store = True
    if known and (incarnation is not None or f.workers_gone):
        f.incarnation = incarnation
    _own_key(f)
    f.memory = remember(f.view, f.memory, f.now)
    _distrust(f)


def _distrust(f: Facts) -> None:
    """A node that speaks again after its "death" switches link proofs off for its host; the generation says so too."""
    told = frozenset(f.generation.distrusted if f.generation is not None else ()) - f.memory.distrusted
    if told:
        f.memory = replace(f.memory, distrusted=f.memory.distrusted | told)
    for node, created in f.memory.gone:
        stored = f.view.members.get(node)
        if stored is None or stored.create_revision == created or stored.value.host in f.memory.distrusted:
            continue
        host = stored.value.host
        f.memory = replace(f.memory, distrusted=f.memory.distrusted | {host})
        text = f"{node} is there again, although its connection had shown that its process was gone (a firewall?); "
        if f.phase is not Phase.ENDED:
            f.act(Say(f"{text}from now on only the leases of {host} count", warn=True))


def _own_key(f: Facts) -> None:
    """Learn from the store whether this node is registered; it knows better than any answer.

    One revision may arrive in parts, so only a later one without the key shows that it is gone.
    """
    own = f.view.members.get(f.me.node)
    if f.registered is not None and own is None and f.view.revision > f.registered_at_revision:
        _session_lost(f)
    elif own is not None and own.lease == f.lease and f.lease is not None:
        f.registered = own.create_revision
        f.registered_at_revision = max(f.registered_at_revision, own.create_revision)


def _session_lost(f: Facts) -> None:
    f.lease = None
    f.right = f.right.lost()
    f.unregister()


def _answered(f: Facts, event: Answered) -> None:
    transaction = event.transaction
    if f.inflight is transaction:
        f.inflight = None
    if event.succeeded is False and transaction.kind == "register":
        _came_second(f)
        return
    if event.succeeded is None:
        f.listing_wanted = f.listing + 1
        f.relist_wanted = True
        return
    if not event.succeeded or transaction.kind in SEEN_BY_ITS_WRITER:
        f.floor = max(f.floor, event.revision)
    if transaction.kind == "leave":
        f.left = True
    if not event.succeeded:
        f.somebody_lives = None
        f.relist_wanted = True
        if transaction.outcome is not None and not transaction.outcome[1].over:
            if transaction.outcome == f.outcome_refused:
                f.outcome_written = transaction.outcome  # An earlier try, whose answer was lost, stands there.
            f.outcome_refused = transaction.outcome  # The first time it may be the incarnation that did not fit.
        return
    if transaction.kind == "register" and f.lease is not None and transaction.lease == f.lease:
        own = f.view.members.get(f.me.node)
        f.registered = own.create_revision if own is not None else event.revision
        f.registered_at_revision = event.revision
        if f.phase is Phase.RUNNING:
            f.act(Say("registered again; the workers have run on"))
        if event.older is not None and event.older.key != f.keys.member(f.me.node):
            f.older_cursor, f.older_node = f.registered, event.older.key.removeprefix(f.keys.members)
            f.older_known = event.older if event.older.mod_revision else None
    elif transaction.kind == "record":
        f.outcome_written = transaction.outcome
    elif transaction.kind == "say":
        f.drain_said = True


def _came_second(f: Facts) -> None:
    """Something that the registration compared has changed: try again as soon as the watch shows what.

    Where a thousand nodes begin a job together, all but one come second. None of them lists for that.
    """
    f.somebody_lives = None
    f.outdated = f.sent_at


def _older(f: Facts, event: Older) -> None:
    if event.before_revision == 0:
        f.older_asked = None
        if not event.failed:
            f.somebody_lives = event.node is not None
        return
    if f.older_asked == event.before_revision:
        f.older_asked = None
        if not event.failed:
            f.older_node = event.node
            f.older_cursor = event.create_revision if event.node is not None else 0
