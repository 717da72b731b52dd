"""Thousands of agents in one process, against a real etcd, each with its own connection, lease, watch and core.

Every agent is the real one (core, mirror, session, client of etcd) without its nursery: workers start and stop at
once. So what they ask of etcd, and when, is what that many machines would ask. Only the time to read and to apply a
generation is put off (`Agent.hold`), because here all agents share the cores that each of them has for itself in
a job. The agents of a crowd that is `linked` also have the real links to each other, each agent with an address of its
own of this machine's loopback.
"""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from elastic.core.admission import NodeIdentity
from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.candidates import watches_leader
from elastic.core.agent.core import AgentCore
from elastic.core.agent.state import AgentState, Timeouts
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, WatchBatch
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobSpec, Member, Np
from elastic.core.transactions import Transaction
from elastic.core.view_reader import ViewReader
from elastic.errors import OutcomeUnknown, StoreError, StoreUnavailable
from elastic.store import session
from elastic.store.etcd import EtcdOptions, EtcdStore
from elastic.store.mirror import Mirror
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import Asked, LinkAdapter
from launcher.peers.listener import PeerListener
from launcher.peers.reachability import find_listener
from launcher.system.clock import boottime

LEASE_TTL_S = 3600.0
"""Long, so that the refreshes of all agents do not take this one process's time."""
LIMIT_S = 300.0
"""Nothing that is waited for takes longer on a machine that is not out of breath."""
OPTIONS = EtcdOptions(try_s=LIMIT_S, refresh_try_s=LIMIT_S, hedge_after_s=LIMIT_S, request_limit_s=LIMIT_S)
"""Long times as well: an answer that came waits here until the one core has dealt with those of a thousand others."""


class Links(NamedTuple):
    """Settings of a crowd whose agents have links."""

    silence_timeout_s: float
    lease_ttl_s: float


class WatchedStore(EtcdStore):
    """Says when its first watch stands."""

    def __init__(self, endpoints: Sequence[str], *, options: EtcdOptions, random_source: random.Random) -> None:
        """As `EtcdStore`."""
        super().__init__(endpoints, options=options, random_source=random_source)
        self.standing = asyncio.Event()

    async def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See `Store.watch`."""
        async with aclosing(super().watch(ranges, from_revision)) as batches:
            async for batch in batches:
                self.standing.set()
                yield batch


def raise_limits() -> None:
    """Let this process and etcd have as many open files as the machine allows."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spec_of(count: int, slots: int, links: Links | None) -> JobSpec:
    """What a job of so many nodes says: it starts when all are there, and goes on with any number."""
    if links is None:
        return JobSpec(np=Np(1, count, count), slots=slots, lease_ttl_s=LEASE_TTL_S, join_window_s=3.0)
    return JobSpec(
        np=Np(1, count, count),
        slots=slots,
        lease_ttl_s=links.lease_ttl_s,
        silence_timeout_s=links.silence_timeout_s,
        join_window_s=3.0,
    )


