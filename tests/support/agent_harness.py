"""One agent's core on a bench: the store is real and in memory, everything else is written down.

What the core asks of the store is done and answered at once; what it asks of the nursery and of people is kept in
`asked`. Other nodes are documents that a test writes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import (
    Action,
    CloseSession,
    DoubtLinks,
    ExitAgent,
    FindMember,
    LogLine,
    LookUpNode,
    MirrorKeys,
    OpenSession,
    Relist,
    RevokeLease,
    SendTransaction,
    StartWorkers,
    StopWorkers,
)
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import (
    DrainRequested,
    Event,
    LeaseGranted,
    LeaseGrantFailed,
    LeaseRefreshed,
    LinksChanged,
    MemberFound,
    NodeLookedUp,
    SessionLost,
    Tick,
    TransactionAnswered,
    ViewChanged,
    Vouched,
    WorkerExited,
    WorkersGone,
)
from elastic.core.agent.state import AgentState, Phase, Timeouts
from elastic.core.agent.succession import PROPOSALS
from elastic.core.kv import KeyRange, Put
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import (
    Budget,
    Cause,
    ChangeReason,
    FinalStatus,
    Generation,
    GenerationMember,
    Go,
    JobSpec,
    Leader,
    Member,
    Outcome,
    Predecessor,
    Verdict,
)
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from elastic.core.transactions import Transaction
from elastic.core.view import encode
from elastic.core.view_reader import ViewReader
from elastic.errors import StoreError
from launcher.config.readers import np as read_np
from launcher.peers.doubt import LinkDoubt
from tests.support.job_specs import job_spec
from tests.support.job_transcript import member, worker_exit
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

A = TypeVar("A", bound=Action)

LEASE_TTL_S = JobSpec(np=read_np("1"), slots=1).lease_ttl_s
EVENTS_MAX = 200
"""More events in answer to one are a loop."""


class Bench:
    """The agent of one node, in a job with the given spec; the nodes named by `after` registered before it.

    The answer to a transaction comes before the watch shows what it did; with `watch_first`, after it.
    `watch` sees each event and what the core made of it.
    """

    def __init__(
        self,
        node: str = "b",
        np: str = "1:3",
        *,
        slots: int = 1,
        after: str = "",
        offline: bool = False,
        watch_first: bool = False,
        join_timeout_s: float | None = None,
        force: bool = False,
        rerun: bool = False,
        np_given: bool = True,
        watch: Callable[[AgentState, Event, list[Action]], None] = lambda facts, event, actions: None,
        prepared: bool = True,
        **spec: Any,
    ) -> None:
        self.shelf = Shelf(KEYS)
        self.node = node
        self.spec = job_spec(np=read_np(np), slots=slots, join_window_s=0.0, **spec)
        me = NodeIdentity(
            node, member(f"host-{node}", slots), self.spec, f"i-{node}", force=force, rerun=rerun, np_given=np_given
        )
        limits = Timeouts(stop_timeout_s=15.0, failure_stop_timeout_s=2.0, join_timeout_s=join_timeout_s)
        self._watch = watch
        self.core = AgentCore(AgentState(me, KEYS, limits, DecisionPolicy(node), now=0.0))
        self.core.facts.registration.prepared = prepared
        self.offline = offline
        self.watch_first = watch_first
        self.hears: frozenset[str] = frozenset()
        self.doubt = LinkDoubt(
            lambda number: self.doubt.answered(number, self.hears),
            lambda nodes, heard_at: self._events.append(LinksChanged(nodes, heard_at)),
            lambda delay, call: self._timers.append((self.now + delay, call)),
            lambda: self.now,
        )
        self._timers: list[tuple[float, Callable[[], None]]] = []
        self.now = 0.0
        self.asked: list[Action] = []
        self.proposals: list[Transaction] = []
        self.rows: list[str] = []
        self._reader = ViewReader(KEYS)
        self._scope = MirrorKeys(complete=False)
        self._listing = 1
        self._relist_wanted = False
        self._events: deque[Event] = deque()
        if after:
            self.others(after)
        self.look()

    # --- what happens to the agent --------------------------------------------------------------------------------

    def tell(self, *events: Event) -> None:
        """These happen, one after the other, each with all that follows from it."""
        self._come_to_rest()
        for event in events:
            self._events.append(event)
            self._come_to_rest()

    def _come_to_rest(self) -> None:
        for _ in range(EVENTS_MAX):
            if not self._events:
                return
            happened = self._events.popleft()
            actions = self.core.handle(happened, self.now)
            self._watch(self.facts, happened, actions)
            self.rows += self.core.taken
            for action in actions:
                self._perform(action)
        raise AssertionError("the agent does not come to rest")

    def look(self) -> None:
        """The mirror shows the agent what stands in the store now."""
        if not self.offline:
            self._listing += self._relist_wanted
            self._relist_wanted = False
            self.tell(self.seen())

    def at(self, now: float) -> None:
        """Time has passed, and the agent is called."""
        self.now = now
        due = [call for at, call in self._timers if at <= now]
        self._timers = [(at, call) for at, call in self._timers if at > now]
        for call in due:
            call()
        self.tell(Tick())

    def wake(self) -> None:
        """The time has come at which the agent wants to be called."""
        assert self.core.wake_at is not None
        self.at(self.core.wake_at)

    def refreshed(self) -> None:
        """The lease is refreshed now, and the node's key is read."""
        lease = self.facts.registration.lease
        assert lease is not None
        own = self.shelf.entry(KEYS.member(self.node))
        key_revision = own.mod_revision if own is not None and own.lease == lease else 0
        self.tell(LeaseRefreshed(lease, self.facts.registration.lease_ttl_s, self.now, key_revision))

    def exits(self, *codes: int, **others: Any) -> None:
        """Workers of the running generation end by themselves with these codes, and all processes are gone."""
        self.exit(*codes, **others)
        self.gone()

    def exit(self, *codes: int, **others: Any) -> None:
        """Workers of the running generation end by themselves with these codes."""
        for rank, code in enumerate(codes):
            self.tell(WorkerExited(self.facts.workers.g, worker_exit(rank, code, **others), own=True))

    def gone(self, step: int = -1) -> None:
        """Every worker process of the running generation is gone."""
        self.tell(WorkersGone(self.facts.workers.g, step))

    def links(self, nodes: str, hears: str | None = None) -> None:
        """Links to these nodes are up; those of `hears` (default: all of them) answer when they are asked."""
        self.hears = frozenset((nodes if hears is None else hears).split())
        self.doubt.links_changed(nodes.split())
        self.tell()

    def drain(self) -> None:
        """SIGTERM comes."""
        self.tell(DrainRequested(143, "SIGTERM"))

    # --- what others write ----------------------------------------------------------------------------------------

    def others(self, nodes: str, **values: Any) -> None:
        """Other nodes register; the first node of all brings the spec, and leads."""
        first = self.shelf.view.spec is None
        if first:
            self.shelf.put(KEYS.incarnation, "i1")
            self.shelf.put(KEYS.spec, self.spec)
        for node in nodes.split():
            self.shelf.put(KEYS.member(node), Member(**{**_fields(member(f"host-{node}")), **values}), leased=True)
        if first:
            self.lead(nodes.split()[0])
        self.look()

    def lead(self, node: str) -> None:
        """Another node, which is registered, has taken the leader's key under its lease."""
        stored = self.shelf.view.members[node]
        leader = Leader(node=node, host=stored.value.host, link=stored.value.link, created=stored.create_revision)
        self.shelf.core.txn((), (Put(KEYS.leader, encode(leader), stored.lease),))

    def lose(self, node: str) -> None:
        """The lease of another node ends."""
        self.shelf.core.revoke(self.shelf.view.members[node].lease)
        self.look()

    def world(
        self, g: int, nodes: str, *, why: ChangeReason = ChangeReason.NODE_LOST, before: Predecessor | None = None
    ) -> None:
        """The leader publishes a generation."""
        stored = self.shelf.view.spec
        run = stored.value.run if stored is not None else 1
        slots = self.spec.slots
        ports = tuple(range(8000, 8000 + slots))
        places = tuple(GenerationMember(node, f"host-{node}", (7000,), ports) for node in nodes.split())
        generation = Generation(
            g=g, run=run, leader="", why=why, reason=f"because of {why}", members=places, slots=slots, before=before
        )
        self._publish(generation)

    def roster(self, rev: int, nodes: str, *, since: int = 0, leaving: bool = False, g: int = 1) -> None:
        """The leader publishes a revision: each node has a server's and a worker's seat; b's as they are said."""
        places = tuple(
            TaskMember(
                node,
                f"host-{node}",
                (7000,),
                (8000, 8001),
                (Task(Role.SERVER, at), Task(Role.WORKER, at)),
                since if node == "b" else 0,
                leaving and node == "b",
            )
            for at, node in enumerate(nodes.split())
        )
        cluster_spec = ClusterSpec(
            g=g,
            run=1,
            leader="",
            why=ChangeReason.NODE_LOST,
            reason="because",
            members=places,
            slots=self.spec.slots,
            rev=rev,
        )
        self._publish(cluster_spec)

    def _publish(self, generation: Generation) -> None:
        """Write it, instead of one of the other type."""
        self.shelf.put(KEYS.generation_of(generation), generation)
        for key in KEYS.generations:
            if key != KEYS.generation_of(generation) and self.shelf.entry(key) is not None:
                self.shelf.delete(key)
        self.look()

    def go(self, g: int, *, cause: Cause | None = None) -> None:
        """The leader gives the go."""
        self.shelf.put(KEYS.go, Go(g=g, master="host-a:7000", budget=Budget(), cause=cause, note="note"))
        self.look()

    def verdict(self, status: FinalStatus = FinalStatus.COMPLETED) -> None:
        """The job ends."""
        self.shelf.put(KEYS.verdict, Verdict(status=status, reason="reason", run=1, g=1, at=0.0))
        self.look()

    def unregister(self) -> None:
        """The store loses this node's registration, although its lease lives on."""
        self.shelf.delete(KEYS.member(self.node))
        self.look()

    def expire(self) -> None:
        """The store ends this node's lease, and the session says so."""
        lease = self.facts.registration.lease
        assert lease is not None
        self.shelf.core.revoke(lease)
        self.tell(SessionLost(lease, "TTL 0"))

    # --- what is there --------------------------------------------------------------------------------------------

    def seen(self) -> ViewChanged:
        """What the mirror would show now."""
        scope = self._scope
        ranges = KEYS.everything if scope.complete else KEYS.followed(self.node)
        entries = {entry.key: entry for span in ranges for entry in self.shelf.core.list(span).entries}
        view = self._reader.read(entries, self.shelf.core.revision, complete=scope.complete)
        return ViewChanged(view, self._listing)

    @property
    def facts(self) -> AgentState:
        """What the agent knows."""
        return self.core.facts

    @property
    def mirrors_everything(self) -> bool:
        """Whether the agent follows all members and outcomes, as the leader does."""
        return self._scope.complete

    @property
    def phase(self) -> Phase:
        """Where the agent is in its table."""
        return self.core.phase

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """What the agent has recorded, by generation."""
        return {g: stored.value for (g, node), stored in self.shelf.view.outcomes.items() if node == self.node}

    @property
    def registered(self) -> bool:
        """Whether the store has this node."""
        return self.node in self.shelf.view.members

    @property
    def exit_code(self) -> int | None:
        """The exit code, once the agent has ended."""
        codes = [action.code for action in self.asked if isinstance(action, ExitAgent)]
        return codes[-1] if codes else None

    @property
    def lines(self) -> list[str]:
        """What was said to people so far."""
        return [action.text for action in self.every(LogLine)]

    @property
    def starts(self) -> list[int]:
        """The generations whose workers were started."""
        return [action.generation.g for action in self.every(StartWorkers)]

    @property
    def stops(self) -> list[tuple[int, float]]:
        """The generations whose workers were stopped, with the seconds they were given."""
        return [(action.g, action.stop_timeout_s) for action in self.every(StopWorkers)]

    def every(self, kind: type[A]) -> list[A]:
        """Everything of this kind that was asked so far."""
        return [action for action in self.asked if isinstance(action, kind)]

    # --- the shell, as small as it can be -------------------------------------------------------------------------

    def _perform(self, action: Action) -> None:
        store = self.shelf.core
        if isinstance(action, SendTransaction) and action.transaction.kind in PROPOSALS:
            self.proposals.append(action.transaction)
        match action:
            case SendTransaction(transaction=transaction) if self.offline:
                self._events.append(TransactionAnswered(transaction, None))
            case SendTransaction(transaction=transaction):
                try:
                    result = store.txn(transaction.compares, transaction.then)
                except StoreError:
                    answer = TransactionAnswered(transaction, False, store.revision)
                else:
                    answer = TransactionAnswered(transaction, result.succeeded, result.revision)
                events = (answer, self.seen())
                self._events.extend(reversed(events) if self.watch_first else events)
            case OpenSession() if self.offline:
                self._events.append(LeaseGrantFailed())
            case OpenSession(ttl_s=ttl_s):
                self._events.append(LeaseGranted(store.grant(ttl_s, self.now).id, ttl_s, self.now))
            case FindMember():
                listed = None if self.offline else store.list(KeyRange.prefix(KEYS.members), limit=1).entries
                self._events.append(MemberFound(None if listed is None else bool(listed)))
            case DoubtLinks(every_s=every_s):
                self.doubt.every(every_s)
            case LookUpNode(node=node):
                found = None if self.offline else bool(store.list(KeyRange.key(KEYS.member(node))).entries)
                self._events.append(NodeLookedUp(node, found))
            case MirrorKeys():
                self._scope = action
                self._relist()
            case Relist():
                self._relist()
            case CloseSession(lease=lease) | RevokeLease(lease=lease) if not self.offline:
                store.revoke(lease)
        if not isinstance(action, SendTransaction | MirrorKeys | FindMember | Relist):
            self.asked.append(action)

    def _relist(self) -> None:
        self._relist_wanted = self.offline
        if not self.offline:
            self._listing += 1
            self._events.append(self.seen())


