"""The door through which monitors ask an agent: HTTP on one port, on the agent's own loop, within narrow limits.

Whoever asks must not disturb training: there are at most `CONNECTIONS_MAX` connections, each is for one question and
is cut off after `CONNECTION_S`, whatever it does. Who says nothing must not keep a probe out: the question is due
within `REQUEST_S`, and where all places are taken the oldest connection without one makes room for the next that comes.
Nothing that is sent is read but the first line and the headers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestHandler

CONNECTIONS_MAX: Final = 16
CONNECTION_S: Final = 10.0
"""So long a connection lasts after its question at most, to the end of the answer: Prometheus waits no longer."""
REQUEST_S: Final = 2.0
"""So long it may take to ask: a monitor connects in order to ask at once."""
LINE_BYTES_MAX: Final = 2048
HEADER_BYTES_MAX: Final = 4096
HEADERS_MAX: Final = 32
CLOSING_S: Final = 0.2
BACKLOG: Final = 16
ANY_V6: Final = "::"
METHODS: Final = ("GET", "HEAD")


class Reply(NamedTuple):
    """What is answered."""

    status: int
    content_type: str
    body: bytes


Pages = Callable[[str, str], Reply | None]
"""By path and the header `Accept`: what is answered, None where there is no such page."""


class MetricsDoor:
    """Listens until it is closed."""

    def __init__(self, pages: Pages, complain: Callable[[str], object]) -> None:
        """`complain` hears of a page that could not be made."""
        self._pages = pages
        self._complain = complain
        self._guarded: _Guarded | None = None
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen there. Raises `OSError` if that cannot be, and `UnicodeError` if `host` cannot be a name."""
        log = logging.Logger("metrics")
        log.addHandler(Complaint(self._complain, "a page for monitors"))
        self._guarded = guarded = _Guarded(
            self._answer,
            access_log=None,
            logger=log,
            keepalive_timeout=CONNECTION_S,
            lingering_time=0.0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=HEADER_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )
        # Names are resolved here, without the thread that asyncio would start for it.
        family, *_, found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        address = str(found[0])
        both = address == ANY_V6 and socket.has_dualstack_ipv6()  # asyncio's own socket would answer IPv6 alone.
        listening = socket.create_server((address, port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
        self._server = await asyncio.get_running_loop().create_server(guarded, sock=listening, backlog=BACKLOG)

    @property
    def endpoints(self) -> tuple[tuple[str, int], ...]:
        """Where it listens."""
        listening = self._server.sockets if self._server is not None else ()
        return tuple((one.getsockname()[0], one.getsockname()[1]) for one in listening)

    async def close(self) -> None:
        """Listen no more, and hang up. May be called again."""
        server, self._server = self._server, None
        if server is not None and self._guarded is not None:
            server.close()
            self._guarded.cut_off()
            await self._guarded.shutdown(CLOSING_S)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._guarded is not None:
            self._guarded.asked(request.protocol)
        if request.method not in METHODS:
            reply = line(405, "this port only answers GET")
        else:
            found = self._pages(request.path, request.headers.get("Accept", ""))
            reply = found or line(404, "there are /metrics, /healthz and /readyz")
        headers = {"Content-Type": reply.content_type, "Server": "elastic-launch"}
        response = web.Response(status=reply.status, body=reply.body, headers=headers)
        if reply.status == 405:
            response.headers["Allow"] = ", ".join(METHODS)
        response.force_close()
        return response


def line(status: int, words: str) -> Reply:
    """An answer of one line."""
    return Reply(status, "text/plain; charset=utf-8", f"{words}\n".encode(errors="replace"))


class Complaint(logging.Handler):
    """Tells of a page that could not be made, which aiohttp answers with 500; what strangers send is no news."""

    def __init__(self, complain: Callable[[str], object], what: str) -> None:
        """`what` cannot be made."""
        super().__init__(logging.ERROR)
        self._complain = complain
        self._what = what

    def emit(self, record: logging.LogRecord) -> None:
        """Say it in one line."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, HttpProcessingError | OSError):
            self._complain(f"{self._what} cannot be made: {type(error).__name__}: {error}")


class _Connection(NamedTuple):
    """A connection, and what ends it in time."""

    transport: asyncio.Transport
    timer: asyncio.TimerHandle
    asked: bool

    def end(self) -> None:
        self.timer.cancel()
        self.transport.abort()


class _Guarded(web.Server):
    """Cuts off connections that are too many, or that last too long."""

    def __init__(self, handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]], **settings: Any) -> None:
        super().__init__(handler, **settings)
        self._open: dict[RequestHandler, _Connection] = {}
        """The oldest is the first."""

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take it; if there is no room, the oldest that has not asked goes, or the oldest of all."""
        super().connection_made(handler, transport)
        if len(self._open) >= CONNECTIONS_MAX:
            silent = (one for one, connection in self._open.items() if not connection.asked)
            self._open.pop(next(silent, next(iter(self._open)))).end()
        timer = asyncio.get_running_loop().call_later(REQUEST_S, transport.abort)
        self._open[handler] = _Connection(transport, timer, asked=False)

    def asked(self, handler: RequestHandler) -> None:
        """Its question is complete; the answer has time of its own."""
        if (found := self._open.get(handler)) is not None and not found.asked:
            found.timer.cancel()
            timer = asyncio.get_running_loop().call_later(CONNECTION_S, found.transport.abort)
            self._open[handler] = _Connection(found.transport, timer, asked=True)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """It is over."""
        super().connection_lost(handler, exc)
        if (found := self._open.pop(handler, None)) is not None:
            found.timer.cancel()

    def cut_off(self) -> None:
        """Hang up on everybody."""
        for connection in tuple(self._open.values()):
            connection.end()