class Agent:
    """One agent. `has` is the generation whose bytes arrived last, `runs` the one whose workers run."""

    def __init__(self, crowd: Crowd, number: int, slots: int) -> None:
        """Make it; nothing is connected before `start`."""
        self.crowd = crowd
        self.number = number
        host = f"ip-10-{100 + number // 65536}-{number // 256 % 256}-{number % 256}.ec2.internal"
        self.node = f"{host}-{number * 2654435761 % 2**24:06x}"
        listener = None
        if crowd.links is not None:
            host = f"127.{1 + number // 65536}.{number // 256 % 256}.{number % 256}"
            listener = PeerListener(host, crowd.keys.job_id, self.node)
        first = 20_000 + number % 10_000
        member = Member(
            host=host,
            slots=slots,
            masters=tuple(range(first + slots, first + slots + 3)),
            ports=tuple(range(first, first + slots)),
            versions={"python": "3.11", "torch": "2.13.0", "nccl": "2.29.1", "launcher": "0.1.0", "script": "ab" * 8},
            link=listener.port if listener is not None else 0,
        )
        spec = spec_of(crowd.count, slots, crowd.links)
        me = NodeIdentity(self.node, member, spec, f"incarnation-{number}", "secret" if crowd.links is not None else "")
        facts = AgentState(
            me,
            crowd.keys,
            Timeouts(15.0, 2.0, watch_patience_s=LIMIT_S),
            DecisionPolicy(self.node),
            now=boottime(),
        )
        facts.leaving.idle_since = facts.entered_at = facts.now
        self.core = AgentCore(facts)
        self.has = self.runs = 0
        self.apply_s = 0.0
        self.document_bytes = 0
        self.hold = False
        self.lease: int | None = None
        self.pictured = asyncio.Event()
        """Set while what it follows is known to it."""
        self._random = random.Random(number)
        self._store = WatchedStore([crowd.endpoint], options=OPTIONS, random_source=self._random)
        self._mirror = Mirror(
            self._store,
            on_change=self._mirrored,
            on_outage=self._note_outage,
            relist_every_s=LIMIT_S,
            random_source=self._random,
        )
        self._reader = ViewReader(crowd.keys)
        self._complete = False
        self._listener = listener
        self._links = None
        if listener is not None:
            find = partial(find_listener, self._store, crowd.keys)
            self._links = LinkAdapter(listener, crowd.keys.job_id, facts, self.feed, crowd.agent_log, find=find)
        self._events: deque[agent_events.Event] = deque()
        self._busy = False
        self._dirty = False
        self._tasks: set[asyncio.Task[Any]] = set()
        self._session: asyncio.Task[None] | None = None
        self._refresh_now = asyncio.Event()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_at: float | None = None

    def start(self) -> None:
        """Begin to join."""
        self._perform(actions.MirrorKeys(complete=False))
        self._spawn(self._mirror.run())

    async def stop(self) -> None:
        """End at once, as a killed process does: the lease stays."""
        if self._wake is not None:
            self._wake.cancel()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(tuple(self._tasks))
        if self._links is not None and self._listener is not None:
            self._links.close()
            self._listener.close()
        await self._store.close()

    def feed(self, event: agent_events.Event) -> None:
        """Take in an event, and do what the core says."""
        self._events.append(event)
        if self._busy:
            return
        self._busy = True
        try:
            while self._events:
                for action in self.core.handle(self._events.popleft(), boottime()):
                    self._perform(action)
        finally:
            self._busy = False
        self._plan_wake()

    def apply(self) -> None:
        """Read and apply what was put off; `apply_s` is the processor time that it took."""
        self.hold = False
        if self._dirty:
            began = time.thread_time()
            self._look()
            self.apply_s = time.thread_time() - began

    @property
    def leads(self) -> bool:
        """Whether it leads."""
        return self.core.facts.leads

    def links_to(self, node: str) -> int | None:
        """The create revision of a node to which this one has a link, None if it has none.

        The leader has one to every member, and those that watch it have one to the leader.
        """
        view = self.core.facts.view
        if self.leads:
            return view.members[node].create_revision
        if view.leader is None or view.leader.value.node != node or not watches_leader(self.core.facts):
            return None
        return view.leader.value.created or view.leader.create_revision

    def _plan_wake(self) -> None:
        at = self.core.wake_at
        if at == self._wake_at:
            return
        self._wake_at = at
        if self._wake is not None:
            self._wake.cancel()
        if at is not None:
            self._wake = asyncio.get_running_loop().call_later(max(at - boottime(), 0.0), self._tick)

    def _tick(self) -> None:
        self._wake_at = None
        self.feed(agent_events.Tick())

    def _mirrored(self, mirror: Mirror) -> None:
        if mirror.listed:
            self.pictured.set()
        entry = mirror.entries.get(self.crowd.keys.generation)
        self._dirty = True
        if entry is not None and entry.mod_revision > self.has:
            self.has, self.document_bytes = entry.mod_revision, len(entry.value)
            self.hold = self.crowd.holding and not self.leads
            self.crowd.reached("bytes", self)
        if not self.hold:
            self._look()

    def _look(self) -> None:
        if self._mirror.listed:
            self._dirty = False
            mirror = self._mirror
            view = self._reader.read(mirror.entries, mirror.revision, complete=self._complete)
            if self._links is not None:
                self._links.learn(view)
            self.feed(agent_events.ViewChanged(view, mirror.listings))

    def _note_outage(self, error: StoreError | None) -> None:
        if error is not None:
            self.crowd.fail(error)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.crowd.fail(error)

    def _perform(self, action: actions.Action) -> None:
        if self._links is not None and isinstance(action, Asked):
            self._links.perform(action)
        match action:
            case actions.NoteSilence():
                self.crowd.silences[action.step] += 1
            case actions.SendTransaction() if self.crowd.gathers(action.transaction.kind):
                self._spawn(self._send_together(action.transaction))
            case actions.SendTransaction():
                self._spawn(self._send(action.transaction))
            case actions.MirrorKeys():
                self._complete, keys = action.complete, self.crowd.keys
                self._mirror.follow(keys.everything if action.complete else keys.followed(self.node))
                if not self._mirror.listed:
                    self.pictured.clear()
            case actions.Relist():
                self._mirror.refresh_soon()
            case actions.FindMember():
                self._spawn(self._find_member())
            case actions.OpenSession():
                self._spawn(self._open_session(action.ttl_s))
            case actions.RefreshLease():
                self._refresh_now.set()
            case actions.RevokeLease():
                self._spawn(self._store.revoke(action.lease))
            case actions.StartWorkers():
                self.runs = action.generation.g
                self.crowd.reached("run", self)
            case actions.StopWorkers():
                self._events.append(agent_events.WorkersGone(action.g, -1))
            case actions.ExitAgent():
                self.crowd.fail(RuntimeError(f"{self.node} ended: {self.core.facts.registration.refusal}"))

    async def _send_together(self, transaction: Transaction) -> None:
        await self._store.standing.wait()
        self.crowd.reached("ready", self)
        await self.crowd.begin.wait()
        await self._send(transaction)

    async def _send(self, transaction: Transaction) -> None:
        try:
            result = await self._store.txn(transaction.compares, transaction.then)
        except (OutcomeUnknown, StoreUnavailable):
            self.feed(agent_events.TransactionAnswered(transaction, None))
        else:
            self.crowd.sent[transaction.kind, result.succeeded] += 1
            self.feed(agent_events.TransactionAnswered(transaction, result.succeeded, result.revision))

    async def _find_member(self) -> None:
        listing = await self._store.list(KeyRange.prefix(self.crowd.keys.members), keys_only=True, limit=1)
        self.crowd.sent["find member", True] += 1
        self.feed(agent_events.MemberFound(bool(listing.entries)))

    async def _open_session(self, ttl_s: float) -> None:
        sent_at = boottime()
        lease = await self._store.grant(ttl_s)
        self.lease = lease.id
        self.feed(agent_events.LeaseGranted(lease.id, lease.ttl_s, sent_at))
        kept_alive = session.keep_alive(
            self._store,
            lease,
            self.crowd.keys.member(self.node),
            clock=boottime,
            on_event=self._session_event,
            refresh_now=self._refresh_now,
            random_source=self._random,
        )
        self._session = self._spawn(kept_alive)

    def _session_event(self, event: session.SessionEvent) -> None:
        assert self.lease is not None
        match event:
            case session.KeepaliveSucceeded():
                self.feed(agent_events.LeaseRefreshed(self.lease, event.ttl_s, event.sent_at, event.key_revision))
            case session.LeaseLost() | session.KeepaliveFailed():
                self.crowd.fail(RuntimeError(f"{self.node}: {event}"))


