"""A mirror that runs during a test, and ways to wait for what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from elastic.core.kv import KeyRange
from elastic.errors import StoreError
from elastic.store.mirror import Mirror
from elastic.store.protocol import Store

WAIT_LIMIT_S = 20.0


class Watched:
    """`async with Watched(store, prefix) as watched`: a running mirror; `until` waits for something to be so."""

    def __init__(self, store: Store, *prefixes: str, relist_every_s: float = 30.0) -> None:
        self.told = 0
        self.shown: dict[str, bytes] = {}
        """What was there when it was told last."""
        self.replaced = 0
        """How often it went back to an older revision: another store answered."""
        self._revision = 0
        self.outages: list[StoreError | None] = []
        self._changed = asyncio.Event()
        self.mirror = Mirror(store, on_change=self._on_change, on_outage=self._on_outage, relist_every_s=relist_every_s)
        self.mirror.follow([KeyRange.prefix(prefix) for prefix in prefixes])
        self._task: asyncio.Task[None] | None = None

    def _on_change(self, mirror: Mirror) -> None:
        assert mirror is self.mirror
        self.told += 1
        self.shown = self.values
        self.replaced += mirror.revision < self._revision
        self._revision = mirror.revision
        self._changed.set()

    def _on_outage(self, error: StoreError | None) -> None:
        self.outages.append(error)
        self._changed.set()

    @property
    def values(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in self.mirror.entries.items()}

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_LIMIT_S):
            while not holds():
                assert self._task is not None
                self._changed.clear()
                waiting = asyncio.create_task(self._changed.wait())
                await asyncio.wait({self._task, waiting}, return_when=asyncio.FIRST_COMPLETED)
                if self._task.done():
                    self._task.result()

    async def __aenter__(self) -> Watched:
        self._task = asyncio.create_task(self.mirror.run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait([self._task])
