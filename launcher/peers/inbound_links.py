"""The listener's side of links: who connects is greeted, proves itself or is sent away, and then may ask and answer.

Who proves that it only wants to look is handed to `on_look` (`launcher.agent.inspect_server`), and is no link.

Nobody is believed before the proof. Until then a connection lives for `PROOF_LIMIT_S`, and there are few of them: of a
flood the oldest from the address with the most is dropped for each new one, so that a stranger with many connections
drops its own. A link of the same node replaces the one that it had.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
from collections import Counter
from collections.abc import Callable

from launcher.net.line_socket import CloseReason, LineSocket, watch_by_kernel
from launcher.peers.listener import send_rejection
from launcher.wire import inspect_messages, link_messages
from launcher.wire.link_messages import (
    Bye,
    Greeting,
    InspectHello,
    LinkError,
    LinkMessage,
    Ping,
    Pong,
    Prove,
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

    def __init__(
        self,
        job_id: str,
        node: str,
        on_granted: Callable[[str, VouchGranted], None],
        on_links: Callable[[], None],
        complain: Callable[[str, str], None],
        *,
        on_look: Callable[[socket.socket, inspect_messages.InspectWelcome], None] | None = None,
        on_wait: Callable[[str, WaitTold], None] | None = None,
    ) -> None:
        """`on_look` owns the connection of an asker that has proven itself, and is to send it this first.

        `on_wait` hears what the nodes that have a link to this one say that it waits for.
        """
        self._me = Greeting(job_id, node)
        self.on_granted = on_granted
        self.on_links = on_links
        self.complain = complain
        self.on_look = on_look
        self.on_wait = on_wait
        self.secret_text = ""
        self.links: dict[str, InboundConnection] = {}
        self.cut: dict[str, None] = {}
        """Nodes whose last link was closed, and not in order; of more than `CUT_MAX` the newest. One that is linked
        again is not among them any more."""
        self._unproven: dict[InboundConnection, str] = {}

    def accept(self, connected: socket.socket) -> None:
        """Greet who connected; the connection is ours from now on."""
        if not self.secret_text:
            send_rejection(connected, link_messages.greeting_line(self._me))
            return
        try:
            source = str(connected.getpeername()[0])
        except OSError:
            connected.close()  # It is gone already.
            return
        if len(self._unproven) >= UNPROVEN_MAX:
            self._drop_one()
        me = Greeting(self._me.job_id, self._me.node, secrets.token_hex(16))
        self._unproven[InboundConnection(self, connected, me, source)] = source

    def admit_peer(self, connection: InboundConnection, me: Greeting, said: Prove) -> None:
        """See to it that a link is made of a good proof. Raises `LinkError` for another."""
        if said.node == self._me.node or not link_messages.proves(self.secret_text, me, said):
            self.complain(
                said.node, f"who connects from {connection.source} as {said.node} cannot prove to be of this job"
            )
            raise LinkError("it does not know the secret")
        before = self.links.get(said.node)
        if before is None and len(self.links) >= LINKS_MAX:
            raise LinkError("there are too many links")
        if before is not None:
            before.close()
        del self._unproven[connection]
        self.links[said.node] = connection
        self.cut.pop(said.node, None)
        self.on_links()

    def admit_inspector(
        self, connection: InboundConnection, me: Greeting, said: InspectHello
    ) -> inspect_messages.InspectWelcome:
        """What an asker gets that has proven itself, who may then ask. Raises `LinkError` for another."""
        if self.on_look is None:
            raise LinkError("nobody can look here")
        if not inspect_messages.proves(self.secret_text, me, said):
            self.complain("", f"who connects from {connection.source} to look cannot prove to be of this job")
            raise LinkError("it does not know the secret")
        del self._unproven[connection]
        return inspect_messages.inspect_welcome(self.secret_text, me, said)

    def remove(self, one: InboundConnection) -> None:
        """It is closed."""
        self._unproven.pop(one, None)
        if self.links.get(one.node) is one:
            del self.links[one.node]
            self.on_links()

    def note_cut(self, node: str) -> None:
        """Remember that the link of a node was closed, and not in order."""
        self.cut[node] = None
        if len(self.cut) > CUT_MAX:
            del self.cut[next(iter(self.cut))]

    def close(self, last: LinkMessage | None = None) -> None:
        """Close every connection, after these words."""
        for one in [*self.links.values(), *self._unproven]:
            if last is not None and one.node:
                one.send(last)
            one.close()

    def _drop_one(self) -> None:
        most, _ = Counter(self._unproven.values()).most_common(1)[0]
        next(one for one, source in self._unproven.items() if source == most).close()


class InboundConnection:
    """One connection that was taken. `node` is "" until it has proven itself."""

    def __init__(self, inbound: InboundLinks, connected: socket.socket, me: Greeting, source: str) -> None:
        self._inbound = inbound
        self._me = me
        self.node = ""
        self.source = source
        self._line = LineSocket(connected, self._on_message, self._ended)
        self._timer = asyncio.get_running_loop().call_later(PROOF_LIMIT_S, self.close)
        self._line.send(link_messages.greeting_line(me))
        self._connected = connected

    def send(self, message: LinkMessage) -> None:
        """Say something."""
        self._line.send(link_messages.encode(message))

    def close(self) -> None:
        """Close it."""
        self._timer.cancel()
        self._line.close()
        self._inbound.remove(self)

    def _ended(self, how: CloseReason) -> None:
        cut = how is CloseReason.CLOSED and bool(self.node) and self._inbound.links.get(self.node) is self
        self.close()
        if cut:
            self._inbound.note_cut(self.node)

    def _on_message(self, line: bytes) -> None:
        try:
            message = link_messages.decode(line)
            if not self.node:
                self._on_proof(message)
            elif isinstance(message, Ping):
                self.send(Pong(message.n))
            elif isinstance(message, VouchGranted):
                self._inbound.on_granted(self.node, message)
            elif isinstance(message, WaitTold):
                if self._inbound.on_wait is not None:
                    self._inbound.on_wait(self.node, message)
            elif isinstance(message, Bye):
                self.close()
            else:
                raise LinkError("it has no business to say that")
        except LinkError:
            self.close()

    def _on_proof(self, message: LinkMessage) -> None:
        if isinstance(message, InspectHello):
            answer = self._inbound.admit_inspector(self, self._me, message)
            self._timer.cancel()
            assert self._inbound.on_look is not None
            self._inbound.on_look(self._line.release(), answer)
            return
        if not isinstance(message, Prove):
            raise LinkError("it proves nothing")
        self._inbound.admit_peer(self, self._me, message)
        self._timer.cancel()
        self.node = message.node
        watch_by_kernel(self._connected)
        self.send(link_messages.proven(self._inbound.secret_text, self._me, message))
