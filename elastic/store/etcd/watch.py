"""One watch on one server: a stream that delivers changes in order, or ends with an error.

etcd guarantees the order within one range. It also keeps the order of several ranges on a stream, except while a watch
catches up with the past. Changes that arrive together are therefore sorted; if a change is older than one that was
already delivered, the watch ends with `WatchLost`, and the reader lists again. Delivered changes are always in order.

A stream does not notice that its server is suspended. Its owner therefore ends it with `put(WatchLost(...))` as soon as
a request to that server is not answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from itertools import groupby
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.core.kv import NOW, KeyChange, KeyRange, WatchBatch
from elastic.errors import StoreError, StoreUnavailable, TooLarge, WatchLost
from elastic.store.etcd.codec import change, span
from elastic.store.etcd.endpoint import EtcdEndpoint
from elastic.store.etcd.errors import ErrorMeaning, answer_of, details, meaning, refusal, watch_end
from elastic.store.etcd.stubs import rpc

GATHER_S = 0.002
"""Seconds to wait for further messages: a revision that changes several ranges arrives in one message for each."""
RESPONSES_MAX = 10_000
"""The most unread messages of a slow reader. Beyond that the watch ends, and the reader lists again, at less cost."""

Metadata = Sequence[tuple[str, str]]


class WatchStream:
    """A watch over `ranges` (disjoint) from `from_revision` on (`NOW` is etcd's 0), at `endpoint`."""

    def __init__(
        self, endpoint: EtcdEndpoint, ranges: Sequence[KeyRange], from_revision: int, seen: int, create_limit_s: float
    ) -> None:
        """Store what to watch; `batches` opens the stream. `seen` is the highest revision seen before."""
        self.endpoint = endpoint
        self.broken = False
        """Whether the stream itself failed: the server closed it, or did not accept it in time."""
        self._ranges = tuple(ranges)
        self._from_revision = from_revision
        self._seen = seen
        self._create_limit_s = create_limit_s
        self._arrived: list[Any] = []
        """Responses, and finally the error that ends the watch."""
        self._any = asyncio.Event()

    def put(self, arrived: Any) -> None:
        """Queue a response, or an error that ends the watch."""
        self._arrived.append(arrived)
        self._any.set()

    async def _take(self) -> list[Any]:
        """Wait for responses, and return all that have arrived since the last call."""
        await self._any.wait()
        await asyncio.sleep(GATHER_S if len(self._ranges) > 1 else 0)
        self._any.clear()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def batches(
        self, metadata: Metadata, check: Callable[[], Awaitable[None]]
    ) -> AsyncGenerator[WatchBatch, None]:
        """Open the stream and yield one batch for each revision, after an empty one.

        If the server was behind `seen` when it accepted the watch, `check` is awaited; it raises if the server belongs
        to another store instead of only lagging.
        """
        call = self.endpoint.stub.Watch(metadata=metadata)
        pump = asyncio.create_task(self._pump(call), name=f"watch at {self.endpoint}")
        pump.add_done_callback(self._pumped)
        try:
            try:
                async with asyncio.timeout(self._create_limit_s):
                    await self._send(call)
                    held, revisions = await self._created()
            except TimeoutError:
                self.broken = True
                text = f"etcd at {self.endpoint} did not take the watch within {self._create_limit_s:g} s"
                raise StoreUnavailable(text) from None
            if min(revisions) < self._seen:
                await check()
            begins_after = max(revisions) if self._from_revision == NOW else self._from_revision - 1
            yield WatchBatch(begins_after, ())
            async with aclosing(self._deliver(held, begins_after)) as delivered:
                async for batch in delivered:
                    yield batch
        finally:
            call.cancel()
            pump.cancel()
            await asyncio.wait([pump])

    def _pumped(self, pump: asyncio.Task[None]) -> None:
        """Pass on an unexpected error, so that the reader does not wait forever."""
        if not pump.cancelled() and (error := pump.exception()) is not None:
            self.put(error)

    async def _send(self, call: Any) -> None:
        """Request a watch for every range; the pump reports an error, with its text."""
        for watched in self._ranges:
            request = rpc.WatchCreateRequest(start_revision=self._from_revision, **span(watched))
            with suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                await call.write(rpc.WatchRequest(create_request=request))

    async def _pump(self, call: Any) -> None:
        """Move responses to the queue until the stream ends, then the error that says how it ended.

        This is a separate task, because cancelling a pending read ends the stream.
        """
        try:
            while (response := await answer_of(call.read())) is not grpc.aio.EOF:
                if len(self._arrived) >= RESPONSES_MAX:
                    self.put(WatchLost(f"the reader of the watch is {RESPONSES_MAX} messages behind"))
                    return
                self.put(response)
            self.broken = True
            self.put(WatchLost(f"etcd at {self.endpoint} closed the watch"))
        except grpc.aio.AioRpcError as error:
            if meaning(error) is ErrorMeaning.REFUSED:
                refused = refusal(error, self.endpoint)
                # Many large changes at once do not fit into one response; a listing reads them in pages.
                self.put(WatchLost(str(refused)) if isinstance(refused, TooLarge) else refused)
            else:
                self.broken = True
                self.put(WatchLost(f"the watch at {self.endpoint} broke: {details(error)}"))

    def _opened(self, response: Any) -> Any:
        """Return a response; raise if it ends the watch."""
        if isinstance(response, BaseException):
            raise response
        if response.canceled:
            raise watch_end(response, self.endpoint)
        return response

    async def _created(self) -> tuple[list[Any], list[int]]:
        """Wait until the server has accepted every range; return early responses, and its revision for each range.

        The server first accepts a watch from a compacted revision and then cancels it; both arrive here or in
        `_deliver`.
        """
        held: list[Any] = []
        revisions: list[int] = []
        while len(revisions) < len(self._ranges):
            for arrived in await self._take():
                response = self._opened(arrived)
                if response.created:
                    revisions.append(response.header.revision)
                if response.events:
                    held.append(response)
        return held, revisions

    async def _deliver(self, held: list[Any], after: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield batches in the order of their revisions until an error ends it.

        Changes up to the revision `after` are dropped: in a watch from `NOW`, one range may begin a little sooner than
        another.
        """
        delivered = after
        responses = held
        while True:
            end: StoreError | None = None
            if not responses:
                responses = await self._take()
            changes: list[KeyChange] = []
            for response in responses:
                try:
                    events = map(change, self._opened(response).events)
                    changes += [each for each in events if each.entry.mod_revision > after]
                except StoreError as error:
                    end = error
                    break
            changes.sort(key=lambda each: each.entry.mod_revision)  # stable: the order within a revision stays
            if changes and changes[0].entry.mod_revision < delivered:
                raise WatchLost("changes came out of order")
            for revision, group in groupby(changes, key=lambda each: each.entry.mod_revision):
                delivered = revision
                yield WatchBatch(revision, tuple(group))
            if end is not None:
                raise end
            responses = []
