"""Keeps one lease alive, checks its key, and reports events.

This module only reports. The agent's core decides how long it tolerates a silent store, and what a lost lease means.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress

from msgspec import Struct

from elastic.core.kv import KeyRange, Lease
from elastic.errors import StoreError
from elastic.store.protocol import Store

REFRESHES_PER_TTL = 4
"""Three refreshes in a row may fail before the lease ends."""
PAUSE_S = (0.1, 0.3)
"""Bounds of the random pause after a failed refresh."""
READ_EVERY = 0.75
"""The fraction of the TTL after which the key is read again, even if no write seems to have happened. The server that
answers may lag behind: then it neither knows of a write nor shows it to the watch."""


class KeepaliveSucceeded(Struct, frozen=True):
    """The lease is valid until at least `sent_at + ttl_s`. `sent_at` is the clock before the refresh was sent.

    `key_revision` is the mod revision of the session's key after the refresh, 0 if no such key has this lease.
    """

    sent_at: float
    ttl_s: float
    key_revision: int


class KeepaliveFailed(Struct, frozen=True):
    """A refresh failed. The lease may still be valid; a later `KeepaliveSucceeded` confirms that."""

    error: StoreError


class LeaseLost(Struct, frozen=True):
    """The store no longer has the lease or its keys. The last event of a session."""

    reason: str


SessionEvent = KeepaliveSucceeded | KeepaliveFailed | LeaseLost


async def keep_alive(
    store: Store,
    lease: Lease,
    key: str,
    *,
    clock: Callable[[], float],
    on_event: Callable[[SessionEvent], None],
    refresh_now: asyncio.Event | None = None,
    read_every: float = READ_EVERY,
    random_source: random.Random | None = None,
) -> None:
    """Refresh `lease` every quarter of its TTL, until it is lost or this task is cancelled.

    The grant counts as the first refresh. The second follows after a random part of the interval, so that nodes that
    start together do not keep refreshing together. A failed refresh is repeated soon, for as long as necessary. Errors
    other than the store's are raised.

    A valid lease says nothing about its key: another client may have deleted it, and a watch may have stopped
    delivering. So the key is read after a refresh if anything was written since the last read, or if that was long ago;
    if this read fails, the refresh counts as failed.

    When `refresh_now` is set, the next refresh is sent immediately, or as soon as the current one has ended.

    `clock` returns the times of the events; it must advance while the machine sleeps (CLOCK_BOOTTIME). `read_every`:
    the fraction of the TTL after which the next refresh reads the key in any case; 0 reads it each time.
    """
    uniform = (random_source or random.Random()).uniform
    key_revision, read_revision, read_at = 0, -1, float("-inf")
    refresh_now = refresh_now or asyncio.Event()
    await _pause(uniform(0, lease.ttl_s / REFRESHES_PER_TTL), refresh_now)
    while True:
        refresh_now.clear()
        sent_at = clock()
        try:
            answer = await store.refresh(lease.id)
            unread = answer.revision != read_revision or sent_at >= read_at + read_every * lease.ttl_s
            if answer.ttl_s > 0 and unread:
                listing = await store.list(KeyRange.key(key), keys_only=True)
                key_revision = next((entry.mod_revision for entry in listing.entries if entry.lease == lease.id), 0)
                read_revision, read_at = listing.revision, sent_at
        except StoreError as error:
            on_event(KeepaliveFailed(error))
            await asyncio.sleep(uniform(*PAUSE_S))
            continue
        if answer.ttl_s <= 0:
            on_event(LeaseLost(f"the store no longer has lease {lease.id:x}: it ended or was revoked"))
            return
        on_event(KeepaliveSucceeded(sent_at, answer.ttl_s, key_revision))
        await _pause(max(0.0, sent_at + answer.ttl_s / REFRESHES_PER_TTL - clock()), refresh_now)


async def _pause(seconds: float, refresh_now: asyncio.Event) -> None:
    """Wait these seconds, or until `refresh_now` is set."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await refresh_now.wait()
