"""One lease kept alive, its key looked after, and the words that say how that goes.

The session only reports. How long a silent store is borne, and what a lost lease means, is decided elsewhere.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from msgspec import Struct

from elastic.core.kv import KeyRange, Lease
from elastic.errors import StoreError
from elastic.store.protocol import Store

REFRESHES_PER_TTL = 4
"""So that three refreshes in a row may fail before the lease ends."""
PAUSE_S = (0.1, 0.3)
"""After a refresh that failed: a random time between these."""
READ_EVERY = 0.75
"""Of the TTL: a read of the key stands for no longer than this, also if nothing seems to have been written since. The
server that answers may lag behind: then it neither knows of a write nor shows it to the watch."""


class KeepaliveSucceeded(Struct, frozen=True):
    """The lease lives until at least `sent_at + ttl_s`. `sent_at` is the clock before the refresh was sent.

    `key_revision` is the modification revision that the session's key had after the refresh, 0 without one that hangs
    on this lease.
    """

    sent_at: float
    ttl_s: float
    key_revision: int


class KeepaliveFailing(Struct, frozen=True):
    """Refreshes began to fail. The lease may live on; a `KeepaliveSucceeded` says that it does."""

    error: StoreError


class LeaseLost(Struct, frozen=True):
    """The store no longer has the lease, and its keys are gone. The last event of a session."""

    reason: str


SessionEvent = KeepaliveSucceeded | KeepaliveFailing | LeaseLost


class Session:
    """Keeps `lease` alive while `run` runs."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        key: str,
        *,
        clock: Callable[[], float],
        on_event: Callable[[SessionEvent], None],
        on_failure: Callable[[StoreError], None] = lambda _: None,
        read_every: float = READ_EVERY,
        random_source: random.Random | None = None,
    ) -> None:
        """`clock` gives the times of the events; it must go on while the machine sleeps (CLOCK_BOOTTIME).

        `on_failure` hears of each refresh that fails; `KeepaliveFailing` tells of the first of a row alone.
        `read_every`: after this part of the TTL the next refresh reads the key in any case; 0 reads it each time.
        """
        self._store = store
        self._lease = lease
        self._key = key
        self._key_revision = 0
        self._read_every_s = read_every * lease.ttl_s
        self._read_revision = -1
        self._read_at = float("-inf")
        self._clock = clock
        self._on_event = on_event
        self._random = random_source or random.Random()
        self._on_failure = on_failure

    async def run(self) -> None:
        """Refresh every quarter of the TTL, until the lease is lost or this task is cancelled.

        The grant counts as the first one; the second comes after a random part of that time, so that nodes that came
        together do not refresh together for ever.
        A refresh that fails is followed by another one soon, for as long as it takes: `KeepaliveFailing` comes once, at
        the first of them. Errors that are not the store's are raised.

        A lease that lives says nothing of its key: somebody may have deleted it, and a watch may be deaf. So the key is
        read after a refresh if anything was written since it was read last, or that is long ago, and a refresh without
        an answer to that counts as failed.
        """
        silent = False
        await asyncio.sleep(self._random.uniform(0, self._lease.ttl_s / REFRESHES_PER_TTL))
        while True:
            sent_at = self._clock()
            try:
                answer = await self._store.refresh(self._lease.id)
                if answer.ttl_s > 0 and not self._knows(answer.revision, sent_at):
                    await self._read(sent_at)
            except StoreError as error:
                self._on_failure(error)
                if not silent:
                    silent = True
                    self._on_event(KeepaliveFailing(error))
                await asyncio.sleep(self._random.uniform(*PAUSE_S))
                continue
            if answer.ttl_s <= 0:
                self._on_event(LeaseLost(f"the store no longer has lease {self._lease.id:x}: it ended or was revoked"))
                return
            silent = False
            self._on_event(KeepaliveSucceeded(sent_at, answer.ttl_s, self._key_revision))
            await asyncio.sleep(max(0.0, sent_at + answer.ttl_s / REFRESHES_PER_TTL - self._clock()))

    def _knows(self, revision: int, now: float) -> bool:
        return revision == self._read_revision and now < self._read_at + self._read_every_s

    async def _read(self, now: float) -> None:
        listing = await self._store.list(KeyRange.key(self._key), keys_only=True)
        self._key_revision = next((one.mod_revision for one in listing.entries if one.lease == self._lease.id), 0)
        self._read_revision, self._read_at = listing.revision, now
