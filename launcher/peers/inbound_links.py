"""The listener's side of links: greets clients, authenticates them, and then exchanges messages with them.

An authenticated status client gets no link; its connection is passed to `LinkOwner.on_look`
(`launcher.agent.inspect_server`).

An unauthenticated connection is closed after `PROOF_LIMIT_S`, and their number is limited: each connection above the
limit closes the oldest one of the address with the most connections, so that an unauthenticated client that opens many
connections closes its own. A new link of a node replaces its previous one.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter

from elastic.auth import handshake
from launcher.net.line_socket import CloseReason, LineSocket, watch_by_kernel
from launcher.peers.listener import send_rejection
from launcher.peers.peer_link import LinkOwner
from launcher.wire import link_messages
from launcher.wire.link_messages import (
    Admitted,
    Bye,
    Greeting,
    Heartbeat,
    InspectRequest,
    LinkError,
    LinkMessage,
    LinkRequest,
    Ping,
    Pong,
    Proof,
    Request,
    Try,
    VouchGranted,
    WaitTold,
)

PROOF_LIMIT_S = 2.0
"""Time limit for a new connection to authenticate."""
UNPROVEN_MAX = 64
"""Maximum number of unauthenticated connections."""
LINKS_MAX = 8192
"""Maximum number of inbound links; each node has one."""
CUT_MAX = 1024
"""Remembered nodes whose link was cut. A link proves their death within seconds or not at all."""


class InboundLinks:
    """Accepts connections, and owns the resulting links, by the node that dialled."""

    def __init__(self, owner: LinkOwner) -> None:
        """Take the `owner`, which is called for each link and each message."""
        self.owner = owner
        self.links: dict[str, InboundConnection] = {}
        self.cut: dict[str, None] = {}
        """The newest `CUT_MAX` nodes whose last link was closed without a goodbye. A new link removes its node."""
        self._unproven: dict[InboundConnection, str] = {}

    def accept(self, connected: socket.socket) -> None:
        """Greet a client; this object owns the connection from now on."""
        job_id, node = self.owner.job_id, self.owner.node
        if not self.owner.secret_text:
            send_rejection(connected, link_messages.greeting_line(Greeting(job_id, node)))
            return
        try:
            source = str(connected.getpeername()[0])
        except OSError:
            connected.close()  # The client has disconnected already.
            return
        if len(self._unproven) >= UNPROVEN_MAX:
            most, _ = Counter(self._unproven.values()).most_common(1)[0]
            next(oldest for oldest, address in self._unproven.items() if address == most).close()
        me = Greeting(job_id, node, handshake.new_nonce())
        self._unproven[InboundConnection(self, connected, me, source)] = source

    def admit(self, connection: InboundConnection, request: Request, *, proven: bool) -> None:
        """Turn the authenticated connection of a node into a link. Raises `LinkError` if it is not authenticated."""
        node = request.node if isinstance(request, LinkRequest) else ""
        if not proven or node == self.owner.node:
            purpose = f"as {node}" if node else "for status"
            self.owner.complain(
                node, f"rejected a connection from {connection.source} {purpose}: it does not know the job's secret"
            )
            raise LinkError("it does not know the job's secret")
        before = self.links.get(node)
        if node and before is None and len(self.links) >= LINKS_MAX:
            raise LinkError("too many links")
        if before is not None:
            before.close()
        del self._unproven[connection]
        if node:
            self.links[node] = connection
            self.cut.pop(node, None)
            self.owner.links_changed()

    def remove(self, connection: InboundConnection, *, cut: bool) -> None:
        """Forget a closed connection; `cut`: the other side closed it without a goodbye."""
        self._unproven.pop(connection, None)
        if self.links.get(connection.node) is not connection:
            return
        del self.links[connection.node]
        self.owner.links_changed()
        if cut:
            self.cut[connection.node] = None
            if len(self.cut) > CUT_MAX:
                del self.cut[next(iter(self.cut))]

    def close(self) -> None:
        """Close every connection, and every link with a goodbye."""
        for one in [*self.links.values(), *self._unproven]:
            if one.node:
                one.send(Bye())
            one.close()


class InboundConnection:
    """One accepted connection. `node` is "" until it has authenticated."""

    def __init__(self, inbound: InboundLinks, connected: socket.socket, me: Greeting, source: str) -> None:
        self._inbound = inbound
        self._me = me
        self.node = ""
        self.source = source
        self._request: Request | None = None
        self._proofs: handshake.Proofs | None = None
        self._line = LineSocket(connected, self._on_message, self._ended)
        self._timer = asyncio.get_running_loop().call_later(PROOF_LIMIT_S, self.close)
        self._line.send(link_messages.greeting_line(me))
        self._connected = connected

    def send(self, message: LinkMessage) -> None:
        """Send a message."""
        self._line.send(link_messages.encode(message))

    @property
    def round_trip_s(self) -> float:
        """The round-trip time in seconds that the kernel has measured; 0.0 if the connection is closed."""
        return self._line.round_trip_s

    def close(self, *, cut: bool = False) -> None:
        """Close the connection; `cut`: the other side closed it without a goodbye."""
        self._timer.cancel()
        self._line.close()
        self._inbound.remove(self, cut=cut)

    def _ended(self, how: CloseReason) -> None:
        self.close(cut=how is CloseReason.CLOSED)

    def _on_message(self, line: bytes) -> None:
        try:
            message = link_messages.decode(line)
            if not self.node:
                self._authenticate(message)
                return
            owner = self._inbound.owner
            if isinstance(message, Heartbeat):
                self.send(Heartbeat(message.every_s))
                if not message.unheard:
                    owner.beat(self.node, self, message)
                return
            owner.heard_from(self.node)
            if isinstance(message, Ping):
                self.send(Pong(message.n))
            elif isinstance(message, VouchGranted):
                owner.granted(self.node, message)
            elif isinstance(message, WaitTold):
                owner.on_wait(self.node, message)
            elif isinstance(message, Try):
                owner.try_for(self, message)
            elif isinstance(message, Bye):
                owner.inbound_ended(self.node, self)
                self.close()
            else:
                raise LinkError("unexpected message")
        except LinkError:
            self.close()

    def _authenticate(self, message: LinkMessage) -> None:
        if self._request is None and isinstance(message, LinkRequest | InspectRequest):
            if isinstance(message, InspectRequest) and self._inbound.owner.on_look is None:
                raise LinkError("this agent serves no status clients")
            self._request = message
            self._proofs = link_messages.proofs(self._inbound.owner.secret_text, self._me, message)
            self.send(Proof(self._proofs.server))
            return
        if self._request is None or self._proofs is None or not isinstance(message, Proof):
            raise LinkError("expected a proof")
        proven = handshake.is_proof(message.mac, self._proofs.client)
        self._inbound.admit(self, self._request, proven=proven)
        self._timer.cancel()
        if isinstance(self._request, InspectRequest):
            assert self._inbound.owner.on_look is not None
            self._inbound.owner.on_look(self._line.release())
            return
        self.node = self._request.node
        watch_by_kernel(self._connected)
        self.send(Admitted())