class Crowd:
    """The agents of one job."""

    def __init__(
        self,
        endpoint: str,
        job: str,
        count: int,
        slots: int,
        numbers: Sequence[int] | None = None,
        links: Links | None = None,
    ) -> None:
        """Make `count` agents that wait for each other, or only those with these numbers."""
        self.endpoint = endpoint
        self.links = links
        self.agent_log = AgentLog("crowd", Console(os.open(os.devnull, os.O_WRONLY)))
        self.silences: Counter[str] = Counter()
        """How often an agent was suspected, cleared, evicted."""
        self.keys = JobKeys(job)
        self.count = count
        self.holding = True
        self.begin = asyncio.Event()
        self.sent: Counter[tuple[str, bool]] = Counter()
        self._missing: dict[str, set[Agent]] = {}
        self._waiting: asyncio.Future[float] | None = None
        self._failed: BaseException | None = None
        self._awaited = ""
        self.agents = [Agent(self, number, slots) for number in (range(count) if numbers is None else numbers)]

    def fail(self, error: BaseException) -> None:
        """End what is waited for."""
        self._failed = self._failed or error
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)

    @property
    def failure(self) -> str:
        """What went wrong first, "" if nothing did."""
        return "" if self._failed is None else repr(self._failed)

    def gathers(self, kind: str) -> bool:
        """Whether a transaction waits until every agent is ready to register and `begin` is set."""
        return kind == "register" and not self.begin.is_set()

    def expect(self, *what: str) -> None:
        """From now on every agent is missing until it has `reached` each of these."""
        for one in what:
            self._missing[one] = set(self.agents)

    def reached(self, what: str, agent: Agent) -> None:
        """An agent is ready to register, has the bytes of a generation, or runs its workers."""
        missing = self._missing[what]
        missing.discard(agent)
        if not missing and self._waiting is not None and self._awaited == what and not self._waiting.done():
            self._waiting.set_result(time.monotonic())

    async def wait(self, what: str) -> float:
        """Wait until nobody is missing any more; the time at which that was so."""
        if self._failed is not None:
            raise self._failed
        if not self._missing[what]:
            return time.monotonic()
        self._awaited = what
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await self._waiting
        except TimeoutError:
            missing = [
                f"{one.node}: {one.core.phase}, {one.core.facts.succession.decision}" for one in self._missing[what]
            ]
            raise TimeoutError(f"{what} of {len(missing)} agents: {missing[:5]}") from None

    async def stop(self) -> None:
        """End all agents."""
        await asyncio.gather(*(agent.stop() for agent in self.agents))
