"""The HTTP server of an agent for monitoring: one port, on the agent's own loop, within narrow limits.

Clients must not disturb training: there are few connections, each is for one request and ends in time, and nothing of a
request is read but the first line and the headers (`launcher.net.http_server`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from aiohttp import web

from launcher.net.http_server import LimitedServer, ServerLimits

CONNECTIONS_MAX: Final = 16
LIMITS: Final = ServerLimits(
    connections=CONNECTIONS_MAX,
    header_s=2.0,  # A monitoring system connects in order to send its request at once.
    answer_s=10.0,  # Prometheus waits no longer.
    line_bytes=2048,
    field_bytes=4096,
    fields=32,
)
METHODS: Final = ("GET", "HEAD")


class HttpReply(NamedTuple):
    """The answer to a request."""

    status: int
    content_type: str
    body: bytes


Pages = Callable[[str, str], HttpReply | None]
"""Returns the answer for a path and the header `Accept`, None if there is no such page."""


class MetricsServer(LimitedServer):
    """Listens until it is closed."""

    def __init__(self, pages: Pages, complain: Callable[[str], object]) -> None:
        """`complain` is called for a page that could not be made, and when descriptors run out."""
        super().__init__(self._page, LIMITS, complain, "a page for monitors")
        self._pages = pages

    async def _page(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.method not in METHODS:
            reply = text_reply(405, "this port only answers GET")
        else:
            page = self._pages(request.path, request.headers.get("Accept", ""))
            reply = page or text_reply(404, "not found; the pages are /metrics, /healthz and /readyz")
        headers = {"Content-Type": reply.content_type, "Server": "elastic-launch"}
        response = web.Response(status=reply.status, body=reply.body, headers=headers)
        if reply.status == 405:
            response.headers["Allow"] = ", ".join(METHODS)
        return response


def text_reply(status: int, words: str) -> HttpReply:
    """Return an answer of one line."""
    return HttpReply(status, "text/plain; charset=utf-8", f"{words}\n".encode(errors="replace"))
