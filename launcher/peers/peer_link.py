"""One member that is watched over a link: this node dials it, authenticates it, and detects its death.

    resting ──► queued ──► dialling ──► up ──► redialling ──► up            the same node answers: no proof
       ▲                      │         │          │
       └──────────────────────┴─────────┴──────────┴── connection refused, or another node: proof of its death

A proof needs a link to this very node that was up and closed, and a reconnect that is refused or that another process
greets; `elastic.core.agent.links.deaths` has all conditions. A network partition, a silent host, a suspended process,
and a process that closes with a goodbye prove nothing.
"""

from __future__ import annotations

import asyncio
import errno
import os
import random
import socket
from collections.abc import Callable
from enum import Enum, auto
from typing import Protocol

from elastic._net import resolved
from elastic.auth import handshake
from elastic.core.agent.actions import LinkTarget
from elastic.core.membership.memory import LINK_PATIENCE_S
from launcher.net.endpoints import as_ip
from launcher.net.line_socket import CloseReason, LineSocket, connect
from launcher.wire import link_messages
from launcher.wire.link_messages import Greeting, Heartbeat, LinkError, LinkMessage, Try, VouchGranted, WaitTold

DIAL_LIMIT_S = 2.0
"""Time limit from the first packet to an address until both sides have authenticated."""
PAUSE_S = 0.2
"""Pause after the first failed attempt; it doubles up to `PAUSE_MAX_S`, with a jitter of a quarter."""
PAUSE_MAX_S = 2.0
RECONNECT_PAUSE_S = 0.001
"""First pause between reconnects that are cut; it doubles. Linux usually closes the listener of an exiting process
after its connections: until then it accepts the reconnect, then cuts it."""
RECONNECT_PAUSE_MAX_S = 0.256
"""If a reconnect is cut even after this pause, the attempts end without a proof. The limit counts pauses, not time:
on busy cores a process with many connections takes a second to exit, and cuts the reconnect at its very end."""

SHORT_S = 1.0
SHORT_MAX = 8
"""After this many consecutive links that lived for less than `SHORT_S`, a closed link is redialled after a pause."""


class DialResult(Enum):
    """The result of one attempt."""

    LINKED = auto()
    """The link is up."""
    REFUSED = auto()
    """No process listens there."""
    OTHER = auto()
    """Another node, or one of another job, listens there."""
    CUT = auto()
    """The connection was closed before both sides had authenticated."""
    NOTHING = auto()
    """There was no answer, or none that proves anything."""


_PROOFS = (DialResult.REFUSED, DialResult.OTHER)
_REFUSALS = {errno.ECONNREFUSED: DialResult.REFUSED, errno.ECONNRESET: DialResult.CUT}
_ENDED = {
    CloseReason.CLOSED: "it closes the connection",
    CloseReason.LOST: "the connection was lost",
    CloseReason.UNFIT: "the process that answers there is not an agent of this job",
}
"""Why there is no link, in words, if the connection ended before both sides had authenticated."""


class Asker(Protocol):
    """A link over which a node has sent a request."""

    def send(self, message: LinkMessage) -> None:
        """Send a message."""


