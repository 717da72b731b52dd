"""A whole job on a virtual clock: agents' cores, their stores' mirrors, sessions, nurseries, workers and links.

Everything that an agent's shell does is modelled here as small as it can be; what is decided is decided by the real
core (`elastic.agentstate`) over the real in-memory store. One seeded source of randomness, one queue of events: the
same seed gives the same run.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from elastic.agentduties import vouch_s
from elastic.agentevents import (
    Action,
    Answered,
    CloseSession,
    Drain,
    Event,
    Exit,
    Exited,
    FindOlder,
    Follow,
    Gone,
    Granted,
    GrantFailed,
    Linked,
    Older,
    OpenSession,
    ProvenDead,
    ProvenGone,
    Refreshed,
    Relist,
    Revoke,
    RunUntil,
    Send,
    SessionLost,
    StartWorkers,
    StopWorkers,
    Tick,
    ViewChanged,
    Vouched,
)
from elastic.agentfacts import Facts, Limits, Me, Phase
from elastic.agentstate import AgentCore
from elastic.errors import StoreError
from elastic.keys import JobKeys, View, ViewReader
from elastic.membership import Decision, Policy
from elastic.model import Generation, Member, Np, Spec, WorkerExit
from elastic.proposals import Transaction
from elastic.store.base import Change, Entry, Range
from elastic.store.memory import MemoryCore

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


@dataclass
class WorkerSet:
    """One node's workers of one generation, as the nursery sees them."""

    incarnation: str
    generation: Generation
    hangs: bool
    stopping: bool = False


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
    graves: dict[str, int] = field(default_factory=dict)
    store_number: int = 0
    reader: ViewReader = field(default_factory=lambda: ViewReader(KEYS))
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


