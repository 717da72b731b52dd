"""Writes and reads the history of a job in the store (`launcher.history.events`), at low priority."""

from __future__ import annotations

import asyncio
import time

from elastic.core.agent.actions import NoteSilence
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.transactions import Transaction
from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.history import events as history_events
from launcher.history.recovery import Recovery
from launcher.job.history import read_history
from launcher.logs.logger import AgentLog
from launcher.system.time_limit import wait_at_most

WAITING_MAX = 100
"""Events that wait while the store does not answer; further events are dropped."""

LOOK_AFTER_S = (0.0, 0.1, 0.3, 0.6)
"""Pauses before each attempt to read an event that another node writes: that node writes it at low priority."""


class HistoryWriter:
    """Queues events and writes them one by one. It never blocks its caller, and drops events if the queue is full."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        """`node` is the ID of this node, which its events name. `run` writes them."""
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._events: asyncio.Queue[history_events.HistoryEvent] = asyncio.Queue(WAITING_MAX)
        self.dropped = 0
        """The number of dropped events."""

    def add(self, transaction: Transaction) -> None:
        """Note a transaction that succeeded; a proposal becomes one or two events."""
        for event in history_events.events_of(self._keys, transaction, self._node, time.time()):
            self.note(event)

    def add_eviction(self, note: NoteSilence, g: int) -> None:
        """Note that this node has evicted a silent node from generation `g`."""
        self.note(history_events.of_eviction(note, g, self._node, time.time()))

    def note(self, event: history_events.HistoryEvent) -> None:
        """Note an event that is not a proposal."""
        try:
            self._events.put_nowait(event)
        except asyncio.QueueFull:
            self.dropped += 1

    async def run(self) -> None:
        """Write events as they come, with one listing of keys and one write for each."""
        while True:
            event = await self._events.get()
            try:
                listing = await self._store.list(KeyRange.prefix(self._keys.events), keys_only=True)
                present = sorted(entry.key for entry in listing.entries)
                await self._store.txn((), history_events.remember(self._keys, event, present))
            except StoreError as error:
                self._agent_log.debug(
                    f"cannot write the event of generation {event.g} ({event.what}) to the history: {error}"
                )
            finally:
                self._events.task_done()

    async def beginning(self, recovery: Recovery) -> history_events.HistoryEvent | None:
        """Return how a recovery of this node began, as another node noted it; None if it notes nothing in a second."""
        for pause_s in LOOK_AFTER_S:
            await asyncio.sleep(pause_s)
            try:
                events = await read_history(self._store, self._keys)
            except StoreError as error:
                self._agent_log.debug(f"cannot read the history: {error}")
                continue
            if (noted := history_events.beginning(events, recovery, self._node)) is not None:
                return noted
        return None

    async def settle(self, limit_s: float) -> None:
        """Wait until everything is written, or `limit_s` seconds have passed."""
        await wait_at_most(limit_s, self._events.join())
