"""Metadata servers on loopback that behave as the three clouds document theirs; a test says what they announce."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from tests.support.awaited_events import Happenings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def utc(at: float) -> str:
    """Unix time as AWS writes it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(at))


class Metadata:
    """A server; `asked` are the requests so far, as `METHOD /path`."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.told = Happenings()
        """Of each request."""
        self.endpoint = ""
        self.replacement: Handler | None = None
        """What answers everything, instead of the cloud."""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        raise NotImplementedError

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path_qs}")
        self.told.changed()
        return await (self.replacement or self.answer)(request)

    @contextlib.asynccontextmanager
    async def serve(self) -> AsyncIterator[Metadata]:
        """Listen on a port that the kernel chooses."""
        app = web.Application()
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.endpoint = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await runner.cleanup()


class Aws(Metadata):
    """IMDSv2: a token by PUT with its time to live, 401 without one that counts, 404 where there is nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: set[str] = set()
        self.refuses_tokens = False
        self.needs_tokens = True
        self.action: dict[str, str] | None = None
        self.rebalance: dict[str, str] | None = None

    def takes(self, left_s: float, action: str = "terminate") -> None:
        """The machine goes in so many seconds."""
        self.action = {"action": action, "time": utc(time.time() + left_s)}

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.path == "/latest/api/token":
            ttl = request.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
            if request.method != "PUT" or not ttl.isdigit() or not 1 <= int(ttl) <= 21_600:
                return web.Response(status=400)
            if self.refuses_tokens:
                return web.Response(status=403)
            token = secrets.token_urlsafe(40) + "=="
            self.tokens.add(token)
            return web.Response(text=token, headers={"X-aws-ec2-metadata-token-ttl-seconds": ttl})
        if self.needs_tokens and request.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            return web.Response(status=401)
        found = {
            "/latest/meta-data/spot/instance-action": self.action,
            "/latest/meta-data/events/recommendations/rebalance": self.rebalance,
        }.get(request.path)
        if found is None:
            return web.Response(status=404, text="<html>404 - Not Found</html>")
        return web.json_response(found)


class Google(Metadata):
    """Values with etags; a request that waits for a change hangs until there is one, or its time is over."""

    def __init__(self) -> None:
        super().__init__()
        self._values = {"preempted": "FALSE", "maintenance-event": "NONE"}
        self._changed = asyncio.Event()

    def says(self, name: str, value: str) -> None:
        """A value changes, and every request that waits is answered."""
        self._values[name] = value
        self._changed.set()
        self._changed = asyncio.Event()

    async def heard(self, name: str, nodes: int) -> None:
        """Wait until so many nodes have heard the value as it is now, which has just changed."""
        before, asks = len(self.asked), f"last_etag={self._etag(name)}"
        await self.told.until(lambda: sum(asks in one for one in self.asked[before:]) >= nodes, f"{name} was heard")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Metadata-Flavor") != "Google":
            return web.Response(status=403)
        name = request.path.removeprefix("/computeMetadata/v1/instance/")
        if name not in self._values:
            return web.Response(status=404)
        if request.query.get("wait_for_change") == "true":
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(float(request.query.get("timeout_sec", "3600"))):
                    while request.query.get("last_etag") in ("", None, self._etag(name)):
                        await self._changed.wait()
        headers = {"Metadata-Flavor": "Google", "ETag": self._etag(name)}
        return web.Response(text=self._values[name], headers=headers, content_type="application/text")

    def _etag(self, name: str) -> str:
        return f"{name}{self._values[name]}".encode().hex()


class Azure(Metadata):
    """The name of the machine, and events of all machines around it; the first answer with events may be late."""

    def __init__(self, name: str = "trainer_3") -> None:
        super().__init__()
        self.name = name
        self.events: list[dict[str, Any]] = []
        self.first_s = 0.0

    def plans(self, kind: str, *names: str, left_s: float | None = 30.0) -> None:
        """An event for these machines; without a time it has begun."""
        self.events.append(
            {
                "EventId": secrets.token_hex(8),
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": list(names),
                "EventStatus": "Scheduled" if left_s is not None else "Started",
                "NotBefore": email.utils.formatdate(time.time() + left_s, usegmt=True) if left_s is not None else "",
                "Description": "",
                "EventSource": "Platform",
                "DurationInSeconds": -1,
            }
        )

    async def answer(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Metadata") != "true" or "api-version" not in request.query:
            return web.json_response({"error": "Bad request"}, status=400)
        if request.path == "/metadata/instance/compute/name":
            return web.Response(text=self.name)
        if request.path != "/metadata/scheduledevents" or request.method != "GET":
            return web.Response(status=404)
        await asyncio.sleep(self.first_s)
        self.first_s = 0.0
        document = {"DocumentIncarnation": len(self.events), "Events": self.events}
        return web.Response(body=json.dumps(document).encode(), content_type="application/json")
