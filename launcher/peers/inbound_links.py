"""The listener's side of links: who connects is greeted, proves itself or is sent away, and then may ask and answer.

Who proves that it only wants to look is handed to `LinkOwner.on_look` (`launcher.agent.inspect_server`): no link.

Nobody is believed before the proof. Until then a connection lives for `PROOF_LIMIT_S`, and there are few of them: of a
flood the oldest from the address with the most is dropped for each new one, so that a stranger with many connections
drops its own. A link of the same node replaces the one that it had.
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
"""So long may who connects take to prove itself."""
UNPROVEN_MAX = 64
"""Connections that have not proven themselves."""
LINKS_MAX = 8192
"""Links that others have made to this node, one for each of them."""
CUT_MAX = 1024
"""Nodes that are remembered because their link was cut. Their death is proven within seconds, or not by a link."""


class InboundLinks:
    """Takes connections, and has the links that came of them, by the node that dialled."""

    def __init__(self, owner: LinkOwner) -> None:
        """`owner` is called for each link, and for what comes over it."""
        self.owner = owner
        self.links: dict[str, InboundConnection] = {}
        self.cut: dict[str, None] = {}
        """Nodes whose last link was closed, and not in order; of more than `CUT_MAX` the newest. One that is linked
        again is not among them any more."""
        self._unproven: dict[InboundConnection, str] = {}

    def accept(self, connected: socket.socket) -> None:
        """Greet who connected; the connection is ours from now on."""
        job_id, node = self.owner.job_id, self.owner.node
        if not self.owner.secret_text:
            send_rejection(connected, link_messages.greeting_line(Greeting(job_id, node)))
            return
        try:
            source = str(connected.getpeername()[0])
        except OSError:
            connected.close()  # It is gone already.
            return
        if len(self._unproven) >= UNPROVEN_MAX:
            most, _ = Counter(self._unproven.values()).most_common(1)[0]
            next(oldest for oldest, address in self._unproven.items() if address == most).close()
        me = Greeting(job_id, node, handshake.new_nonce())
        self._unproven[InboundConnection(self, connected, me, source)] = source

    def admit(self, connection: InboundConnection, request: Request, *, proven: bool) -> None:
        """Take who has proven itself: a node's connection is a link now. Raises `LinkError` for anybody else."""
        node = request.node if isinstance(request, LinkRequest) else ""
        if not proven or node == self.owner.node:
            purpose = f"as {node}" if node else "to look"
            self.owner.complain(node, f"who connects from {connection.source} {purpose} cannot prove to be of this job")
            raise LinkError("it does not know the secret")
        before = self.links.get(node)
        if node and before is None and len(self.links) >= LINKS_MAX:
            raise LinkError("there are too many links")
        if before is not None:
            before.close()
        del self._unproven[connection]
        if node:
            self.links[node] = connection
            self.cut.pop(node, None)
            self.owner.links_changed()

    def remove(self, connection: InboundConnection, *, cut: bool) -> None:
        """It is closed; `cut`: by the other side, and not in order."""
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
        """Close every connection, and every link in order."""
        for one in [*self.links.values(), *self._unproven]:
            if one.node:
                one.send(Bye())
            one.close()


class InboundConnection:
    """One connection that was taken. `node` is "" until it has proven itself."""

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
        """Say something."""
        self._line.send(link_messages.encode(message))

    @property
    def round_trip_s(self) -> float:
        """What its packets take there and back, in seconds; 0.0 if it is closed."""
        return self._line.round_trip_s

    def close(self, *, cut: bool = False) -> None:
        """Close it; `cut`: the other side has closed it, and not in order."""
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
                raise LinkError("it has no business to say that")
        except LinkError:
            self.close()

    def _authenticate(self, message: LinkMessage) -> None:
        if self._request is None and isinstance(message, LinkRequest | InspectRequest):
            if isinstance(message, InspectRequest) and self._inbound.owner.on_look is None:
                raise LinkError("nobody can look here")
            self._request = message
            self._proofs = link_messages.proofs(self._inbound.owner.secret_text, self._me, message)
            self.send(Proof(self._proofs.server))
            return
        if self._request is None or self._proofs is None or not isinstance(message, Proof):
            raise LinkError("it proves nothing")
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
