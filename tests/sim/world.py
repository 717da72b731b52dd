"""A whole job on a virtual clock: agents' cores, their stores' mirrors, sessions, nurseries, workers and links.

Everything that an agent's shell does is modelled here as small as it can be; what is decided is decided by the real
core (`elastic.core.agent.core`) over the real in-memory store. One seeded source of randomness, one queue of events:
the same seed gives the same run.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import msgspec

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import (
    Action,
    AskVouch,
    CloseInbound,
    CloseSession,
    DoubtLinks,
    ExitAgent,
    ExtendRunDeadline,
    FindMember,
    LookUpNode,
    MirrorKeys,
    NoteSilence,
    OpenSession,
    RefreshLease,
    Relist,
    RevokeLease,
    SendTransaction,
    SetHeartbeats,
    StartWorkers,
    StopWorkers,
    TryPeer,
    WatchLinks,
)
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import (
    DrainRequested,
    Event,
    InboundLinksChanged,
    LinksChanged,
    NodeLookedUp,
    NodeProvenDead,
    ProcessProvenDead,
    SilenceChanged,
    Tick,
    Vouched,
)
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import AgentState, Timeouts
from elastic.core.kv import KeyRange, Put
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobSpec, Member, Np
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from elastic.store.memory_core import MemoryCore
from launcher.peers.doubt import LinkDoubt
from tests.sim.clockwork import LATENCY_S
from tests.sim.heartbeats import Heartbeats
from tests.sim.nodes import DEADLINE_S, KEYS, KILL_S, NEVER, Node
from tests.sim.nurseries import COLD_S

ANSWER_S = 0.1
"""Who has not answered over a link by then is not waited for."""
DAY_S = 86_400.0
KERNEL_S = 6.0
"""So long the kernel believes in a connection whose other end is gone without a word."""
EVENTS_MAX = 150_000
"""A run has a few thousand events, the longest that was seen a third of this; more would be a storm."""
STOP_LOOKS = 16
"""After so many events it is asked again whether the run is over."""
FOLLOWS_MAX = 6
"""A node begins to lead, and leads no more; a registration begins it anew."""


class World(Heartbeats):
    """The nodes with their cores, the links between them, and what a person can do to them."""

    def run_to(self, until: float, *, stop: Callable[[], bool] = lambda: False) -> None:
        """Run events up to a moment, or until `stop` says so."""
        queue = self._queue
        while queue and queue[0][0] <= until:
            if self.steps % STOP_LOOKS == 0:
                if stop():
                    return
                if self.steps > EVENTS_MAX * max(1, self.size // 40):
                    self.fail("effort", f"{self.steps} events, and no end")
            self.now, _, call = heapq.heappop(queue)
            if self.now >= self._expiry_at:
                self._expire()
            call()
            self.steps += 1
            for look in self._looks:
                look(self)
        if not stop():
            self.now = until

    def start_node(
        self,
        host: str,
        *,
        slots: int = 0,
        join_timeout_s: float | None = None,
        warm: bool = False,
        rerun: bool = False,
    ) -> Node:
        """Start an agent on a host; each start is another node.

        It registers when its nursery is `warm`: at once, or after its imports. Where the job has a list of hosts, one
        that it does not name is the next one of the list.
        """
        if self.spec.ips and host not in self.spec.ips:
            host = self.spec.ips[len(self.nodes) % len(self.spec.ips)]
        name = f"{host}-{self.random.getrandbits(24):06x}"
        number = len(self.nodes)
        slots = slots or self.spec.slots
        member = self.member_of(host, number, slots)
        spec = self.spec if slots == self.spec.slots else msgspec.structs.replace(self.spec, slots=slots)
        me = NodeIdentity(name, member, spec, incarnation=f"i{self.random.getrandbits(32):08x}", rerun=rerun)
        offset = self.random.uniform(0, 1000)
        limits = Timeouts(
            stop_timeout_s=self.random.choice([1.0, 4.0]), failure_stop_timeout_s=1.0, join_timeout_s=join_timeout_s
        )
        facts = AgentState(me, KEYS, limits, DecisionPolicy(node=name, kill_s=KILL_S), now=offset + self.now)
        facts.leaving.idle_since = facts.entered_at = facts.now
        node = Node(name, host, AgentCore(facts), self.links, offset=offset)
        node.doubt = LinkDoubt(
            lambda number: self._ask_links(node, number),
            lambda nodes, heard_at: self._later(node, 0.0, LinksChanged(nodes, heard_at)),
            lambda delay, call: self.after(delay / node.rate, lambda: self._when_it_acts(node, call)),
            lambda: self.local(node),
        )
        facts.registration.prepared = node.warm = False
        quick = warm or self.random.random() < 0.5
        self.after(self.random.uniform(0.01, 0.03 if quick else COLD_S), lambda: self.warmed(node))
        self.nodes[name] = node
        self.log(f"{name} starts")
        self._tick_session(node)
        self._tick_links(node)
        self._tick_relist(node)
        self._perform(node, [MirrorKeys(False)])
        self._plan_wake(node)
        return node

    def member_of(self, host: str, number: int, slots: int) -> Member:
        """What a node registers."""
        link = 9000 + number if self.links else 0
        return Member(host=host, slots=slots, masters=(7000, 7001, 7002), ports=(8000 + number,) * slots, link=link)

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
        if node.detector.notice_held_up(self.local(node)):
            self.feed(node, SilenceChanged(node.detector.silent, node.detector.held_up_at))
        core = node.core
        phase = core.phase
        actions = core.handle(event, self.local(node))
        for row in core.taken:
            self.counts[f"row {row}"] += 1
            self.log(f"{node.name}: {row}")
        if core.facts.leads:  # What the leader has granted itself outlasts its lead.
            node.granted_until = max(node.granted_until, core.facts.workers.run_deadline.vouched_until)
        decision = core.facts.succession.decision
        if decision is not None and decision is not node.last_decision:
            if node.last_decision is None or node.last_decision.code is not decision.code:
                self.counts[f"reason {decision.code.name}"] += 1
                self.log(f"{node.name} decides {decision.code.name}: {decision.reason}")
            node.last_decision = decision
        if core.taken and phase is not core.phase:
            self.log(f"{node.name}: {phase} -> {core.phase}")
        if actions:
            self._perform(node, actions)
        self._plan_wake(node)

    def thaw(self, node: Node) -> None:
        """Let a frozen node or agent go on: the nursery looks at the clock first, then events are read."""
        node.frozen = node.agent_frozen = False
        node.thawed_at = self.now
        self.note_thawed(node)
        self._deadline(node)
        waiting, node.inbox = node.inbox, []
        for event in waiting:
            self.feed(node, event)
        self.feed(node, Tick())

    def kill_agent(self, node: Node) -> None:
        """SIGKILL to the agent: its nursery sees the socket close and kills the workers; peers see the link close."""
        node.alive = False
        self.log(f"{node.name}: agent killed")
        if node.successor_ready_at is not None:  # It ends a moment after the nursery.
            node.lock_until = self.now + KILL_S
        if node.workers is not None:
            workers = node.workers
            self.after(self.random.uniform(0.01, KILL_S), lambda: self._vanish(node, workers))
        if node.links:
            self._prove_gone(node)

    def kill_node(self, node: Node) -> None:
        """Power off: agent, nursery and workers are gone in one moment."""
        node.alive = False
        node.silent_at = self.now
        self.log(f"{node.name}: power off")
        if node.workers is not None:
            self._vanish(node, node.workers)

    def _prove_gone(self, dead: Node) -> None:
        """Everybody who can be reached learns over its link that a process is gone."""
        created = dead.core.facts.registration.create_revision
        if not created:
            return
        event = ProcessProvenDead(dead.name, created, dead.host)
        for node in self.nodes.values():
            if (
                node.alive
                and dead.name in node.linked
                and not node.cut
                and not dead.cut
                and not self.between(node, dead)
            ):
                self._notice(node, self.random.uniform(0.001, 0.05), event)

    def _notice(self, node: Node, delay: float, event: ProcessProvenDead) -> None:
        """The kernel tells of a link that closed a moment later; until then it counts as one that is up."""

        def noticed() -> None:
            self._link(node)
            self.feed(node, event)

        self.after(delay, noticed)

    def prove_falsely(self, node: Node) -> None:
        """Links say to everybody else of a healthy node that its process is gone."""
        created = node.core.facts.registration.create_revision
        if not created:
            return
        self.log(f"{node.name}: falsely proven dead")
        for other in tuple(self.nodes.values()):
            if other.alive and other.exit_code is None and other is not node:
                self.feed(other, ProcessProvenDead(node.name, created, node.host))

    def scale_to(self, high: int, *, low: int = 0) -> None:
        """An operator wants another number of nodes."""
        found = self.store.list(KeyRange.key(KEYS.spec)).entries
        if found and not self.verdict_there():
            try:
                spec: JobSpec = decode(KEYS, KEYS.spec, found[0].value)
            except DocumentError:
                return
            np = Np(low=low or min(spec.np.low, high), high=high, first=max(low, min(spec.np.first, high)))
            self.log(f"scaled to {np}")
            self.store.txn((), (Put(KEYS.spec, encode(msgspec.structs.replace(spec, np=np))),))
            self.deliver()

    def prove_dead_to(self, node: Node, dead: Node) -> None:
        """The machine itself shows a newcomer that nothing is left of an older node there."""
        if not dead.alive and dead.workers is None and self.now >= dead.lock_until:
            self._later(node, 0.01, NodeProvenDead(dead.name))

    def _plan_wake(self, node: Node) -> None:
        """See to it that the agent is called when it wants to be; a call that comes too early plans the next."""
        at = node.core.wake_at
        if at is not None:
            due = self.now + max((at - self.local(node)) / node.rate, 0.0) + 1e-6
            if due < node.wake_planned:
                node.wake_planned = due
                self.after(due - self.now, lambda: self._wake(node, due))

    def _wake(self, node: Node, due: float) -> None:
        if node.wake_planned != due:
            return
        node.wake_planned = NEVER
        at = node.core.wake_at
        if not node.hears or at is None:
            return  # It is called when it goes on.
        if self.local(node) >= at:
            self.feed(node, Tick())
        else:
            self._plan_wake(node)

    def _perform(self, node: Node, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case SendTransaction():
                    self._send(node, action.transaction)
                case MirrorKeys():
                    self._count_follow(node)
                    node.complete, node.listed = action.complete, False
                    node.ranges = KEYS.everything if action.complete else KEYS.followed(node.name)
                    self.relist(node)
                case Relist():
                    self.relist(node)
                case OpenSession():
                    self._grant(node, action.ttl_s)
                case RevokeLease() if self.revokes_lost:
                    self.log(f"{node.name}: its request to end a lease is lost")
                case CloseSession() | RevokeLease():
                    lease = action.lease
                    if isinstance(action, RevokeLease):
                        for observer in self.observers:
                            observer.after_revoke(self, node, lease)
                    if isinstance(action, CloseSession):
                        node.lease = None
                    self.ask(node, lambda lease=lease: self._revoke(lease), lambda: None)  # type: ignore[misc]
                case WatchLinks():
                    self.unwatch(node, node.targets.keys() - action.targets.keys())
                    node.targets = {name: target.create_revision for name, target in action.targets.items()}
                    dialable = {name for name, target in action.targets.items() if target.dialable}
                    self.after(2 * self.latency(), lambda dialable=dialable: self._dial(node, dialable))  # type: ignore[misc]
                case DoubtLinks():
                    node.doubt.every(action.every_s)
                case SetHeartbeats():
                    self._set_heartbeats(node, action)
                case TryPeer():
                    self._try_peer(node, action)
                case NoteSilence():
                    self._note_silence(node, action)
                case RefreshLease():
                    self._refresh(node)
                case AskVouch():
                    self._ask_vouch(node, action.g)
                case CloseInbound():
                    self._close_inbound(node, action.nodes)
                case LookUpNode():
                    self._look_up(node, action.node)
                case FindMember():
                    self._find_member(node)
                case StartWorkers():
                    self._start_workers(node, action)
                case StopWorkers():
                    self._stop_workers(node, action)
                case ExtendRunDeadline():
                    if self.now >= node.slow_until:  # Otherwise its nursery hears no more of it than it does itself.
                        node.run_until = action.t
                        self._plan_deadline(node)
                case ExitAgent():
                    node.exit_code = action.code
                    self.log(f"{node.name}: exit {action.code}")
                case _:
                    text = getattr(action, "text", "")
                    if text:
                        self.log(f"{node.name} says: {text}")

    def _count_follow(self, node: Node) -> None:
        """Promise 12: what an agent follows does not change again and again while the store stays as it is."""
        if node.follows_at != self.store.revision:
            node.follows_at, node.follows = self.store.revision, 0
        node.follows += 1
        if node.follows > FOLLOWS_MAX:
            self.fail("12", f"{node.name} changed {node.follows} times what it follows while nothing changed")

    def _tick_links(self, node: Node) -> None:
        """Links that broke are made again, and those to a machine that is gone are noticed in the end."""
        if not node.alive or node.exit_code is not None or not node.links:
            return
        self.after(0.5, lambda: self._tick_links(node))
        self._link(node)
        self._tell_dialled(node)

    def _dial(self, node: Node, dialable: set[str]) -> None:
        """Make links; where nobody listens any more and somebody did, that is a proof of death."""
        linked = node.linked
        self._link(node)
        for name in sorted(dialable & node.targets.keys() - linked):
            other = self.nodes[name]
            ended = not other.alive or other.exit_code is not None
            silent = min(other.silent_at, node.silent_at) <= self.now or node.cut or other.cut or other.unlinkable
            if ended and node.links and node.hears and not silent and not self.between(node, other):
                self.counts["nobody listened any more"] += 1
                self.feed(node, ProcessProvenDead(name, node.targets[name], other.host))

    def _link(self, node: Node) -> None:
        """Tell the core which links are up.

        The kernel of a frozen node keeps them, and its agent makes and takes no new ones. No link goes to another life.
        """
        if not node.alive or not node.links:
            return
        up = set()
        for name, created in node.targets.items():
            other = self.nodes[name]
            same = name in node.linked or other.core.facts.registration.create_revision in (created, 0)
            way = not node.cut and not other.cut and not self.between(node, other)
            there = other.alive and other.exit_code is None and way and not other.unlinkable
            slow_until = self.slow_links.get(frozenset((node.name, name)), 0.0)
            there &= name in node.linked or (node.hears and other.hears and self.now >= slow_until)
            silent_at = min(other.silent_at, node.silent_at)
            unnoticed = name in node.linked and silent_at <= self.now < silent_at + KERNEL_S
            if (there and same) or unnoticed:
                up.add(name)
        if up != node.linked:
            self.end_links(node, node.linked - up - node.targets.keys())
            self.links_came_up(node, up - node.linked)
            node.linked = frozenset(up)
            node.doubt.links_changed(node.linked)

    def _tell_dialled(self, node: Node) -> None:
        """Tell the core who has a link to it."""
        here = [
            other.name
            for other in self.nodes.values()
            if other.alive and other.exit_code is None and node.name in other.linked
        ]
        here += [one.name for one in self.strangers if node.name in one.links]
        known = [name for name in node.dialled if name in here]
        dialled = tuple(dict.fromkeys(known + here))
        if dialled != node.dialled:
            node.dialled = dialled
            self._later(node, 0.0, InboundLinksChanged(dialled))

    def _close_inbound(self, node: Node, names: tuple[str, ...]) -> None:
        """An agent closes links to it. A node that watches it makes a new one; strangers do not."""
        for one in self.strangers:
            if one.name in names and node.name in one.links:
                one.links.discard(node.name)
                self.counts["a stranger's link was closed"] += 1
        for name in names:
            other = self.nodes.get(name)
            if other is not None and node.name in other.linked:
                self.counts["a node's link was closed"] += 1
                generation = node.core.facts.generation
                if generation is not None and generation.index(name) is not None:
                    self.fail("links", f"{node.name} closed the link of {name}, a member of generation {generation.g}")
                other.linked -= {node.name}
                other.doubt.links_changed(other.linked)
                self.after(4 * self.aside.uniform(*LATENCY_S), lambda other=other: self._link(other))  # type: ignore[misc]
        node.dialled = tuple(name for name in node.dialled if name not in names)
        self._later(node, 0.0, InboundLinksChanged(node.dialled))

    def _look_up(self, node: Node, name: str) -> None:
        """Read whether a node is registered."""
        there = self.reachable(node) and self.store_up
        registered = bool(self.store.list(KeyRange.key(KEYS.member(name)), keys_only=True).entries) if there else None
        delay = 2 * self.aside.uniform(*LATENCY_S) if there else DEADLINE_S
        self._later(node, delay, NodeLookedUp(name, registered))

    def _ask_links(self, node: Node, number: int) -> None:
        """Who is there answers; the others are waited for."""
        up = node.linked
        heard = frozenset(
            name
            for name in up
            if self.nodes[name].hears
            and self.nodes[name].exit_code is None
            and not self.nodes[name].cut
            and not node.cut
            and not self.between(node, self.nodes[name])
        )
        delay = 2 * self.latency() if heard == up else ANSWER_S
        self.after(delay, lambda: self._when_it_acts(node, lambda: node.doubt.answered(number, heard)))

    def _ask_vouch(self, node: Node, g: int) -> None:
        """Everybody who watches the node hears that it does not reach the store, and may grant it time."""
        asked_at = self.local(node)
        for other in self.nodes.values():
            if not other.hears or node.name not in other.linked or node.cut or other.cut or self.between(node, other):
                continue
            granted = grantable_seconds(other.core.facts, node.name, g, self.local(other))
            if granted > 0:
                self.counts["a word was given"] += 1
                node.granted_until = max(node.granted_until, asked_at + granted)
                self._later(node, 2 * self.latency(), Vouched(other.name, g, asked_at, granted))
        for one in self.strangers:
            if node.name in one.links and one.answers > 0:
                self.counts["a stranger gave its word"] += 1
                one.answers -= 1
                generation = node.core.facts.generation
                if generation is not None and generation.index(one.name) is not None:  # Its name is all that counts.
                    node.granted_until = max(node.granted_until, asked_at + self.spec.lease_ttl_s)
                self._later(node, 2 * self.aside.uniform(*LATENCY_S), Vouched(one.name, g, asked_at, DAY_S))

    def drain(self, node: Node, deadline_s: float | None = None) -> None:
        """SIGTERM to an agent, or the word that its machine goes in so many seconds."""
        if node.drained_at is None and node.hears:
            node.drained_at = self.now
        if deadline_s is None:
            self.log(f"{node.name}: SIGTERM")
            self.feed(node, DrainRequested(143, "SIGTERM"))
        else:
            self.log(f"{node.name}: its machine goes in {deadline_s:.1f} s")
            if node.hears:
                node.goes_at = min(node.goes_at, self.now + deadline_s)
            self.feed(node, DrainRequested(4, "its machine goes", self.local(node) + deadline_s * node.rate))

    def replace_store(self) -> None:
        """The store comes back empty."""
        self.store = MemoryCore()
        self.store_number += 1
        for _ in range(100 * self.store_number):  # Lease ids are random in etcd: none of the old ones is valid here.
            self.store.revoke(self.store.grant(1.0, self.now).id)
        self.log("the store is empty")

    def astray_for(self, node: Node, seconds: float, then: Callable[[], None] = lambda: None) -> None:
        """A node does not reach the store for so long, and is heard by the others."""
        node.astray = True
        self.log(f"{node.name}: does not reach the store")

        def back() -> None:
            node.astray = False
            self.log(f"{node.name}: reaches the store again")
            self.relist(node)
            then()

        self.after(seconds, back)

    def away_for(
        self, seconds: float, then: Callable[[], None] = lambda: None, *, still: Callable[[], float] | None = None
    ) -> None:
        """The store is away for so long; then every lease counts anew.

        With `still` it stood still: leases that ended meanwhile are over, and each node connects again after a moment
        that this draws.
        """
        if not self.store_up:
            return
        self.store_up = False
        self.log(f"the store is away for {seconds:.1f} s")

        def back() -> None:
            self.store_up = True
            self.log("the store is back")
            if still is None:
                self.store.renew_all_leases(self.now)
            if still is not None:
                for node in self.nodes.values():
                    if node.alive and node.exit_code is None and not node.astray:
                        self.astray_for(node, still())
            for node in tuple(self.nodes.values()):
                self.relist(node)
            then()

        self.after(seconds, back)

    def finished(self) -> bool:
        """Whether every agent that lives has ended."""
        return all(not node.alive or node.exit_code is not None for node in self.nodes.values())

    def verdict_there(self) -> bool:
        """Whether the job has its verdict."""
        return bool(self.store.list(KeyRange.key(KEYS.verdict)).entries)
