"""An HTTP server with limits, for ports that are open to unauthenticated clients: those for monitors and for browsers.

Each connection is for one request. The header and the answer each have a time limit. When all places are taken, the
oldest connection that has had time to send its header and has not sent it makes room for the next one: clients that
connect and send nothing block no other client. If requests hold more than half of the places, the oldest one that has
waited for its answer for `STOP_TIMEOUT_S` also makes room. Otherwise the next connection waits. A long-lived answer
(`LimitedServer.keep_open`) takes no place here; its handler must limit their number.

Some file descriptors are kept in reserve. When this process has no other ones left, they are for the connections that
come next; connections that have not sent their header then make room for further ones, after a pause.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import resource
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, BinaryIO, Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

from launcher.net.acceptor import Acceptor

RESERVE: Final = 4
"""Descriptors in reserve. Each is lost for the rest of the process; a single one could go to a silent client."""
READ_ROUNDS: Final = 6
"""The loop reads a client that sends its header at once within this number of iterations."""
ROUNDS_PER_PAUSE: Final = 3
"""Minimum iterations of the loop while accepting pauses."""
PAUSE_S: Final = 0.02
"""Time between two attempts to accept a connection without room or a free descriptor."""
STOP_TIMEOUT_S: Final = 1.0
"""The server answers most requests well within this time. Slower ones keep their place while they are few."""
ROUNDS: Final = 8
"""Minimum iterations of the loop that a flood needs to fill all places."""
CLOSING_S: Final = 0.2
"""Time limit for handlers to finish when the server closes."""
BACKLOG: Final = 512
"""Connections that wait in the kernel. When a flood fills this queue, clients retry after a second."""
ANY_V6: Final = "::"
NOT_HERE: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
"""The errors for an address that this host does not have, such as ::1 without IPv6."""

Handler = Callable[[Any], Awaitable[web.StreamResponse]]


class ServerLimits(NamedTuple):
    """The limits of a server, for each client and in total."""

    connections: int
    header_s: float
    """Seconds from the connection to the end of the header."""
    answer_s: float
    """Seconds from the end of the header to the end of the answer."""
    line_bytes: int
    field_bytes: int
    fields: int


class LimitedServer(web.Server):
    """An HTTP server that listens until it is closed."""

    def __init__(
        self, handler: Handler, limits: ServerLimits, complain: Callable[[str], object], what: str, **settings: Any
    ) -> None:
        """Take `complain`, which logs failed answers (`what` names them), and once that descriptors ran out.

        A handler is cancelled when its client disconnects. `settings` are those of `web.Server`.
        """
        log = logging.Logger("http")
        log.addHandler(ServerErrorHandler(complain, what))
        super().__init__(
            self._answer,
            handler_cancellation=True,
            access_log=None,
            logger=log,
            keepalive_timeout=0.0,
            lingering_time=0.0,
            max_line_size=limits.line_bytes,
            max_field_size=limits.field_bytes,
            max_headers=limits.fields,
            **settings,
        )
        self._handler = handler
        self._limits = limits
        self._complain = complain
        self._ran_out = False
        self._round = 0
        """Iterations of the loop in which connections waited."""
        self._acceptors: list[Acceptor] = []
        self._reserve: list[BinaryIO] = []
        self._sockets: dict[RequestHandler, socket.socket] = {}
        self._arriving: set[asyncio.Task[Any]] = set()
        self._open: dict[RequestHandler, _ClientConnection] = {}
        """The open connections, the oldest first."""

    def listen(self, host: str, port: int) -> tuple[str, int]:
        """Listen at every address of `host`, at one port; return the first address and the port.

        Raises `OSError`, and `UnicodeError` if `host` is not a valid name.
        """
        # Resolve names here, without the thread that asyncio would start.
        address_infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        listeners: list[socket.socket] = []
        not_here: OSError | None = None
        with ExitStack() as opened:
            for family, address in dict.fromkeys((family, where) for family, *_, where in address_infos):
                both = address[0] == ANY_V6 and socket.has_dualstack_ipv6()  # Otherwise IPv6 only.
                port = listeners[0].getsockname()[1] if listeners else port
                at = (address[0], port, *address[2:])  # With the zone of a link-local address.
                try:
                    made = socket.create_server(at, family=family, backlog=BACKLOG, dualstack_ipv6=both)
                except OSError as error:
                    if error.errno not in NOT_HERE:
                        raise
                    not_here = error
                else:
                    made.setblocking(False)
                    listeners.append(opened.enter_context(made))
            if not listeners and not_here is not None:
                raise not_here
            opened.pop_all()
        self._acceptors = [
            Acceptor(listener, self._take, room=self._room, pause_s=PAUSE_S, spare=self._free_descriptor)
            for listener in listeners
        ]
        self._fill_reserve()
        where = listeners[0].getsockname()
        return where[0], where[1]

    async def close(self) -> None:
        """Stop listening, and close all connections. May be called again."""
        acceptors, self._acceptors = self._acceptors, []
        if not acceptors:
            return
        for acceptor in acceptors:
            acceptor.close()
        for held in self._reserve:
            held.close()
        if self._arriving:
            await asyncio.wait(self._arriving)
        for connection in tuple(self._open.values()):
            connection.end()
        await self.shutdown(CLOSING_S)

    def keep_open(self, request: web.BaseRequest) -> None:
        """Free the place of this request, and keep its answer open. Raises `ConnectionError` if its client is gone."""
        if (found := self._open.pop(request.protocol, None)) is None:
            raise ConnectionResetError("the client has disconnected")
        found.timer.cancel()

    # --- one connection -----------------------------------------------------------------------------------------

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Give the connection a place."""
        super().connection_made(handler, transport)
        self._open[handler] = self._connection(transport, self._limits.header_s, asked=False)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Free the place of the connection, and refill the reserve of descriptors first."""
        super().connection_lost(handler, exc)
        if (found := self._open.pop(handler, None)) is not None:
            found.timer.cancel()
        if (connected := self._sockets.pop(handler, None)) is not None:
            connected.close()
        self._fill_reserve()

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if (found := self._open.get(request.protocol)) is not None:
            found.timer.cancel()
            self._open[request.protocol] = self._connection(found.transport, self._limits.answer_s, asked=True)
        response = await self._handler(request)
        response.force_close()
        return response

    def _connection(self, transport: asyncio.Transport, limit_s: float, *, asked: bool) -> _ClientConnection:
        loop = asyncio.get_running_loop()
        return _ClientConnection(transport, loop.call_later(limit_s, transport.abort), asked, loop.time(), self._round)

    def _take(self, connected: socket.socket) -> None:
        protocol, loop = self(), asyncio.get_running_loop()
        self._sockets[protocol] = connected
        task = loop.create_task(loop.connect_accepted_socket(lambda: protocol, connected))
        self._arriving.add(task)
        task.add_done_callback(self._arriving.discard)

    def _room(self) -> int:
        """Return how many connections may be accepted now. If all places are taken, one connection may be closed."""
        self._round += 1
        free = self._limits.connections - len(self._open) - len(self._arriving)
        if free > 0:
            return min(free, max(1, self._limits.connections // ROUNDS))
        gone = self._silent()
        if not gone and sum(connection.asked for connection in self._open.values()) > self._limits.connections // 2:
            gone = self._overdue()
        if not gone:
            self._round += ROUNDS_PER_PAUSE
        self._drop(gone[:1])
        return len(gone[:1])

    def _silent(self) -> list[RequestHandler]:
        return [
            handler
            for handler, one in self._open.items()
            if not one.asked and self._round >= one.came_in_round + READ_ROUNDS
        ]

    def _overdue(self) -> list[RequestHandler]:
        before = asyncio.get_running_loop().time() - STOP_TIMEOUT_S
        return [handler for handler, one in self._open.items() if one.asked and one.since < before]

    def _drop(self, connections: Sequence[RequestHandler]) -> None:
        for one in connections:
            self._open.pop(one).end()

    # --- descriptors --------------------------------------------------------------------------------------------

    def _fill_reserve(self) -> None:
        with suppress(OSError):
            while self._acceptors and len(self._reserve) < RESERVE:
                self._reserve.append(open(os.devnull, "rb", buffering=0))  # noqa: SIM115  # until it is needed

    def _free_descriptor(self) -> bool:
        """Use the reserve; return whether a descriptor is free now. If not, connections without a header are closed."""
        if not self._ran_out:
            self._ran_out = True
            most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
            self._complain(f"no file descriptor is free (ulimit -n {most}); new connections may have to wait")
        if self._reserve:
            self._reserve.pop().close()
            return True
        self._round += ROUNDS_PER_PAUSE
        self._drop(self._silent())
        return False


class ServerErrorHandler(logging.Handler):
    """Reports failed answers, for which aiohttp sends 500; it ignores invalid requests of clients."""

    def __init__(self, complain: Callable[[str], object], what: str) -> None:
        """Take the name of the answer for messages."""
        super().__init__(logging.ERROR)
        self._complain = complain
        self._what = what

    def emit(self, record: logging.LogRecord) -> None:
        """Report the error in one line."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError | OSError):
            self._complain(f"cannot produce {self._what}: {type(error).__name__}: {error}")


class _ClientConnection(NamedTuple):
    """A connection, and the timer that closes it."""

    transport: asyncio.Transport
    timer: asyncio.TimerHandle
    asked: bool
    since: float
    """The time, by the loop's clock, at which it was accepted or its header was complete."""
    came_in_round: int

    def end(self) -> None:
        self.timer.cancel()
        self.transport.abort()
