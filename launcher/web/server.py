"""Serves the dashboard to browsers: the document, live updates, logs, stack traces and, with the token, actions.

Pages of other origins get nothing. The header `Host` must be a name or address that this server listens under, so DNS
rebinding fails; requests that a browser marks as those of another site are rejected (`launcher.web.request_origin`);
no response allows another origin to read it; an action needs the token and this server's `Origin`. The limits on
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
from launcher.web.api import ACTION_BYTES_MAX, carry_out, log, stacks
from launcher.web.html import document
from launcher.web.job_feed import JobFeed, JobFeeds, TooManyJobs
from launcher.web.request_origin import LOOPBACK, host_of, is_of_another_site

LIMITS: Final = ServerLimits(
    connections=64,  # In addition to open pages: a browser has six to one server, and few requests.
    header_s=5.0,  # Browsers connect ahead of a click, and reconnect if the server has closed the connection meanwhile.
    answer_s=60.0,  # The stack traces of a worker can take half of that.
    line_bytes=8190,
    field_bytes=8190,  # Browsers send the cookies of all other servers on localhost.
    fields=64,
)
ACTION_S: Final = 5.0
"""From the header of an action to the end of its body."""
BROWSERS_MAX: Final = 16
"""Pages that are open at the same time, each with live updates."""
SLOW_S: Final = 10.0
"""A browser that reads nothing for this time is disconnected; a page that is still open reconnects."""
LIST_EVERY_S: Final = 2.0
"""The list of all jobs is read at most once in this time."""
QUIET_S: Final = 10.0
"""Interval of heartbeats to a page while nothing changes."""
QUESTIONS_MAX: Final = 8
"""Requests for logs and stack traces that are served at the same time."""
STREAM: Final = "text/event-stream"
AGAIN_MS: Final = 2000
"""A page without a place, or without a job, retries after this time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class PageServer:
    """Listens until it is closed."""

    def __init__(self, feeds: JobFeeds, only: str, token: str) -> None:
        """`only`: serve this job alone; `token`: allow actions with it, "" for none."""
        self._feeds = feeds
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
        self._actions: set[asyncio.Task[str]] = set()

    async def open(self, host: str, port: int) -> tuple[str, int]:
        """Listen; return the address and the port. Raises `OSError`."""
        self._names = LOOPBACK if host in LOOPBACK else LOOPBACK | {_named(host), socket.gethostname().lower()}
        self._any_address = is_any(host)
        document({})  # Read its files now: later the process may have no descriptor left.
        app = web.Application(middlewares=[self._guarded], client_max_size=ACTION_BYTES_MAX)
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
                web.post("/api/job/{job}/actions", self._act),
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
            "a response of the page",
            request_factory=own.request_factory,
        )
        return self._server.listen(host, port)

    async def close(self) -> None:
        """Stop listening, and close all connections."""
        if self._server is not None:
            await self._server.close()
        if self._runner is not None:
            await self._runner.cleanup()

    # --- access -----------------------------------------------------------------------------------------------------

    @web.middleware
    async def _guarded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = host_of(request.headers.get("Host", ""))  # The port may be that of a tunnel.
        if name not in self._names and not (self._any_address and as_ip(name) is not None):
            return refused(403, "this server does not answer under that name; use the one that elastic-ctl ui printed")
        if is_of_another_site(request.headers, document=not request.path.startswith("/api/")):
            return refused(403, "this server rejects requests of other sites")
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

    def _why_not_allowed(self, request: web.Request) -> str:
        """Return why a request may not act; "" if it may."""
        if not self._token:
            return "this page is read-only; start elastic-ctl ui with --allow-actions"
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(errors="surrogateescape"), self._token.encode()):
            return "the token is missing or wrong; open the page with the address that elastic-ctl ui printed"
        if request.headers.get("Origin", "") != f"http://{request.headers.get('Host', '')}":
            return "an action must come from the page itself"
        if request.content_type != "application/json":
            return "an action must be a JSON object"
        return ""

    # --- responses --------------------------------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.StreamResponse:
        job_id = request.match_info.get("job", self._only)
        made = document({"job": job_id, "actions": bool(self._token), "list": not self._only})
        policy = {"Content-Security-Policy": made.policy}
        return web.Response(body=made.html, content_type="text/html", charset="utf-8", headers=policy)

    async def _jobs(self, request: web.Request) -> web.StreamResponse:
        if self._only:
            raise web.HTTPNotFound(reason="this server shows a single job")
        async with self._listing:  # Simultaneous requests get the same list.
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
        """Send all sections, then those that change, as server-sent events, until the browser leaves or is too slow."""
        job_id = request.match_info["job"]
        if (nothing := await self._feeds.absence_document(job_id)) is not None:
            return _once(nothing)
        if self._open >= BROWSERS_MAX:
            return _once({"full": f"{BROWSERS_MAX} pages are open already: close one, and this page connects"})
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

    async def _act(self, request: web.Request) -> web.StreamResponse:
        if why := self._why_not_allowed(request):
            return refused(403, why)
        try:
            async with asyncio.timeout(ACTION_S):
                action = await request.read()
        except TimeoutError:
            return refused(408, f"an action must be complete within {ACTION_S:g} s")
        job = self._feeds.job(request.match_info["job"])
        task = asyncio.create_task(carry_out(job, action), name="action")
        self._actions.add(task)  # It completes even if the browser leaves meanwhile.
        task.add_done_callback(self._action_done)
        return _json(200, {"said": await asyncio.shield(task)})

    def _action_done(self, task: asyncio.Task[str]) -> None:
        self._actions.discard(task)
        if not task.cancelled():
            task.exception()  # A browser that is still connected has received it.


def message(sections: Mapping[str, bytes], known: Mapping[str, bytes]) -> bytes:
    """Return the sections that differ from `known`, as one JSON object in one line."""
    new = (f'"{name}":'.encode() + made for name, made in sections.items() if known.get(name) is not made)
    return b"{" + b",".join(new) + b"}"


def refused(status: int, why: str) -> web.Response:
    """Return a response with an error message."""
    return _json(status, {"error": why})


def _once(sections: Mapping[str, object]) -> web.Response:
    """Send a page these sections once; it retries after `AGAIN_MS`."""
    said = b"retry: %d\ndata: %b\n\n" % (AGAIN_MS, msgspec.json.encode(sections))
    return web.Response(body=said, content_type=STREAM)


def _json(status: int, value: object) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(value), content_type="application/json")


def _named(listens: str) -> str:
    """The host that a server listens on, as `host_of` writes it; a header never has the zone of an address."""
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