class World:
    """The event queue, the store, the network and the nodes."""

    def __init__(self, seed: int, *, defect: str = "") -> None:
        self.seed = seed
        self.defect = defect
        self.random = random.Random(seed)
        self.now = 0.0
        self.steps = 0
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.store = MemoryCore()
        self.store_number = 0
        self.store_up = True
        self.store_down_since = -1e9
        self.nodes: dict[str, Node] = {}
        self.counts: Counter[str] = Counter()
        self.trace: list[str] = []
        self.observers: list[Observer] = []
        self.late_answers = 0.0
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
        self.spec = Spec(
            np=self.np,
            slots=1,
            settle_s=rng.choice([1.0, 3.0]),
            grow_every_s=rng.choice([5.0, 15.0]),
            restarts_max=rng.choice([2, 4, 30]),
            lease_ttl_s=rng.choice([2.0, 5.0]),
            store_outage_limit_s=rng.choice([15.0, 30.0]),
            fatal_exit_codes=(9,),
        )
        self.job = Job(work_s=rng.uniform(35.0, 70.0))

    # --- the queue ------------------------------------------------------------------------------------------------

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Call later; calls of the same moment keep their order."""
        self._count += 1
        heapq.heappush(self._queue, (self.now + delay, self._count, call))

    def run_to(self, until: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Run events up to a moment, or until `stop` says so."""
        while self._queue and self._queue[0][0] <= until and not stop():
            self.now, _, call = heapq.heappop(self._queue)
            self._expire()
            call()
            self.steps += 1
            for observer in self.observers:
                observer.after_event(self)
        if not stop():
            self.now = until

    def log(self, text: str) -> None:
        """Keep a line for the person who replays a seed."""
        self.trace.append(f"{self.now:9.3f} {text}")

    def fail(self, promise: str, text: str) -> None:
        """Say that a promise was broken."""
        self.log(f"VIOLATION of promise {promise}: {text}")
        raise Violation(f"seed {self.seed}: promise {promise}: {text}")

    # --- nodes ----------------------------------------------------------------------------------------------------

    def start_node(self, host: str, *, slots: int = 1, elastic_timeout_s: float | None = None) -> Node:
        """Start an agent on a host; each start is another node."""
        name = f"{host}-{self.random.getrandbits(16):04x}"
        number = len(self.nodes)
        member = Member(host=host, slots=slots, masters=(7000, 7001, 7002), ports=(8000 + number,) * slots)
        spec = self.spec if slots == 1 else msgspec.structs.replace(self.spec, slots=slots)
        me = Me(name, member, spec, incarnation=f"i{self.random.getrandbits(32):08x}")
        offset = self.random.uniform(0, 1000)
        limits = Limits(grace_s=self.random.choice([1.0, 4.0]), loss_grace_s=1.0, elastic_timeout_s=elastic_timeout_s)
        facts = Facts(me, KEYS, limits, Policy(node=name, kill_s=KILL_S), now=offset + self.now)
        facts.idle_since = facts.entered_at = facts.now
        node = Node(name, host, AgentCore(facts), self.links, offset=offset)
        self.nodes[name] = node
        self.log(f"{name} starts")
        self._tick_session(node)
        self._tick_links(node)
        self._tick_relist(node)
        self._perform(node, [Follow(False, None)])
        return node

    def local(self, node: Node) -> float:
        """A node's own clock."""
        return node.offset + self.now * node.rate

    def set_rate(self, node: Node, rate: float) -> None:
        """Let a node's clock run at another speed from now on, without a jump."""
        node.offset += self.now * (node.rate - rate)
        node.rate = rate
        self._plan_wake(node)
        self._plan_deadline(node)

    def feed(self, node: Node, event: Event) -> None:
        """Give an event to an agent; a frozen one finds it when it wakes up."""
        if not node.alive or node.exit_code is not None:
            return
        if not node.hears:
            node.inbox.append(event)
            return
        phase = node.core.phase
        actions = node.core.handle(event, self.local(node))
        for row in node.core.taken:
            self.counts[f"row {row}"] += 1
            self.log(f"{node.name}: {row}")
        decision = node.core.facts.decision
        if decision is not None:
            if node.last_decision is None or node.last_decision.code is not decision.code:
                self.counts[f"reason {decision.code.name}"] += 1
                self.log(f"{node.name} decides {decision.code.name}: {decision.reason}")
            node.last_decision = decision
        if phase is not node.core.phase:
            self.log(f"{node.name}: {phase} -> {node.core.phase}")
        self._perform(node, actions)
        self._plan_wake(node)

    def thaw(self, node: Node) -> None:
        """Let a frozen node or agent go on: the nursery looks at the clock first, then events are read."""
        node.frozen = node.agent_frozen = False
        node.thawed_at = self.now
        self._deadline(node)
        waiting, node.inbox = node.inbox, []
        for event in waiting:
            self.feed(node, event)
        self.feed(node, Tick())

    def kill_agent(self, node: Node) -> None:
        """SIGKILL to the agent: its nursery sees the socket close and kills the workers; peers see the link close."""
        node.alive = False
        self.log(f"{node.name}: agent killed")
        if node.workers is not None:
            workers = node.workers
            self.after(self.random.uniform(0.01, KILL_S), lambda: self._vanish(node, workers))
        if node.links:
            self._prove_gone(node)

    def kill_node(self, node: Node) -> None:
        """Power off: agent, nursery and workers are gone in one moment."""
        node.alive = False
        self.log(f"{node.name}: power off")
        if node.workers is not None:
            self._vanish(node, node.workers)

    def _prove_gone(self, dead: Node) -> None:
        """Everybody who can be reached learns over its link that a process is gone."""
        created = dead.core.facts.registered
        if created is None:
            return
        event = ProvenGone(dead.name, created, dead.host)
        for node in self.nodes.values():
            if node is not dead and node.alive and not node.cut and not dead.cut:
                self._later(node, self.random.uniform(0.001, 0.05), event)

    def prove_dead_to(self, node: Node, dead: Node) -> None:
        """The machine itself shows a newcomer that nothing is left of an older node there."""
        if not dead.alive and dead.workers is None:
            self._later(node, 0.01, ProvenDead(dead.name))

    def _later(self, node: Node, delay: float, event: Event) -> None:
        self.after(delay, lambda: self.feed(node, event))

    def _plan_wake(self, node: Node) -> None:
        at = node.core.wake_at
        if at is not None:
            delay = max((at - self.local(node)) / node.rate, 0.0) + 1e-6
            self.after(delay, lambda: self._wake(node, at))

    def _wake(self, node: Node, at: float) -> None:
        if node.hears and node.core.wake_at == at:
            self.feed(node, Tick())

    # --- the store over the network -------------------------------------------------------------------------------

    def reachable(self, node: Node) -> bool:
        """Whether a message from the node reaches the store now."""
        return self.store_up and not node.cut and node.alive and not node.frozen

    def latency(self) -> float:
        """One way, seconds."""
        return self.random.uniform(0.0005, 0.005)

    def _expire(self) -> None:
        if self.store_up:
            due = self.store.next_expiry()
            while due is not None and due <= self.now:
                holders = [node for node in self.nodes.values() if node.lease is not None]
                over = self.store.expire(self.now)
                for observer in self.observers:
                    observer.after_expiry(self, [node for node in holders if node.lease in over])
                self.deliver()
                due = self.store.next_expiry()

    def ask(self, node: Node, call: Callable[[], Callable[[], None]], lost: Callable[[], None]) -> None:
        """Send a request: `call` runs at the store and gives what the node does with the answer; or `lost`."""
        if not self.reachable(node):
            self.after(DEADLINE_S, lost)
            return
        number = self.store_number
        late = self.random.random() < self.late_answers

        def arrive() -> None:
            if not self.store_up or number != self.store_number or (not node.alive and not late):
                if not late:
                    self.after(DEADLINE_S, lost)
                return
            answer = call()
            if late or node.cut:
                self.log(f"{node.name}: an answer is lost")
                if not late:
                    self.after(DEADLINE_S, lost)
            else:
                self.after(self.latency(), answer)

        if late:  # The request lingers on its way, longer than anybody waits for it, and may still be carried out.
            self.counts["fault late write"] += 1
            self.after(DEADLINE_S, lost)
            self.after(self.random.choice([self.latency(), self.random.uniform(0.5, 12.0)]), arrive)
        else:
            self.after(self.latency(), arrive)

    def deliver(self) -> None:
        """Show every mirror what changed, each after its own delay."""
        for node in self.nodes.values():
            if node.alive and node.exit_code is None and node.store_number == self.store_number and node.ranges:
                if node.deaf or not self.reachable(node):
                    continue
                for batch in self.store.history(node.ranges, node.revision + 1):
                    changes, revision = batch.changes, batch.revision
                    delay = self.latency()
                    if not self.watch_faults:
                        self._show_later(node, delay, changes, revision)
                        continue
                    if self.random.random() < 0.03:
                        self.counts["fault late watch event"] += 1
                        delay = self.random.uniform(0.1, 3.0)
                    if self.random.random() < 0.03:
                        self.counts["fault repeated watch event"] += 1
                        self._show_later(node, delay + 0.2, changes, revision)
                    if self.random.random() < 0.01:
                        self.counts["fault lost watch event"] += 1
                        continue
                    self._show_later(node, delay, changes, revision)

    def _show_later(self, node: Node, delay: float, changes: tuple[Change, ...], revision: int) -> None:
        """Show changes after a delay; one revision may come in two parts, as it does from etcd."""
        if len(changes) > 1 and self.random.random() < 0.3:
            self.counts["fault split watch event"] += 1
            self._show_part(node, delay, changes[:1], revision)
            self._show_part(node, delay + 0.001, changes[1:], revision)
        else:
            self._show_part(node, delay, changes, revision)

    def _show_part(self, node: Node, delay: float, changes: tuple[Change, ...], revision: int) -> None:
        ranges, number = node.ranges, self.store_number

        def show() -> None:
            if node.ranges != ranges or node.store_number != number or node.frozen or not node.alive:
                return
            entries, fresh = dict(node.entries), False
            for change in changes:
                key, at = change.entry.key, change.entry.mod_revision
                held = entries.get(key)
                if at <= max(held.mod_revision if held else 0, node.graves.get(key, 0), node.listed_at):
                    continue
                fresh = True
                if change.deleted:
                    entries.pop(key, None)
                    node.graves[key] = at
                else:
                    entries[key] = change.entry
            if fresh:
                node.entries = entries
                node.revision = max(node.revision, revision)
                self._view_changed(node)

        self.after(delay, show)

    def _view_changed(self, node: Node) -> None:
        complete, follows = node.scope
        view: View = node.reader.read(node.entries, node.revision, complete=complete, follows=follows)
        self.feed(node, ViewChanged(view, node.listing))

    def relist(self, node: Node) -> None:
        """Read the followed ranges anew; what comes back is the truth."""
        if not node.hears or node.exit_code is not None:
            return
        ranges, scope = node.ranges, node.scope

        def read() -> Callable[[], None]:
            entries = {entry.key: entry for span in ranges for entry in self.store.list(span).entries}
            revision, number = self.store.revision, self.store_number

            def answer() -> None:
                if node.ranges != ranges or node.scope != scope:
                    return
                if number == node.store_number and revision < node.revision:
                    return
                node.entries, node.revision, node.store_number = entries, revision, number
                node.listed_at, node.graves = revision, {}
                node.listing += 1
                self._view_changed(node)
                self.after(0.001, lambda: self._catch_up(node, ranges))

            return answer

        self.ask(node, read, lambda: self.after(0.3, lambda: self.relist(node)) if node.ranges == ranges else None)

    def _catch_up(self, node: Node, ranges: tuple[Range, ...]) -> None:
        """The watch begins at the listing: what happened since then is shown."""
        if node.ranges == ranges and node.store_number == self.store_number and self.reachable(node):
            for batch in self.store.history(ranges, node.revision + 1):
                self._show_later(node, self.latency(), batch.changes, batch.revision)

    def _tick_relist(self, node: Node) -> None:
        if node.alive and node.exit_code is None:
            node.deaf = False
            self.relist(node)
            self.after(RELIST_EVERY_S, lambda: self._tick_relist(node))

    # --- what cores ask for ---------------------------------------------------------------------------------------

    def _perform(self, node: Node, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Send():
                    self._send(node, action.transaction)
                case Follow():
                    node.scope = (action.complete, action.node)
                    me = (node.name,) if action.node is None else (node.name, action.node)
                    node.ranges = KEYS.everything if action.complete else KEYS.followed(*me)
                    self.relist(node)
                case Relist():
                    self.relist(node)
                case OpenSession():
                    self._grant(node, action.ttl_s)
                case CloseSession() | Revoke():
                    lease = action.lease
                    if isinstance(action, CloseSession):
                        node.lease = None
                    self.ask(node, lambda lease=lease: self._revoke(lease), lambda: None)  # type: ignore[misc]
                case FindOlder():
                    self._older(node, action.before_revision)
                case StartWorkers():
                    self._start_workers(node, action)
                case StopWorkers():
                    self._stop_workers(node, action)
                case RunUntil():
                    node.run_until = action.t
                    self._plan_deadline(node)
                case Exit():
                    node.exit_code = action.code
                    self.log(f"{node.name}: exit {action.code}")
                case _:
                    text = getattr(action, "text", "")
                    if text:
                        self.log(f"{node.name} says: {text}")

    def _revoke(self, lease: int) -> Callable[[], None]:
        self.store.revoke(lease)
        self.deliver()
        return lambda: None

    def _send(self, node: Node, transaction: Transaction) -> None:
        compares = [c for c in transaction.compares if not self._left_out(c.range.start, c.target.value)]

        def call() -> Callable[[], None]:
            before = self.store.revision
            try:
                result = self.store.txn(compares, transaction.then)
            except StoreError:
                return lambda: self.feed(node, Answered(transaction, False, self.store.revision))
            if result.revision > before:
                self.log(f"store {result.revision}: {transaction.kind} of {node.name}")
                for observer in self.observers:
                    observer.after_commit(self, node, transaction)
                self.deliver()
            return lambda: self.feed(node, Answered(transaction, result.succeeded, result.revision))

        self.ask(node, call, lambda: self.feed(node, Answered(transaction, None)))

    def _left_out(self, key: str, target: str) -> bool:
        """A defect that a test has put in: this compare is not made."""
        if self.defect == "no mod-revision compare":
            return target == "mod_revision" and key in (KEYS.generation, KEYS.go)
        return self.defect == "no create-revision compare" and target == "create_revision" and KEYS.members in key

    def _grant(self, node: Node, ttl_s: float) -> None:
        sent_at = self.local(node)

        def call() -> Callable[[], None]:
            lease = self.store.grant(ttl_s, self.now)
            number = self.store_number

            def answer() -> None:
                if number == self.store_number:
                    node.lease = lease.id
                self.feed(node, Granted(lease.id, lease.ttl_s, sent_at))

            return answer

        self.ask(node, call, lambda: self.feed(node, GrantFailed()))

    def _tick_session(self, node: Node) -> None:
        if not node.alive or node.exit_code is not None:
            return
        self.after(self.spec.lease_ttl_s / 4 / node.rate, lambda: self._tick_session(node))
        lease = node.lease
        if lease is None or not node.hears:
            return
        sent_at = self.local(node)

        def call() -> Callable[[], None]:
            ttl_s = self.store.refresh(lease, self.now) if node.lease == lease else 0.0
            number = self.store_number

            def answer() -> None:
                if number != node.store_number:
                    self.relist(node)  # The session sees an answer of another store.
                if ttl_s > 0:
                    self.feed(node, Refreshed(lease, ttl_s, sent_at))
                elif node.lease == lease:
                    node.lease = None
                    self.feed(node, SessionLost(lease, "its time ran out"))

            return answer

        self.ask(node, call, lambda: None)

    def _older(self, node: Node, before: int) -> None:
        def call() -> Callable[[], None]:
            found = self.store.list(
                Range.prefix(KEYS.members), keys_only=True, limit=1, created_before=before, newest_first=True
            ).entries
            name = found[0].key[len(KEYS.members) :] if found else None
            event = Older(before, name, found[0].create_revision if found else 0)
            return lambda: self.feed(node, event)

        self.ask(node, call, lambda: self.feed(node, Older(before, None, failed=True)))

    # --- links ----------------------------------------------------------------------------------------------------

    def heard(self, node: Node, other: Node) -> bool:
        """Whether a link between the two works now."""
        return node.hears and other.hears and not node.cut and not other.cut and other.exit_code is None

    def _tick_links(self, node: Node) -> None:
        """Each refresh interval: tell the core who is heard, and ask the first of the generation for its word."""
        if not node.alive or node.exit_code is not None or not node.links:
            return
        self.after(self.spec.lease_ttl_s / 4, lambda: self._tick_links(node))
        if not node.hears:
            return
        generation = node.core.facts.generation
        if generation is None:
            return
        peers = [self.nodes[place.node] for place in generation.members if place.node != node.name]
        linked = frozenset(peer.name for peer in peers if self.heard(node, peer))
        if linked != node.core.facts.memory.linked:
            self.feed(node, Linked(linked))
        if not generation.members or node.workers is None:
            return
        first, g = self.nodes[generation.members[0].node], node.core.facts.workers_g
        if first is node or not self.heard(node, first):
            return
        asked_at = self.local(node)
        granted = vouch_s(first.core.facts, node.name, g) if first.core.facts.now <= self.local(first) else 0.0
        if granted > 0:
            self._later(node, 2 * self.latency(), Vouched(g, asked_at + granted))

    # --- nursery and workers --------------------------------------------------------------------------------------

    def _start_workers(self, node: Node, action: StartWorkers) -> None:
        generation = action.generation
        if node.workers is not None:
            self.fail("1", f"{node.name} starts generation {generation.g} beside {node.workers.generation.g}")
        node.workers = WorkerSet(action.incarnation, generation, hangs=self.random.random() < 0.5)
        node.run_until = node.core.facts.run_until
        self._plan_deadline(node)
        for observer in self.observers:
            observer.after_start(self, node, generation)
        key = (action.incarnation, generation.g)
        began = self.job.began.setdefault(key, {})
        began[node.name] = self.now
        if len(began) == len(generation.members):
            self.after(max(self.job.work_s - self.job.done_s, 0.1), lambda: self._finish(key, generation))
            self.after(1.0, lambda: self._progress(key, generation))

    def running(self, key: tuple[str, int], generation: Generation) -> list[Node]:
        """Nodes whose workers of that generation run."""
        found = []
        for place in generation.members:
            node = self.nodes[place.node]
            if node.workers is not None and (node.workers.incarnation, node.workers.generation.g) == key:
                found.append(node)
        return found

    def _progress(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) == len(generation.members) and not any(node.frozen for node in nodes):
            self.job.done_s = min(self.job.done_s + 1.0, self.job.work_s)
            self.after(1.0, lambda: self._progress(key, generation))
        elif any(node.frozen for node in nodes) and len(nodes) == len(generation.members):
            self.after(1.0, lambda: self._progress(key, generation))

    def _finish(self, key: tuple[str, int], generation: Generation) -> None:
        nodes = self.running(key, generation)
        if len(nodes) < len(generation.members):
            return
        if self.job.done_s < self.job.work_s - 1.5:
            self.after(self.job.work_s - self.job.done_s, lambda: self._finish(key, generation))
            return
        for node in nodes:
            workers = node.workers
            assert workers is not None
            self.after(self.random.choice([0.0, self.random.uniform(0, 2.0)]), self._ender(node, workers, 0))

    def _ender(self, node: Node, workers: WorkerSet, code: int, *, consequence: bool = False) -> Callable[[], None]:
        return lambda: self.end_worker(node, workers, code, consequence=consequence)

    def end_worker(self, node: Node, workers: WorkerSet, code: int, *, consequence: bool = False) -> None:
        """A worker ends by itself."""
        if node.workers is not workers or workers.stopping:
            return
        if node.frozen:
            self.after(0.5, self._ender(node, workers, code, consequence=consequence))
            return
        if code and not consequence:
            self.job.failures += 1
        m_id = workers.generation.index(node.name) or 0
        g = workers.generation.g
        self.log(f"{node.name}: worker of {g} ends with {code}")
        for observer in self.observers:
            observer.after_exit(self, node, workers, code)
        node.workers = None
        slots = node.core.facts.me.member.slots
        for rank in range(m_id * slots, (m_id + 1) * slots):
            ended = WorkerExit(rank=rank, code=code, words=f"exit {code}", consequence=consequence)
            self.feed(node, Exited(g, ended, own=True))
        self.feed(node, Gone(g, int(self.job.done_s)))
        if code:
            self._break(workers, node)

    def _stop_workers(self, node: Node, action: StopWorkers) -> None:
        workers = node.workers
        if workers is None or workers.generation.g != action.g:
            return
        workers.stopping = True
        quick = self.random.random() < 0.5
        delay = self.random.uniform(0.01, 0.2) if quick else action.grace_s + self.random.uniform(0.01, KILL_S)
        self.after(delay, lambda: self._vanish(node, workers))

    def _plan_deadline(self, node: Node) -> None:
        if node.workers is not None:
            delay = max((node.run_until - self.local(node)) / node.rate, 0.0)
            self.after(delay, lambda: self._deadline(node))

    def _deadline(self, node: Node) -> None:
        """The nursery looks at its clock; it does so also while its agent is frozen."""
        workers = node.workers
        if workers is None or node.frozen or self.local(node) < node.run_until - 1e-6:
            return
        if self.defect == "no nursery deadline":
            return
        workers.stopping = True
        self.counts["nursery killed overdue workers"] += 1
        self.after(self.random.uniform(0.01, KILL_S), lambda: self._vanish(node, workers))

    def _vanish(self, node: Node, workers: WorkerSet) -> None:
        """Every process of these workers is gone."""
        if node.workers is not workers:
            return
        if node.frozen and node.alive:
            self.after(0.05, lambda: self._vanish(node, workers))
            return
        node.workers = None
        g = workers.generation.g
        self.log(f"{node.name}: workers of {g} are gone")
        self.feed(node, Gone(g, int(self.job.done_s)))
        self._break(workers, node)

    def _break(self, workers: WorkerSet, gone: Node) -> None:
        """Peers of a worker that is gone fail in their next collective, or hang in it."""
        for place in workers.generation.members:
            peer = self.nodes[place.node]
            theirs = peer.workers
            if (
                peer is not gone
                and theirs is not None
                and theirs.generation.g == workers.generation.g
                and theirs.incarnation == workers.incarnation
                and not theirs.hangs
            ):
                self.after(self.random.uniform(0.001, 1.5), self._ender(peer, theirs, 1, consequence=True))

    # --- leaving --------------------------------------------------------------------------------------------------

    def drain(self, node: Node) -> None:
        """SIGTERM to an agent."""
        self.log(f"{node.name}: SIGTERM")
        self.feed(node, Drain(15, "SIGTERM"))

    def replace_store(self) -> None:
        """The store comes back empty."""
        self.store = MemoryCore()
        self.store_number += 1
        for _ in range(100 * self.store_number):  # Lease ids are random in etcd: none of the old ones is valid here.
            self.store.revoke(self.store.grant(1.0, self.now).id)
        self.log("the store is empty")

    def finished(self) -> bool:
        """Whether every agent that lives has ended."""
        return all(not node.alive or node.exit_code is not None for node in self.nodes.values())

    def verdict_there(self) -> bool:
        """Whether the job has its verdict."""
        return bool(self.store.list(Range.key(KEYS.verdict)).entries)


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


__all__ = ["KEYS", "KILL_S", "Node", "Observer", "Phase", "Violation", "WorkerSet", "World", "replace"]
