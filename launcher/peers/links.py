"""Links: an agent detects within milliseconds that another agent's process is dead, and queries live agents.

The *watcher* dials the *watched*: the leader dials every member, and some agents dial the leader. The addresses come
from the store, with the registration that a proof is about. Usage:

    links = PeerLinks(job_id, node, on_change=…, on_proof=…, …) # in a running loop; every callback comes from it
    hello.hand_to(links.accept)                     # the agent's listener, from when the agent may be watched
    links.secret(text)                              # whenever the store is read; without one there are no links
    links.watch({node: LinkTarget(host, link, create_revision), …})     # whenever that may have changed; cheap if not
    links.ask(number)                               # which nodes are alive? `on_answered` within ASK_LIMIT_S
    links.ask_vouch(g)                              # asks the watchers of this node; `on_vouched` for each grant
    links.tell(nodes, message)                      # sends to those of the nodes that are linked, without an answer
    links.heartbeats.set(every_s, timeout_s)            # heartbeats to the watched nodes; which are silent
    links.try_peer(action, find)                        # does a silent node answer a new connection?
    links.close_inbound(nodes)                      # these nodes have dialled this one, and do not belong to the job
    links.close()                                   # with a goodbye, which proves no death. Before `hello.close()`

The callbacks put events into the agent's queue and do no other work; only `grants` returns a value:

    on_change(nodes)              the links that are up now, for `LinkDoubt`
    on_proof(node, rev, host, at) ProcessProvenDead(node, rev, host, at), after the `on_change` that it is down; its
                                  link closed at `at`, on `clock`
    on_answered(number, nodes)    the nodes that have answered; proofs that belong to the query come before
    grants(node, g) -> seconds    grantable_seconds(facts, node, g, now), for the lease as it is now
    on_vouched(node, g, at, s)    Vouched(node, g, at, s): `node` grants `s` seconds from `at`, on `clock`
    on_silence(peers, at, heard)  SilenceChanged(peers, at, heard)
    on_tried(answer)              PeerTried, the answer of `try_peer`
    on_dialled(nodes)             InboundLinksChanged(nodes): the nodes that have a link to this one
    complain(text)                one log message, once for each node

An idle link costs a descriptor, and a heartbeat in each direction at each interval if this node is the leader; TCP
keep-alive also detects a host that is down. A node that watches `n` members needs `n` descriptors; if none are left,
it makes no link, and retries.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from elastic.core.agent.actions import LinkTarget, TryPeer
from elastic.core.agent.events import PeerTried
from elastic.core.agent.state import SilentPeer
from launcher.net.endpoints import join_host_port
from launcher.peers.heartbeats import Heartbeats
from launcher.peers.inbound_links import InboundLinks
from launcher.peers.peer_link import Asker, PeerLink
from launcher.peers.silence_detector import NEVER
from launcher.peers.trial import reaches, try_peer
from launcher.system.clock import boottime
from launcher.wire import link_messages
from launcher.wire.link_messages import (
    Bye,
    Heartbeat,
    LinkError,
    LinkMessage,
    Ping,
    Pong,
    Tried,
    Try,
    Vouch,
    VouchGranted,
    WaitTold,
)

DIALS_MAX = 64
"""Members that are dialled at the same time; a reconnect does not wait for them."""
ASK_LIMIT_S = 0.1
"""Time limit for the answer of a node."""
GATHER_S = 0.01
"""New links are reported together, so that a thousand of them do not cause a thousand decisions."""
VOUCHES_MAX = 8
"""Vouch queries whose send times are remembered; an answer to an older one is too late anyway."""
TRIALS_MAX = 16
"""Trials for other nodes are refused while this number of trials runs, including this node's own."""
COMPLAINTS_MAX = 32
"""Nodes that a complaint names, each once: an unauthenticated client can invent any number of names."""


@dataclass(slots=True)
class _LivenessQuestion:
    """A query that asks which nodes are alive."""

    number: int
    waiting: set[str]
    timer: asyncio.TimerHandle
    answered: set[str] = field(default_factory=set)