class LinkOwner(Protocol):
    """The interface that the outbound and inbound links of an agent need from it."""

    job_id: str
    node: str
    secret_text: str
    turns: asyncio.Semaphore
    """Limits the number of simultaneous dials; a reconnect does not wait for it."""
    on_look: Callable[[socket.socket], None] | None
    """Takes over the connection of an authenticated status client."""
    on_wait: Callable[[str, WaitTold], None]
    """Gets the messages of other nodes about what this one waits for."""

    def came_up(self, one: PeerLink) -> None:
        """Note that the link is up."""

    def went_down(self, one: PeerLink, *, in_order: bool = False) -> None:
        """Note that the link is down; `in_order`: the node sent a goodbye."""

    def was_cut(self, one: PeerLink) -> bool:
        """Return whether a link that the member had made to this node was closed without a goodbye."""

    def is_proven_gone(self, one: PeerLink) -> None:
        """Note that the member's process is dead."""

    def is_decided(self, one: PeerLink) -> None:
        """Note that the link is down and its reconnects have ended."""

    def heard(self, one: PeerLink, message: LinkMessage) -> None:
        """Process a message of the member. Raises `LinkError` if the member may not send it."""

    def beat(self, node: str, link: object, message: Heartbeat) -> None:
        """Process a heartbeat that arrived over a link."""

    def heard_from(self, node: str) -> None:
        """Note another message of a node that has a link to this one."""

    def inbound_ended(self, node: str, link: object) -> None:
        """Note that a node closes its link to this one with a goodbye."""

    def try_for(self, asker: Asker, message: Try) -> None:
        """Dial another node, as a node with a link to this one asks."""

    def unreached(self, one: PeerLink, why: str) -> None:
        """Note that no link came up in the time that the leader waits for one."""

    def links_changed(self) -> None:
        """Note that the set of nodes with a link to this one has changed."""

    def granted(self, node: str, message: VouchGranted) -> None:
        """Process a node's answer to a vouch query."""

    def complain(self, node: str, text: str) -> None:
        """Log that a process could not authenticate."""