def _fields(value: Member) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__struct_fields__}


def vouched(until: float, g: int = 1, *, by: str = "a") -> Vouched:
    """The grant of a member to run generation `g` until then, for the time of a lease of this job."""
    return Vouched(by, g, until - LEASE_TTL_S, LEASE_TTL_S)


# --- an agent in each phase ---------------------------------------------------------------------------------------


def joining(**options: Any) -> Bench:
    """It has not reached the store yet."""
    return Bench(offline=True, **options)


def spare(**options: Any) -> Bench:
    """It has joined the job of `a`, which came first and leads. There is no generation yet."""
    bench = Bench(**{"after": "a", **options})
    assert bench.phase is Phase.SPARE
    return bench


def gated(**options: Any) -> Bench:
    """It is the second of generation 1, which waits for its go."""
    bench = spare(**options)
    bench.world(1, "a b", why=ChangeReason.FIRST)
    assert bench.phase is Phase.GATED
    return bench


def running(**options: Any) -> Bench:
    """Its workers of generation 1 run."""
    bench = gated(**options)
    bench.go(1)
    assert bench.phase is Phase.RUNNING
    return bench


def serving(**options: Any) -> Bench:
    """It runs a server and a worker, in the first revision of a roster."""
    bench = spare(slots=2, **options)
    bench.roster(0, "a b")
    bench.go(1)
    assert bench.phase is Phase.RUNNING
    return bench


def stopping(**options: Any) -> Bench:
    """Its workers of generation 1 are being stopped, because there is a generation 2."""
    bench = running(**options)
    bench.world(2, "a b", before=Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST))
    assert bench.phase is Phase.STOPPING
    return bench


def done(**options: Any) -> Bench:
    """Its workers of generation 1 have ended well."""
    bench = running(**options)
    bench.exits(*[0] * bench.spec.slots)
    assert bench.phase is Phase.DONE
    return bench


def leaving(**options: Any) -> Bench:
    """It was a spare and is to leave, and cannot reach the store."""
    bench = spare(**options)
    bench.offline = True
    bench.drain()
    assert bench.phase is Phase.LEAVING
    return bench


def ended(**options: Any) -> Bench:
    """It was a spare and has left."""
    bench = spare(**options)
    bench.drain()
    assert bench.phase is Phase.ENDED
    return bench


IN_PHASE = {
    Phase.JOINING: joining,
    Phase.SPARE: spare,
    Phase.GATED: gated,
    Phase.RUNNING: running,
    Phase.STOPPING: stopping,
    Phase.DONE: done,
    Phase.LEAVING: leaving,
    Phase.ENDED: ended,
}
"""How an agent gets into each phase."""
