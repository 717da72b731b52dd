"""A session reports: refreshed, silent, lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from elastic.core.kv import Delete, KeyRange, Lease, Listing, Put, RefreshResult
from elastic.errors import StoreUnavailable
from elastic.store import session
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from elastic.store.session import KeepaliveFailed, KeepaliveSucceeded, LeaseLost, SessionEvent, keep_alive
from tests.support.store_bench import Bench

KEY = "/elastic/j/members/a"


class SilentStore(MemoryStore):
    """A store that does not answer refreshes while `silent`."""

    silent = False

    async def refresh(self, lease_id: int) -> RefreshResult:
        if self.silent:
            raise StoreUnavailable("nobody is there")
        return await super().refresh(lease_id)


def test_a_session_keeps_its_lease_and_tells_when_each_refresh_was_sent(bench: Bench) -> None:
    async def run() -> None:
        store = bench.client()
        lease = await store.grant(bench.lease_s)
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        keeping_alive = keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.put_nowait)
        began = time.monotonic()
        running = asyncio.create_task(keeping_alive)
        seen = [await events.get() for _ in range(6)]
        assert time.monotonic() - began >= lease.ttl_s * 5 / 4 - 0.05
        sent = [event.sent_at for event in seen if isinstance(event, KeepaliveSucceeded) and event.ttl_s == lease.ttl_s]
        assert len(sent) == 6
        assert all(later - sooner > lease.ttl_s / 5 for sooner, later in pairwise(sent))
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await store.close()

    asyncio.run(run())


def test_a_session_whose_lease_was_revoked_says_that_it_is_lost_and_ends(bench: Bench) -> None:
    async def run() -> None:
        store, other = bench.client(), bench.client()
        lease = await store.grant(bench.lease_s)
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        running = asyncio.create_task(keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.put_nowait))
        assert isinstance(await events.get(), KeepaliveSucceeded)
        await other.revoke(lease.id)
        await running
        *_, last = [events.get_nowait() for _ in range(events.qsize())]
        assert isinstance(last, LeaseLost)
        assert f"{lease.id:x}" in last.reason
        await store.close()
        await other.close()

    asyncio.run(run())


def test_each_refresh_that_a_silent_store_does_not_answer_is_reported_and_so_is_its_return() -> None:
    async def run() -> None:
        store = SilentStore(MemoryCore(), time.monotonic)
        lease = await store.grant(60)
        store.silent = True
        events: list[SessionEvent] = []
        heard = asyncio.Event()

        def hear(event: SessionEvent) -> None:
            events.append(event)
            heard.set()

        running = asyncio.create_task(keep_alive(store, lease, KEY, clock=time.monotonic, on_event=hear))
        await heard.wait()
        await asyncio.sleep(0.5)  # several refreshes fail meanwhile
        assert len(events) > 1
        assert all(isinstance(event, KeepaliveFailed) for event in events)
        heard.clear()
        store.silent = False
        await heard.wait()
        assert isinstance(events[-1], KeepaliveSucceeded)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())


def test_a_refresh_tells_which_key_hangs_on_the_lease_as_the_store_has_it(bench: Bench) -> None:
    async def run() -> None:
        store, other = bench.client(), bench.client()
        lease = await store.grant(bench.lease_s)
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        running = asyncio.create_task(keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.put_nowait))

        async def told(key_revision: int) -> None:
            while True:
                event = await events.get()
                assert isinstance(event, KeepaliveSucceeded)
                if event.key_revision == key_revision:
                    return

        await told(0)
        for value, lease_id in ((b"", lease.id), (b"damaged", lease.id), (b"taken", 0)):
            written = await other.txn((), (Put(KEY, value, lease_id),))
            await told(written.revision if lease_id else 0)
        running.cancel()
        await asyncio.wait([running])
        await store.close()
        await other.close()

    asyncio.run(run())


TTL_S = 0.02


class Lagging(MemoryStore):
    """A refresh waits until it may, and takes a quarter of `TTL_S`; with `lags` it shows no later revision."""

    lags: int | None = None
    reads = 0
    now = 0.0

    def __init__(self) -> None:
        super().__init__(MemoryCore(), time.monotonic)
        self.may = asyncio.Semaphore(0)

    async def refresh(self, lease_id: int) -> RefreshResult:
        await self.may.acquire()
        kept = msgspec.structs.replace(await super().refresh(lease_id), ttl_s=TTL_S)
        self.now += TTL_S / 4
        return kept if self.lags is None else msgspec.structs.replace(kept, revision=self.lags)

    async def leased(self) -> Lease:
        return msgspec.structs.replace(await self.grant(60), ttl_s=TTL_S)

    async def list(self, *arguments: Any, **options: Any) -> Listing:
        self.reads += 1
        return await super().list(*arguments, **options)


async def refreshes(store: Lagging, events: asyncio.Queue[SessionEvent], count: int) -> list[int]:
    """The revisions of the key that so many refreshes tell."""
    for _ in range(count):
        store.may.release()
    seen = [await events.get() for _ in range(count)]
    return [event.key_revision for event in seen if isinstance(event, KeepaliveSucceeded)]


def test_the_key_is_read_when_something_was_written_and_else_with_every_third_refresh() -> None:
    async def run() -> None:
        store = Lagging()
        lease = await store.leased()
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        running = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=lambda: store.now, on_event=events.put_nowait)
        )
        written = await store.txn((), (Put(KEY, b"", lease.id),))
        assert await refreshes(store, events, 9) == [written.revision] * 9
        assert store.reads == 3
        await store.txn((), (Put("/other", b"", 0),))
        await refreshes(store, events, 1)
        await store.txn((), (Put("/other", b"", 0),))
        await refreshes(store, events, 1)
        assert store.reads == 5
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())


@pytest.mark.parametrize(("read_every", "late"), [(0.75, 2), (0.0, 0)])
def test_a_key_that_is_deleted_is_missed_also_where_the_server_lags_behind(read_every: float, late: int) -> None:
    async def run() -> None:
        store = Lagging()
        lease = await store.leased()
        written = await store.txn((), (Put(KEY, b"", lease.id),))
        store.lags = written.revision
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        running = asyncio.create_task(
            keep_alive(store, lease, KEY, clock=lambda: store.now, on_event=events.put_nowait, read_every=read_every)
        )
        assert await refreshes(store, events, 1) == [written.revision]
        await store.txn((), (Delete(KeyRange.key(KEY)),))
        assert await refreshes(store, events, 1 + late) == [written.revision] * late + [0]
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())


def test_a_refresh_whose_key_cannot_be_read_is_none() -> None:
    class Mute(MemoryStore):
        """It refreshes, and reads nothing."""

        async def list(self, *arguments: Any, **options: Any) -> Listing:
            raise StoreUnavailable("nobody reads")

    async def run() -> None:
        store = Mute(MemoryCore(), time.monotonic)
        lease = msgspec.structs.replace(await store.grant(60), ttl_s=TTL_S)
        events: asyncio.Queue[SessionEvent] = asyncio.Queue()
        running = asyncio.create_task(keep_alive(store, lease, KEY, clock=time.monotonic, on_event=events.put_nowait))
        assert isinstance(await events.get(), KeepaliveFailed)
        running.cancel()
        await asyncio.wait([running])

    asyncio.run(run())


class Counted(MemoryStore):
    """Each refresh waits for a turn; it tells when one comes in, and fails while `fails`."""

    fails = False

    def __init__(self) -> None:
        super().__init__(MemoryCore(), time.monotonic)
        self.turn = asyncio.Semaphore(0)
        self.came = asyncio.Semaphore(0)

    async def refresh(self, lease_id: int) -> RefreshResult:
        self.came.release()
        await self.turn.acquire()
        if self.fails:
            raise StoreUnavailable("nobody is there")
        return await super().refresh(lease_id)


async def begun(
    store: MemoryStore, refresh_now: asyncio.Event, on_event: Callable[[SessionEvent], None]
) -> asyncio.Task[None]:
    """A session whose next refresh is hours away, unless it is requested."""
    lease = await store.grant(86_400)
    return asyncio.create_task(
        keep_alive(store, lease, KEY, clock=time.monotonic, on_event=on_event, refresh_now=refresh_now)
    )


async def cancelled(running: asyncio.Task[None]) -> None:
    """Cancel it; an error of its own is raised."""
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def refreshed_on_request(
    story: Callable[[Counted, asyncio.Event, asyncio.Queue[SessionEvent]], Awaitable[None]],
) -> None:
    store, refresh_now = Counted(), asyncio.Event()
    events: asyncio.Queue[SessionEvent] = asyncio.Queue()
    running = await begun(store, refresh_now, events.put_nowait)
    await story(store, refresh_now, events)
    await cancelled(running)


def test_a_session_refreshes_on_request_at_once_and_then_waits_again() -> None:
    async def story(store: Counted, refresh_now: asyncio.Event, events: asyncio.Queue[SessionEvent]) -> None:
        for _ in range(3):
            before = time.monotonic()
            refresh_now.set()
            store.turn.release()
            event = await events.get()
            assert isinstance(event, KeepaliveSucceeded)
            assert event.sent_at >= before, "it was sent after it was asked for"
            assert not refresh_now.is_set()
        assert store.came._value == 3

    asyncio.run(refreshed_on_request(story))


def test_a_session_refreshes_on_request_once_however_often_it_is_asked() -> None:
    async def story(store: Counted, refresh_now: asyncio.Event, events: asyncio.Queue[SessionEvent]) -> None:
        for _ in range(5):
            refresh_now.set()
        for _ in range(5):
            store.turn.release()
        await events.get()
        await rounds()
        assert (store.came._value, events.qsize()) == (1, 0)

    asyncio.run(refreshed_on_request(story))


def test_a_request_during_a_refresh_is_followed_by_another_one_at_once() -> None:
    async def story(store: Counted, refresh_now: asyncio.Event, events: asyncio.Queue[SessionEvent]) -> None:
        refresh_now.set()
        await store.came.acquire()
        asked_at = time.monotonic()
        refresh_now.set()
        store.turn.release()
        first = await events.get()
        await store.came.acquire()
        store.turn.release()
        second = await events.get()
        assert isinstance(first, KeepaliveSucceeded)
        assert isinstance(second, KeepaliveSucceeded)
        assert first.sent_at <= asked_at <= second.sent_at
        await rounds()
        assert events.empty()

    asyncio.run(refreshed_on_request(story))


def test_a_request_does_not_end_the_pause_after_a_refresh_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a short one, and a store that fails is asked no more often than that."""
    monkeypatch.setattr(session, "PAUSE_S", (3600.0, 3600.0))

    async def story(store: Counted, refresh_now: asyncio.Event, events: asyncio.Queue[SessionEvent]) -> None:
        store.fails = True
        refresh_now.set()
        store.turn.release()
        assert isinstance(await events.get(), KeepaliveFailed)
        refresh_now.set()
        store.turn.release()
        await rounds()
        assert (store.came._value, events.qsize()) == (1, 0)

    asyncio.run(refreshed_on_request(story))


def test_a_request_while_the_store_fails_is_served_by_the_next_refresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PAUSE_S", (0.0, 0.0))

    async def story(store: Counted, refresh_now: asyncio.Event, events: asyncio.Queue[SessionEvent]) -> None:
        store.fails = True
        refresh_now.set()
        for _ in range(3):
            await store.came.acquire()
            refresh_now.set()
            store.turn.release()
            assert isinstance(await events.get(), KeepaliveFailed)
        await store.came.acquire()
        store.fails = False
        store.turn.release()
        assert isinstance(await events.get(), KeepaliveSucceeded)
        await rounds()
        assert (store.came._value, events.qsize()) == (0, 0)

    asyncio.run(refreshed_on_request(story))


def test_a_session_can_be_cancelled_during_an_early_refresh() -> None:
    async def run() -> None:
        store, refresh_now, events = Counted(), asyncio.Event(), list[SessionEvent]()
        running = await begun(store, refresh_now, events.append)
        refresh_now.set()
        await store.came.acquire()
        refresh_now.set()
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        assert not events

    asyncio.run(run())


async def rounds() -> None:
    """What can be done is done."""
    for _ in range(20):
        await asyncio.sleep(0)
