"""Serves the page to browsers: the document, a job as it changes, logs and stacks, and orders for who has the token.

A page of another origin gets nothing: the header `Host` must name this machine as it was told (a name of somebody
else that leads here does not), a browser must not say that another site asks (`launcher.web.request_origin`), answers
allow no other origin to read them, and an order needs the token and an `Origin` that is this one. The limits on
connections are those of `launcher.net.http_server`.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from aiohttp import web

from elastic.core.keys import JOB_ID
from elastic.errors import ConfigError, ElasticError, StoreError
from launcher.job.listing import JobLine, jobs
from launcher.job.named_job import WHO, NamedJob
from launcher.net.endpoints import as_ip, is_any
from launcher.net.http_server import LimitedServer, ServerLimits
from launcher.system.descriptors import write_stderr_line
from launcher.web.api import ORDER_BYTES_MAX, carry_out, log, stacks
from launcher.web.html import document
from launcher.web.job_feed import JobFeed, JobFeeds, TooManyJobs
from launcher.web.request_origin import LOOPBACK, host_of, is_of_another_site

LIMITS: Final = ServerLimits(
    connections=64,  # Beside the pages that are open: a browser has six to one server, and asks for little.
    header_s=5.0,  # A browser connects a moment before somebody presses a link, and connects again if it waited longer.
    answer_s=60.0,  # The stacks of a worker can take half of that.
    line_bytes=8190,
    field_bytes=8190,  # Browsers send the cookies of everything else on localhost.
    fields=64,
)
ORDER_S: Final = 5.0
"""From the header of an order to the end of its body."""
BROWSERS_MAX: Final = 16
"""Pages that are open at the same time; each gets what changes."""
SLOW_S: Final = 10.0
"""A browser that takes nothing for so long is cut off; a page that still lives connects again."""
LIST_EVERY_S: Final = 2.0
"""So often all jobs are read at most."""
QUIET_S: Final = 10.0
"""When nothing changes, a sign of life comes once in so long."""
QUESTIONS_MAX: Final = 8
"""Logs and stacks that are asked for at the same time."""
STREAM: Final = "text/event-stream"
AGAIN_MS: Final = 2000
"""A page that got no place, or whose job does not exist, asks again after this time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """Listens until it is closed."""

    def __init__(self, lives: JobFeeds, only: str, token: str) -> None:
        """`only`: this job alone; `token` "": only look."""
        self._feeds = lives
        self._only = only
        self._token = token
        self._names = LOOPBACK
        self._any_address = False
        self._open = 0
        self._questions = asyncio.Semaphore(QUESTIONS_MAX)
        self._listing = asyncio.Lock()
        self._list: list[JobLine] = []
        self._listed_at = -LIST_EVERY_S
        self._runner: web.AppRunner | None = None
        self._server: LimitedServer | None = None
        self._orders: set[asyncio.Task[str]] = set()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen there; where exactly. Raises `OSError`."""
        self._names = LOOPBACK if host in LOOPBACK else LOOPBACK | {_named(host), socket.gethostname().lower()}
        self._any_address = is_any(host)
        document({})  # This reads its files now: later there may be no descriptor for them.
        app = web.Application(middlewares=[self._guarded], client_max_size=ORDER_BYTES_MAX)
        app.on_response_prepare.append(_add_headers)
        app.add_routes(
            [
                web.get("/", self._page),
                web.get("/job/{job}", self._page),
                web.get("/api/jobs", self._jobs),
                web.get("/api/job/{job}", self._job),
                web.get("/api/job/{job}/live", self._live, allow_head=False),
                web.get("/api/job/{job}/log/{process}", partial(self._ask, log)),
                web.get("/api/job/{job}/stacks/{process}", partial(self._ask, stacks)),
                web.post("/api/job/{job}/orders", self._order),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        own = self._runner.server
        assert own is not None
        self._server = LimitedServer(
            own.request_handler,
            LIMITS,
            partial(write_stderr_line, who=WHO),
            "an answer of the page",
            request_factory=own.request_factory,
        )
        return self._server.listen(host, port)

    async def close(self) -> None:
        """Listen no more, and hang up."""
        if self._server is not None:
            await self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- who may ask ------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = host_of(request.headers.get("Host", ""))  # The port may be another one, of a tunnel.
        if name not in self._names and not (self._any_address and as_ip(name) is not None):
            return refused(403, "this server does not answer under that name; use the address that it was told")
        if is_of_another_site(request.headers, document=not request.path.startswith("/api/")):
            return refused(403, "this server answers no page of another site")
        named = request.match_info.get("job", "")
        if named and (JOB_ID.fullmatch(named) is None or self._only not in ("", named)):
            return refused(404, "there is no such job here")
        try:
            return await handler(request)
        except web.HTTPException as error:
            return refused(error.status, error.reason)
        except StoreError as error:
            return refused(503, str(error))
        except ConfigError as error:
            return refused(400, str(error))
        except ElasticError as error:
            return refused(409, str(error))

    def _may_order(self, request: web.Request) -> str:
        """Why whoever asks may not give orders; "" if it may."""
        if not self._token:
            return "this page only looks; start elastic-ctl ui with --allow_orders"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode()):
            return "the token is missing or wrong; open the page with the address that elastic-ctl ui printed"
        if request.headers.get("Origin", "") != f"http://{request.headers.get('Host', '')}":
            return "an order must come from the page itself"
        if request.content_type != "application/json":
            return "an order is one JSON object"
        return ""

    # --- what is answered -------------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        job_id = request.match_info.get("job", self._only)
        made = document({"job": job_id, "orders": bool(self._token), "list": not self._only})
        policy = {"Content-Security-Policy": made.policy}
        return web.Response(body=made.html, content_type="text/html", charset="utf-8", headers=policy)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if self._only:
            raise web.HTTPNotFound(reason="this server shows one job")
        async with self._listing:  # Many who ask in the same moment get the same list.
            if time.monotonic() >= self._listed_at + LIST_EVERY_S:
                self._list = await jobs(self._feeds.store, self._feeds.key_prefix)
                self._listed_at = time.monotonic()
            return _json(200, {"jobs": self._list})

    async def _job(self, request: web.Request) -> web.StreamResponse:
        job_id = request.match_info["job"]
        if (nothing := await self._feeds.absence_document(job_id)) is not None:
            return _json(200, nothing)
        async with self._feeds.of(job_id) as live:
            while not live.sections and not live.over:
                await live.changed(live.version, QUIET_S)
            return web.Response(body=message(live.sections, {}), content_type="application/json")

    async def _live(self, request: web.Request) -> web.StreamResponse:
        """All sections, then those that change, as server-sent events, until the browser goes or is too slow."""
        job_id = request.match_info["job"]
        if (nothing := await self._feeds.absence_document(job_id)) is not None:
            return _once(nothing)
        if self._open >= BROWSERS_MAX:
            return _once({"full": f"{BROWSERS_MAX} pages are open already: close one, and this one goes on"})
        self._open += 1
        try:
            async with self._feeds.of(job_id) as live:
                assert self._server is not None
                self._server.keep_open(request)
                response = web.StreamResponse()
                response.content_type = STREAM
                await response.prepare(request)
                await self._feed(request, response, live)
                return response
        except TooManyJobs as error:
            return _once({"full": str(error)})
        finally:
            self._open -= 1

    async def _feed(self, request: web.Request, response: web.StreamResponse, live: JobFeed) -> None:
        known: Mapping[str, bytes] = {}
        if not live.sections:
            await live.changed(live.version, QUIET_S)
        while not live.over:
            version, sections = live.version, live.sections
            said = message(sections, known)
            try:
                async with asyncio.timeout(SLOW_S):
                    await response.write(b"data: " + said + b"\n\n")
            except (TimeoutError, ConnectionError):
                if request.transport is not None:
                    request.transport.abort()
                return
            known = sections
            await live.changed(version, QUIET_S)

    async def _ask(
        self, question: Callable[[NamedJob, str], Awaitable[dict[str, Any]]], request: web.Request
    ) -> web.StreamResponse:
        async with self._questions:
            job = self._feeds.job(request.match_info["job"])
            return _json(200, await question(job, request.match_info["process"]))

    async def _order(self, request: web.Request) -> web.StreamResponse:
        if why := self._may_order(request):
            return refused(403, why)
        try:
            async with asyncio.timeout(ORDER_S):
                order = await request.read()
        except TimeoutError:
            return refused(408, f"an order must be complete within {ORDER_S:g} s")
        job = self._feeds.job(request.match_info["job"])
        task = asyncio.create_task(carry_out(job, order), name="order")
        self._orders.add(task)  # A browser that goes meanwhile does not leave half of it done.
        task.add_done_callback(self._ordered)
        return _json(200, {"said": await asyncio.shield(task)})

    def _ordered(self, task: asyncio.Task[str]) -> None:
        self._orders.discard(task)
        if not task.cancelled():
            task.exception()  # If the browser is still there, it gets this.


def message(sections: Mapping[str, bytes], known: Mapping[str, bytes]) -> bytes:
    """The sections that are not known yet, as one JSON object in one line."""
    new = (f'"{name}":'.encode() + made for name, made in sections.items() if known.get(name) is not made)
    return b"{" + b",".join(new) + b"}"


def refused(status: int, why: str) -> web.Response:
    """Why there is no answer."""
    return _json(status, {"error": why})


def _once(sections: Mapping[str, object]) -> web.Response:
    """Have a page show this, and ask again."""
    said = b"retry: %d\ndata: %b\n\n" % (AGAIN_MS, msgspec.json.encode(sections))
    return web.Response(body=said, content_type=STREAM)


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _named(listens: str) -> str:
    """The host that a server listens at, as `host_of` writes it; a header never has the zone of an address."""
    host = listens.partition("%")[0]
    return str(as_ip(host) or host.lower())


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    """Every answer has these."""
    response.headers.update(
        {
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Server": "elastic-ctl",
        }
    )