class PeerLinks:
    """All links of one agent, in both directions."""

    def __init__(
        self,
        job_id: str,
        node: str,
        *,
        on_change: Callable[[frozenset[str]], None],
        on_proof: Callable[[str, int, str, float], None],
        on_answered: Callable[[int, frozenset[str]], None],
        grants: Callable[[str, int], float],
        on_vouched: Callable[[str, int, float, float], None],
        on_dialled: Callable[[tuple[str, ...]], None],
        on_silence: Callable[[Mapping[str, SilentPeer], float, frozenset[str]], None] = lambda *_: None,
        on_tried: Callable[[PeerTried], None] = lambda _: None,
        heard_otherwise_at: Callable[[str], float] = lambda _: NEVER,
        complain: Callable[[str], None],
        on_look: Callable[[socket.socket], None] | None = None,
        on_wait: Callable[[str, WaitTold], None] = lambda *_: None,
    ) -> None:
        """Take the callbacks; the module describes those without a sentence here.

        `on_look` takes over the connection of every authenticated status client. `on_wait` gets each message about what
        this node waits for, with its sender. `heard_otherwise_at`: as in
        `launcher.peers.silence_detector.SilenceDetector`.
        """
        self.job_id = job_id
        self.node = node
        self.on_look = on_look
        self.on_wait = on_wait
        self.secret_text = ""
        self._on_change = on_change
        self._on_proof = on_proof
        self._on_answered = on_answered
        self._grants = grants
        self._on_vouched = on_vouched
        self._on_dialled = on_dialled
        self._on_tried = on_tried
        self._complain = complain
        self._loop = asyncio.get_running_loop()
        self.turns = asyncio.Semaphore(DIALS_MAX)
        self._inbound = InboundLinks(self)
        self.heartbeats = Heartbeats(
            self.send_heartbeats, on_silence, heard_otherwise_at=heard_otherwise_at, clock=boottime
        )
        self._dialled: asyncio.Handle | None = None
        self._targets: dict[str, LinkTarget] = {}
        self._watched: dict[str, PeerLink] = {}
        self._told: frozenset[str] = frozenset()
        self._telling: asyncio.Handle | None = None
        self._question: _LivenessQuestion | None = None
        self._vouches: dict[int, tuple[int, float]] = {}
        self._vouched = 0
        self._tried: dict[tuple[int, str], asyncio.Future[bool]] = {}
        """Requests to try a node, by their number and the node that gets the request."""
        self._trials: set[asyncio.Task[None]] = set()
        self._complained: set[str] = set()
        self._unreached: set[str] = set()
        self._closed = False

    @property
    def watchers(self) -> frozenset[str]:
        """The nodes that have a link to this one."""
        return frozenset(self._inbound.links)

    def accept(self, connected: socket.socket) -> None:
        """Take a connection from the listener."""
        if self._closed:
            connected.close()
        else:
            self._inbound.accept(connected)

    def secret(self, text: str | None) -> None:
        """Set the job's secret; a new secret closes all links and makes new ones."""
        if self._closed or (text or "") == self.secret_text:
            return
        self.secret_text = text or ""
        self._inbound.close()
        targets, self._targets = self._targets, {}
        self._release([*self._watched])
        self.watch(targets)

    def watch(self, targets: Mapping[str, LinkTarget]) -> None:
        """Watch exactly these members, except those that do not listen (port 0)."""
        if self._closed or targets == self._targets:
            return
        self._targets = dict(targets)
        if not self.secret_text:
            return
        self._release(
            [
                name
                for name, link in self._watched.items()
                if name not in targets or targets[name][:2] != link.target[:2]
            ]
        )
        for name, target in self._targets.items():
            if name in self._watched:
                self._watched[name].target = target  # It may be another registration of the same process.
            elif name != self.node and target.port:
                self._watched[name] = PeerLink(self, name, target)

    def ask(self, number: int) -> None:
        """Ask every watched and linked node whether it is alive; `on_answered` gets those that are, with `number`.

        Only one query may run at a time.
        """
        if self._closed:
            return
        waiting = {name for name, link in self._watched.items() if link.up or link.redialling}
        for name in waiting:
            self._watched[name].send(Ping(number))
        timer = self._loop.call_later(ASK_LIMIT_S if waiting else 0.0, self._answer)
        self._question = _LivenessQuestion(number, waiting, timer)

    def send_heartbeats(self, every_s: float, part: int, parts: int) -> int:
        """Send a heartbeat to this part of the watched and linked nodes; return their total number."""
        heard, unheard = Heartbeat(every_s), Heartbeat(every_s, unheard=True)
        for link in islice(self._watched.values(), part, None, parts):
            if link.up:
                link.send(unheard if self.heartbeats.is_silent(link.node) else heard)
                self.heartbeats.sent(link.node, link)
        return len(self._watched)

    def is_linked(self, node: str) -> bool:
        """Return whether this node has a link to another one."""
        return (link := self._watched.get(node)) is not None and link.up

    def round_trip_s(self, node: str) -> float:
        """Return the round-trip time that the kernel has measured on a link with a node; 0.0 without a link."""
        links = (self._watched.get(node), self._inbound.links.get(node))
        return max((link.round_trip_s for link in links if link is not None), default=0.0)

    async def ask_to_try(self, helper: str, question: Try) -> bool:
        """Ask a linked node whether it can connect to another one. It may never answer."""
        answer = self._tried[question.n, helper] = self._loop.create_future()
        try:
            self._watched[helper].send(question)
            reached: bool = await answer
            return reached
        finally:
            del self._tried[question.n, helper]

    def tell(self, nodes: Collection[str], message: WaitTold) -> None:
        """Send a message to those of the nodes that are watched and linked."""
        for name in nodes:
            if (link := self._watched.get(name)) is not None:
                link.send(message)

    def ask_vouch(self, g: int) -> None:
        """Ask every node that watches this one to extend the lease for generation `g`."""
        self._vouched += 1
        self._vouches[self._vouched] = (g, boottime())
        self._vouches.pop(self._vouched - VOUCHES_MAX, None)
        for one in tuple(self._inbound.links.values()):
            one.send(Vouch(self._vouched, g))

    def try_peer(self, action: TryPeer, find: Callable[[str], Awaitable[LinkTarget | None]]) -> None:
        """Find out whether a silent node answers; `find` returns its address. `on_tried` gets the result."""

        async def trial() -> None:
            if (answer := await try_peer(self, action, find, self.heartbeats.unheard)) is not None:
                self._on_tried(answer)

        self._begin(trial())

    def close_inbound(self, nodes: Collection[str]) -> None:
        """Close the links that these nodes have to this one. If they connect again, their links are new."""
        for node in nodes:
            if (one := self._inbound.links.get(node)) is not None:
                one.close()

    def close(self) -> None:
        """Send a goodbye and close everything. No callback is called afterwards."""
        self._closed = True
        self.heartbeats.close()
        for trial in self._trials:
            trial.cancel()
        if self._dialled is not None:
            self._dialled.cancel()
        self._inbound.close()
        for link in self._watched.values():
            link.send(Bye())
            link.release()
        if self._question is not None:
            self._question.timer.cancel()
        if self._telling is not None:
            self._telling.cancel()
        self._watched, self._question = {}, None

    # --- events of watched members --------------------------------------------------------------------------------

    def came_up(self, one: PeerLink) -> None:
        """Report the new link soon, and send it the query that is running."""
        self._inbound.cut.pop(one.node, None)
        self.heartbeats.heard(one.node)
        if self._telling is None:
            self._telling = self._loop.call_later(GATHER_S, self._emit)
        if self._question is not None and one.node in self._question.waiting:
            one.send(Ping(self._question.number))

    def went_down(self, one: PeerLink, *, in_order: bool = False) -> None:
        """Report the closed link in this iteration of the loop. A node whose link is lost stays silent until heard."""
        one.closed_at = boottime()
        if in_order:
            self.heartbeats.link_ended(one.node, one)
        if self._telling is not None:
            self._telling.cancel()
        self._telling = self._loop.call_soon(self._emit)

    def was_cut(self, one: PeerLink) -> bool:
        """Return whether the member had a link to this node that was closed without a goodbye."""
        return one.node in self._inbound.cut

    def is_proven_gone(self, one: PeerLink) -> None:
        """Report the death at once."""
        self._inbound.cut.pop(one.node, None)
        self._emit()
        self._on_proof(one.node, one.target.create_revision, one.target.host, one.closed_at)

    def is_decided(self, one: PeerLink) -> None:
        """Wait for no further answer of this member, and end the query if no other answer is expected."""
        if self._question is not None and one.node in self._question.waiting:
            self._question.waiting.remove(one.node)
            if not self._question.waiting:
                self._answer()

    def heard(self, link: PeerLink, message: LinkMessage) -> None:
        """Process a heartbeat or an answer, or answer a vouch query."""
        if isinstance(message, Heartbeat):
            self.heartbeats.beat(link.node, link, message.every_s)
            return
        self.heartbeats.heard(link.node)
        match message:
            case Tried():
                answer = self._tried.get((message.n, link.node))
                if answer is not None and not answer.done():
                    answer.set_result(message.reached)
            case Pong():
                asked = self._question
                if asked is not None and asked.number == message.n and link.node in asked.waiting:
                    asked.answered.add(link.node)
                    self.is_decided(link)
            case Vouch():
                seconds = min(self._grants(link.node, message.g), link_messages.GRANT_MAX_S)
                link.send(VouchGranted(message.n, message.g, max(seconds, 0.0)))
            case _:
                raise LinkError("unexpected message")

    def complain(self, node: str, text: str) -> None:
        """Log a complaint, once for each node."""
        if node not in self._complained and len(self._complained) < COMPLAINTS_MAX:
            self._complained.add(node)
            self._complain(text)

    def unreached(self, one: PeerLink, why: str) -> None:
        """Log, once for each node, that it joins without a link."""
        if one.node in self._complained | self._unreached or len(self._unreached) >= COMPLAINTS_MAX:
            return
        self._unreached.add(one.node)
        where = join_host_port(one.target.host, one.target.port)
        self._complain(
            f"{one.node}: no connection to its agent at {where} ({why}); it has exited or a firewall is in the way; "
            "its failure would be detected only when its lease expires"
        )

    # --- events of nodes that watch this one ----------------------------------------------------------------------

    def granted(self, node: str, message: VouchGranted) -> None:
        """Process the vouch of a node, if it answers a query of this node."""
        g, sent_at = self._vouches.get(message.n, (None, 0.0))
        if g == message.g and message.seconds > 0.0:
            self._on_vouched(node, message.g, sent_at, message.seconds)

    def beat(self, node: str, link: object, message: Heartbeat) -> None:
        """Process a heartbeat of the leader. A former leader may still send some."""
        if node in self._watched:
            self.heartbeats.beat(node, link, message.every_s)

    def heard_from(self, node: str) -> None:
        """Record a message of a node."""
        self.heartbeats.heard(node)

    def inbound_ended(self, node: str, link: object) -> None:
        """Expect no more heartbeats over this link."""
        self.heartbeats.link_ended(node, link)

    def try_for(self, asker: Asker, message: Try) -> None:
        """Dial a silent node for another one, and answer whether that succeeded."""
        if self._closed or len(self._trials) >= TRIALS_MAX:
            return

        async def trial() -> None:
            reached = await reaches(
                self.job_id, self.secret_text, self.node, message.node, message.host, message.port, message.limit_s
            )
            if reached is not None:
                asker.send(Tried(message.n, reached))

        self._begin(trial())

    def links_changed(self) -> None:
        """Report soon which nodes have a link to this one; frequent changes are reported together."""
        if self._dialled is None and not self._closed:
            self._dialled = self._loop.call_later(GATHER_S, self._tell_dialled)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _begin(self, trial: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(trial, name="trial of a silent node")
        self._trials.add(task)
        task.add_done_callback(self._trials.discard)

    def _tell_dialled(self) -> None:
        self._dialled = None
        self._on_dialled(tuple(self._inbound.links))

    def _release(self, names: list[str]) -> None:
        for link in [self._watched.pop(name) for name in names]:
            was_up = link.up
            link.send(Bye())  # Otherwise the member would suspect that this process is dead.
            link.release()
            if was_up:
                self.went_down(link)
            self.heartbeats.unwatched(link.node)
            self.is_decided(link)

    def _answer(self) -> None:
        question, self._question = self._question, None
        assert question is not None
        question.timer.cancel()
        self._emit()
        self._on_answered(question.number, frozenset(question.answered))

    def _emit(self) -> None:
        if self._telling is None:
            return  # No link has come up or gone down.
        self._telling.cancel()
        self._telling = None
        nodes = frozenset(name for name, link in self._watched.items() if link.up)
        if nodes != self._told:
            self._told = nodes
            self._on_change(nodes)