class PeerLink:
    """One member and its link. `up`: there is a link; `redialling`: it closed, and its reconnect is not over."""

    def __init__(self, owner: LinkOwner, node: str, target: LinkTarget) -> None:
        """Start to dial; `owner` limits simultaneous dials and gets the results."""
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.node = node
        self.target = target
        self.up = False
        self.redialling = False
        self.closed_at = 0.0
        """When the link last closed."""
        self._bye = False
        self._address = ""
        self._lookup: asyncio.Task[tuple[str, ...]] | None = None
        self._line: LineSocket | None = None
        self._proofs: handshake.Proofs | None = None
        self._proven = False
        self._result: asyncio.Future[DialResult] = self._loop.create_future()
        self._pause_s = PAUSE_S
        self._up_at = 0.0
        self._short = 0
        self._why = ""
        self._patient_until = self._loop.time() + LINK_PATIENCE_S
        self._task = self._loop.create_task(self._dial(), name=f"link to {node}")

    def send(self, message: LinkMessage) -> None:
        """Send a message if the link is up."""
        if self.up:
            self._say(message)

    @property
    def round_trip_s(self) -> float:
        """The round-trip time in seconds that the kernel has measured; 0.0 if there is no connection."""
        return self._line.round_trip_s if self._line is not None else 0.0

    def release(self) -> None:
        """Stop watching the member."""
        self._task.cancel()
        self._close_line()
        if self._lookup is not None:
            self._lookup.cancel()
        self.up = self.redialling = False

    # --- dialling -------------------------------------------------------------------------------------------------

    async def _dial(self) -> None:
        """Try every address of the member in turn, until a link is up."""
        while True:
            came = DialResult.NOTHING
            async with self._owner.turns:
                for address in await self._addresses():
                    came = await self._try(address)
                    if came is DialResult.LINKED:
                        return
                if came in _PROOFS and (self.target.dialable or self._owner.was_cut(self)):
                    self._owner.is_proven_gone(self)
            await self._rest()

    async def _dial_again(self) -> None:
        """Redial the address of the closed link until its reconnect is over, then dial as for any other member."""
        again_s = RECONNECT_PAUSE_S
        while self.redialling:
            came = await self._try(self._address)
            if came is DialResult.LINKED:
                return
            if came is DialResult.CUT and again_s <= RECONNECT_PAUSE_MAX_S:
                await asyncio.sleep(again_s)
                again_s *= 2
                continue
            self.redialling = False
            if came in _PROOFS:
                self._owner.is_proven_gone(self)
            self._owner.is_decided(self)
        await self._rest()
        await self._dial()

    async def _rest(self) -> None:
        if self._loop.time() >= self._patient_until:
            self._owner.unreached(self, self._why)
        pause_s = self._pause_s * random.uniform(0.75, 1.25)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        await asyncio.sleep(pause_s)

    async def _addresses(self) -> tuple[str, ...]:
        """Return the addresses of the member, none while its name is unknown."""
        if as_ip(self.target.host) is not None:
            return (self.target.host,)
        if self._lookup is None:  # Otherwise the previous lookup still runs: do not flood a resolver that is down.
            self._lookup = self._loop.create_task(resolved(self.target.host))
        known: tuple[str, ...] = ()
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                known = await asyncio.shield(self._lookup)
        except TimeoutError:
            self._why = "timed out"
            return ()
        except (OSError, UnicodeError):  # The name may become known later.
            self._why = "its name cannot be resolved"
        self._lookup = None
        return known

    async def _try(self, address: str) -> DialResult:
        """Try to open a link to this address."""
        self._address, self._proofs, self._proven = address, None, False
        self._result = self._loop.create_future()
        result = self._result
        try:
            async with asyncio.timeout(DIAL_LIMIT_S):
                self._line = LineSocket(await connect(address, self.target.port), self._heard, self._ended)
                await asyncio.shield(result)
        except TimeoutError:
            if not result.done():
                self._fail(DialResult.NOTHING, "timed out")
        except OSError as error:
            number = error.errno or errno.EIO
            self._fail(_REFUSALS.get(number, DialResult.NOTHING), os.strerror(number).lower())
        return await result

    def _fail(self, came: DialResult, why: str) -> None:
        self._why = why
        self._close_line()
        self._result.set_result(came)

    def _heard(self, line: bytes) -> None:
        try:
            if self._proofs is None:
                self._greeted(link_messages.read_greeting(line))
                return
            message = link_messages.decode(line)
            if self.up and isinstance(message, link_messages.Bye):
                self._bye = True
            elif self.up:
                self._owner.heard(self, message)
            elif isinstance(message, link_messages.Proof) and not self._proven:
                self._answered(message, self._proofs)
            elif isinstance(message, link_messages.Admitted) and self._proven:
                self._admitted()
            else:
                raise LinkError("expected a proof")
        except LinkError:
            self._close_line()
            self._ended(CloseReason.UNFIT)

    def _greeted(self, greeting: Greeting) -> None:
        if (greeting.job_id, greeting.node) != (self._owner.job_id, self.node):
            self._fail(DialResult.OTHER, "another node answers there")
        elif greeting.nonce is None:  # The node is alive, but does not accept links (yet).
            other, unlearned = "it runs another version of elastic-launch", "it has not read the job's secret yet"
            self._fail(DialResult.NOTHING, other if greeting.other_version else unlearned)
        else:
            request = link_messages.LinkRequest(self._owner.node, handshake.new_nonce())
            self._proofs = link_messages.proofs(self._owner.secret_text, greeting, request)
            self._say(request)

    def _answered(self, message: link_messages.Proof, proofs: handshake.Proofs) -> None:
        if not handshake.is_proof(message.mac, proofs.server):
            self._owner.complain(
                self.node, f"the process at {self._address} is not {self.node}: it does not know the job's secret"
            )
            raise LinkError("it does not know the job's secret")
        self._proven = True
        self._say(link_messages.Proof(proofs.client))

    def _admitted(self) -> None:
        self.up, self.redialling, self._bye = True, False, False
        self._up_at = self._loop.time()
        self._patient_until = float("inf")
        self._result.set_result(DialResult.LINKED)
        self._owner.came_up(self)

    # --- the connection -------------------------------------------------------------------------------------------

    def _ended(self, how: CloseReason) -> None:
        self._line = None
        if not self.up:
            self._fail(DialResult.CUT if how is CloseReason.CLOSED else DialResult.NOTHING, _ENDED[how])
            return
        self.up = False
        self._short = self._short + 1 if self._loop.time() - self._up_at < SHORT_S else 0
        if not self._short:
            self._pause_s = PAUSE_S
        self.redialling = how is CloseReason.CLOSED and not self._bye and self._short <= SHORT_MAX
        self._owner.went_down(self, in_order=self._bye)
        if not self.redialling:
            self._owner.is_decided(self)
        self._task = self._loop.create_task(self._dial_again(), name=f"link to {self.node}")

    def _say(self, message: LinkMessage) -> None:
        if self._line is not None:
            self._line.send(link_messages.encode(message))

    def _close_line(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None
