"""Connects the links of an agent to its core: actions in, events out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from typing import NamedTuple

from elastic.core.agent import actions
from elastic.core.agent import events as agent_events
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Reason
from elastic.core.text import counted_down
from elastic.core.view import StoreView
from launcher.logs.logger import AgentLog
from launcher.peers.doubt import LinkDoubt
from launcher.peers.links import PeerLinks
from launcher.peers.listener import PeerListener
from launcher.peers.silence_detector import NEVER
from launcher.system.clock import boottime
from launcher.wire.link_messages import WaitTold

Asked = (
    actions.WatchLinks
    | actions.DoubtLinks
    | actions.SetHeartbeats
    | actions.TryPeer
    | actions.AskVouch
    | actions.CloseInbound
)
"""The actions that this module performs."""


class HeardWait(NamedTuple):
    """The wait that `node` has sent this node; `ends` are the ends of the times in `text`, on this node's clock.

    `code` is None if this version does not know the reason.
    """

    node: str
    code: Reason | None
    text: str
    ends: tuple[float, ...]

    @classmethod
    def of(cls, node: str, told: WaitTold, now: float) -> HeardWait:
        """Convert a message that arrives at `now`."""
        return cls(node, Reason.__members__.get(told.code), told.text, tuple(now + left for left in told.left))

    def reason_at(self, now: float) -> str:
        """Return the text with the remaining times at `now`."""
        return counted_down(self.text, [end - now for end in self.ends])


class LinkAdapter:
    """Performs the core's link actions, and turns messages from links into events for the core."""

    def __init__(
        self,
        hello: PeerListener,
        job_id: str,
        facts: AgentState,
        put: Callable[[agent_events.Event], None],
        agent_log: AgentLog,
        *,
        find: Callable[[str], Awaitable[actions.LinkTarget | None]],
        stepped_at: Callable[[], float] = lambda: NEVER,
        on_heard_wait: Callable[[], None] = lambda: None,
        on_look: Callable[[socket.socket], None] | None = None,
    ) -> None:
        """Accept links from now on; `put` takes the events for the core.

        `find(node)` reads the address at which another node listens. `stepped_at()` returns when workers of this node
        last reported a step. `on_heard_wait` is called whenever the leader has sent this node what it waits for.
        `on_look` takes over the connection of every authenticated status client.
        """
        self._facts = facts
        self._find = find
        self._stepped_at = stepped_at
        self._links = PeerLinks(
            job_id,
            facts.me.node,
            on_change=lambda nodes: self._doubt.links_changed(nodes),
            on_proof=lambda *proof: put(agent_events.ProcessProvenDead(*proof)),
            on_answered=lambda number, nodes: self._doubt.answered(number, nodes),
            grants=lambda node, g: grantable_seconds(facts, node, g, boottime()),
            on_vouched=lambda node, g, asked_at, seconds: put(agent_events.Vouched(node, g, asked_at, seconds)),
            on_dialled=lambda nodes: put(agent_events.InboundLinksChanged(nodes)),
            on_silence=lambda *silence: put(agent_events.SilenceChanged(*silence)),
            on_tried=put,
            heard_otherwise_at=self._world_stepped_at,
            complain=agent_log.warning,
            on_look=on_look,
            on_wait=self._hear_wait,
        )
        self._doubt = LinkDoubt(
            self._links.ask,
            lambda nodes, heard_at: put(agent_events.LinksChanged(nodes, heard_at)),
            asyncio.get_running_loop().call_later,
            boottime,
        )
        self._heard: HeardWait | None = None
        self._on_heard_wait = on_heard_wait
        hello.hand_to(self._links.accept)

    def tell_wait(self, nodes: Collection[str], told: WaitTold) -> None:
        """Send these nodes, as the leader, what they wait for."""
        self._links.tell(nodes, told)

    def heard_wait(self) -> HeardWait | None:
        """Return what the leader has sent this node that it waits for, None if that no longer applies.

        It applies while the link that carried it is up: a node that is no longer the leader closes its links.
        """
        if self._heard is not None and self._heard.node not in self._links.watchers:
            self._heard = None
        return self._heard

    @property
    def secret(self) -> str:
        """The job's secret, "" while it is not known."""
        return self._links.secret_text

    def learn(self, view: StoreView) -> None:
        """Take the job's secret from the store. A secret that was deleted stays valid."""
        if view.secret is not None:
            self._links.secret(view.secret.value)

    def held_up_events(self) -> tuple[agent_events.Event, ...]:
        """Return what the core must know before its next event, if this process was suspended."""
        found = self._links.heartbeats.take_hold_up()
        return (agent_events.SilenceChanged(*found),) if found is not None else ()

    def perform(self, action: Asked) -> None:
        """Perform an action of the core."""
        match action:
            case actions.WatchLinks(targets=targets):
                self._links.watch(targets)
            case actions.DoubtLinks(every_s=every_s):
                self._doubt.every(every_s)
            case actions.SetHeartbeats(every_s=every_s, timeout_s=timeout_s):
                self._links.heartbeats.set(every_s, timeout_s)
            case actions.TryPeer():
                self._links.try_peer(action, self._find)
            case actions.AskVouch(g=g):
                self._links.ask_vouch(g)
            case actions.CloseInbound(nodes=nodes):
                self._links.close_inbound(nodes)

    def linked(self) -> frozenset[str]:
        """Return the nodes that are linked to this one, in either direction."""
        return self._facts.links.up.union(self._links.watchers)

    def close(self) -> None:
        """Close all links with a goodbye, so that no node takes this for a death."""
        self._links.close()

    def _world_stepped_at(self, node: str) -> float:
        """Return when this node's workers last made a step together with those of another node."""
        generation = self._facts.generation
        if generation is None or generation.g != self._facts.workers.g or generation.index(node) is None:
            return NEVER
        return self._stepped_at() if generation.one_world else NEVER

    def _hear_wait(self, node: str, told: WaitTold) -> None:
        leader = self._facts.view.leader
        if leader is None or leader.value.node == node:  # Only the leader sends waits.
            self._heard = HeardWait.of(node, told, boottime())
            self._on_heard_wait()
