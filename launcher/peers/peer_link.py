"""One member that is watched over a link: dialled, proven to be itself, and seen to die.

    resting ──► queued ──► dialling ──► up ──► redialling ──► up            the same node answers: no proof
       ▲                      │         │          │
       └──────────────────────┴─────────┴──────────┴── nobody listens, or another node: proof of its death

A proof needs a link to that very node that was up and closed, and a reconnect that is refused or greeted by somebody
else; `elastic.core.agent.links.deaths` has all conditions. A way that is cut, a machine that is silent, a process that
is frozen, and one that closes in order give none.
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
from launcher.wire.link_messages import Greeting, LinkError, LinkMessage, VouchGranted, WaitTold

DIAL_LIMIT_S = 2.0
"""From the first packet to an address until both sides have proven themselves there."""
PAUSE_S = 0.2
"""Before the next try after the first one that failed; it doubles up to `PAUSE_MAX_S`, give or take a quarter."""
PAUSE_MAX_S = 2.0
RECONNECT_PAUSE_S = 0.001
"""A process that ends closes its listener after its connections (so does Linux, mostly): the reconnect is taken, then
cut. It is tried again after so long, then doubled."""
RECONNECT_PAUSE_MAX_S = 0.256
"""When it was cut after this pause, too, the reconnect is decided, without a proof. Pauses count and not the time: a
process with many connections takes a second to end where the cores are busy, and cuts the reconnect at its very end."""

SHORT_S = 1.0
SHORT_MAX = 8
"""After so many links in turn that lived for less than that, one that ends is dialled after a pause, as any other."""


class DialResult(Enum):
    """What an attempt came to, other than a link."""

    REFUSED = auto()
    """Nobody listens there."""
    OTHER = auto()
    """Another node, or one of another job, listens there."""
    CUT = auto()
    """The connection was closed before both sides had proven themselves."""
    NOTHING = auto()
    """There was no answer, or none that means anything."""


_REFUSALS = {errno.ECONNREFUSED: DialResult.REFUSED, errno.ECONNRESET: DialResult.CUT}
_ENDED = {
    CloseReason.CLOSED: "it closes the connection",
    CloseReason.LOST: "the connection was lost",
    CloseReason.UNFIT: "who answers there is no agent of this job",
}
"""Why there is no link, in words, when the connection ended before both sides had proven themselves."""


class LinkOwner(Protocol):
    """What the links of one agent need of it, those that it dials and those that others have to it."""

    job_id: str
    node: str
    secret_text: str
    on_look: Callable[[socket.socket], None] | None
    """Owns the connection of somebody who proves that it only wants to look."""
    on_wait: Callable[[str, WaitTold], None]
    """Hears what a node says that this one waits for."""

    def wants_to_dial(self, one: PeerLink) -> None:
        """Answered by `one.dial()` when it is its turn."""

    def is_done_dialling(self, one: PeerLink) -> None:
        """The turn is over."""

    def came_up(self, one: PeerLink) -> None:
        """The link is up."""

    def went_down(self, one: PeerLink) -> None:
        """It is not any more."""

    def was_cut(self, one: PeerLink) -> bool:
        """Whether a link that it had made itself was closed, and not in order."""

    def is_proven_gone(self, one: PeerLink) -> None:
        """Its process is dead."""

    def is_decided(self, one: PeerLink) -> None:
        """The link is down, and nothing follows from it (any more)."""

    def heard(self, one: PeerLink, message: LinkMessage) -> None:
        """It said something over the link. Raises `LinkError` if it has no business to say that."""

    def unreached(self, one: PeerLink, why: str) -> None:
        """There was no link in the time that the leader waits for one."""

    def links_changed(self) -> None:
        """Another node has a link to this one, or one has none any more."""

    def granted(self, node: str, message: VouchGranted) -> None:
        """A node that has a link to this one answers the question for a vouch."""

    def complain(self, node: str, text: str) -> None:
        """Somebody is not who it should be."""


class PeerLink:
    """One member and its link. `up` tells whether there is one, `redialling` whether the one that was is decided."""

    def __init__(self, watcher: LinkOwner, node: str, target: LinkTarget) -> None:
        """`watcher` decides when it is dialled, and hears what comes of that."""
        self._watcher = watcher
        self._loop = asyncio.get_running_loop()
        self.node = node
        self.target = target
        self.up = False
        self.redialling = False
        self._has_turn = False
        self._bye = False
        self._addresses: list[str] = []
        self._address = ""
        self._lookup: asyncio.Task[tuple[str, ...]] | None = None
        self._attempt: asyncio.Task[None] | LineSocket | None = None
        self._proofs: handshake.Proofs | None = None
        self._proven = False
        self._timer: asyncio.TimerHandle | None = None
        self._pause_s = PAUSE_S
        self._again_s = RECONNECT_PAUSE_S
        self._up_at = 0.0
        self._short = 0
        self._why = ""
        self._unreached_timer = self._loop.call_later(LINK_PATIENCE_S, self._unreached)

    def dial(self) -> None:
        """Try every address of the member once."""
        self._has_turn = True
        self._addresses = []
        if as_ip(self.target.host) is not None:
            self._connect(self.target.host)
        else:
            if self._lookup is None:  # Otherwise the one before has not ended: a resolver that is away gets no crowd.
                self._lookup = self._loop.create_task(resolved(self.target.host))
            self._attempt = self._loop.create_task(self._resolve(self._lookup), name=f"link to {self.node}")
            self._limit(DIAL_LIMIT_S)

    def send(self, message: LinkMessage) -> None:
        """Say something over the link."""
        if self.up and isinstance(self._attempt, LineSocket):
            self._attempt.send(link_messages.encode(message))

    def release(self) -> None:
        """Watch it no more."""
        self._unreached_timer.cancel()
        self._drop()
        if self._lookup is not None:
            self._lookup.cancel()
        self._give_turn_back()
        self.up = self.redialling = False

    # --- an attempt -----------------------------------------------------------------------------------------------

    async def _resolve(self, lookup: asyncio.Task[tuple[str, ...]]) -> None:
        try:
            self._addresses = list(await asyncio.shield(lookup))
        except (OSError, UnicodeError):  # Not yet, perhaps.
            self._why = "its name is not known"
        self._attempt = self._lookup = None
        self._next()

    def _next(self) -> None:
        if self._addresses:
            self._connect(self._addresses.pop(0))
        else:
            self._rest()

    def _connect(self, address: str) -> None:
        self._drop()
        self._proofs = None
        self._proven = False
        self._address = address
        self._attempt = self._loop.create_task(self._open(address), name=f"link to {self.node}")
        self._limit(DIAL_LIMIT_S)

    async def _open(self, address: str) -> None:
        try:
            connected = await connect(address, self.target.port)
        except OSError as error:
            number = error.errno or errno.EIO
            self._attempt = None
            self._why = os.strerror(number).lower()
            self._failed(_REFUSALS.get(number, DialResult.NOTHING))
        else:
            self._attempt = LineSocket(connected, self._line, self._ended)

    def _line(self, line: bytes) -> None:
        try:
            if self._proofs is None:
                self._greeted(link_messages.read_greeting(line))
                return
            message = link_messages.decode(line)
            if self.up and isinstance(message, link_messages.Bye):
                self._bye = True
            elif self.up:
                self._watcher.heard(self, message)
            elif isinstance(message, link_messages.Proof) and not self._proven:
                self._answered(message)
            elif isinstance(message, link_messages.Admitted) and self._proven:
                self._admitted()
            else:
                raise LinkError("it proves nothing")
        except LinkError:
            self._close_attempt()
            self._ended(CloseReason.UNFIT)

    def _greeted(self, greeting: Greeting) -> None:
        if (greeting.job_id, greeting.node) != (self._watcher.job_id, self.node):
            self._why = "another node answers there"
            return self._failed(DialResult.OTHER)
        if greeting.nonce is None or not isinstance(self._attempt, LineSocket):
            other, unlearned = "it runs another version of elastic-launch", "it has not learned the secret of the job"
            self._why = other if greeting.other_version else unlearned
            return self._failed(DialResult.NOTHING)  # It is there, and makes no links (yet).
        request = link_messages.LinkRequest(self._watcher.node, handshake.new_nonce())
        self._proofs = link_messages.proofs(self._watcher.secret_text, greeting, request)
        self._attempt.send(link_messages.encode(request))
        return None

    def _answered(self, message: link_messages.Proof) -> None:
        assert self._proofs is not None
        assert isinstance(self._attempt, LineSocket)
        if not handshake.is_proof(message.mac, self._proofs.server):
            self._watcher.complain(self.node, f"who answers at {self._address} for {self.node} cannot prove to be it")
            raise LinkError("it does not know the secret")
        self._proven = True
        self._attempt.send(link_messages.encode(link_messages.Proof(self._proofs.client)))

    def _admitted(self) -> None:
        self._cancel_timer()
        self._unreached_timer.cancel()
        self.up, self.redialling, self._bye = True, False, False
        self._up_at = self._loop.time()
        self._give_turn_back()
        self._watcher.came_up(self)

    # --- the link -------------------------------------------------------------------------------------------------

    def _ended(self, how: CloseReason) -> None:
        self._attempt = None
        if not self.up:
            self._why = _ENDED[how]
            self._failed(DialResult.CUT if how is CloseReason.CLOSED else DialResult.NOTHING)
            return
        self.up = False
        self._short = self._short + 1 if self._loop.time() - self._up_at < SHORT_S else 0
        if not self._short:
            self._pause_s = PAUSE_S
        self.redialling = how is CloseReason.CLOSED and not self._bye and self._short <= SHORT_MAX
        self._watcher.went_down(self)
        if not self.redialling:
            self._watcher.is_decided(self)
            self._rest()
            return
        self._again_s = RECONNECT_PAUSE_S
        self._connect(self._address)

    def _failed(self, came: DialResult) -> None:
        self._drop()
        if not self.redialling:
            known = self.target.dialable or self._watcher.was_cut(self)
            if came in (DialResult.REFUSED, DialResult.OTHER) and not self._addresses and known:
                self._watcher.is_proven_gone(self)
            self._next()
            return
        if came is DialResult.CUT and self._again_s <= RECONNECT_PAUSE_MAX_S:
            self._timer = self._loop.call_later(self._again_s, self._connect, self._address)
            self._again_s *= 2
            return
        self.redialling = False
        if came in (DialResult.REFUSED, DialResult.OTHER):
            self._watcher.is_proven_gone(self)
        self._watcher.is_decided(self)
        self._rest()

    # --- between two attempts -------------------------------------------------------------------------------------

    def _rest(self) -> None:
        self._drop()
        self._give_turn_back()
        pause_s = self._pause_s * random.uniform(0.75, 1.25)
        self._pause_s = min(2 * self._pause_s, PAUSE_MAX_S)
        self._timer = self._loop.call_later(pause_s, self._watcher.wants_to_dial, self)

    def _limit(self, seconds: float) -> None:
        self._cancel_timer()
        self._timer = self._loop.call_later(seconds, self._timed_out)

    def _timed_out(self) -> None:
        self._why = "timed out"
        self._failed(DialResult.NOTHING)

    def _unreached(self) -> None:
        if self._why:
            self._watcher.unreached(self, self._why)
        else:  # No attempt has ended yet: it waits for its turn.
            self._unreached_timer = self._loop.call_later(PAUSE_MAX_S, self._unreached)

    def _drop(self) -> None:
        self._cancel_timer()
        self._close_attempt()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if isinstance(attempt, LineSocket):
            attempt.close()
        elif attempt is not None:
            attempt.cancel()

    def _give_turn_back(self) -> None:
        if self._has_turn:
            self._has_turn = False
            self._watcher.is_done_dialling(self)
