"""Follows a job in the store and wakes its reader at each change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self

from elastic.core.kv import KeyRange, KeyValue
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.errors import StoreError
from elastic.store.mirror import Mirror
from launcher.job.named_job import NamedJob


class JobWatch:
    """Follows one job; `view` is the newest state. During an outage of etcd, `outage` is its error, otherwise ""."""

    def __init__(
        self, job: NamedJob, tell: Callable[[str], object] = lambda _: None, ranges: Sequence[KeyRange] = ()
    ) -> None:
        """Read the current state when entered. `tell` gets a message when the store is unavailable, or back.

        With `ranges` it follows these ranges instead of the documents of a view: then the job need not exist (yet), or
        be of this version. `entries` are the keys and values there, None before the first listing.
        """
        self.view = StoreView()
        self.entries: Mapping[str, KeyValue] | None = None
        self.outage = ""
        self._job = job
        self._tell = tell
        self._ranges = ranges
        self._reader = ViewReader(job.keys)
        self._changed = asyncio.Event()
        self._mirror = Mirror(job.store, on_change=self._mirrored, on_outage=self._note_outage)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Read for the first time. Without ranges, raises `NoSuchJob`, and `StoreError` if the store is unavailable."""
        if not self._ranges:
            self.view = await self._job.view()
        self._mirror.follow(self._ranges or self._job.keys.everything)
        self._task = asyncio.create_task(self._mirror.run(), name="mirror")
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop following."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def changes(self, limit_s: float | None = None) -> bool:
        """Wait for a change since the last call, at most `limit_s` seconds; return whether there was one.

        Without ranges, raises `OtherSchema` if a job of another version has replaced it.
        """
        assert self._task is not None
        if self._task.done():
            self._task.result()  # Only a bug ends the task; raise it here.
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        if not self._ranges:
            self._job.check_schema(self.view)
        return True

    def _mirrored(self, mirror: Mirror) -> None:
        if mirror.listed:
            first = self._job.keys.generation
            documents = {key: entry for key, entry in mirror.entries.items() if key >= first}
            self.entries, self.view = mirror.entries, self._reader.read(documents, mirror.revision, complete=True)
            self._changed.set()

    def _note_outage(self, error: StoreError | None) -> None:
        self.outage = "" if error is None else str(error)
        self._tell("etcd answers again" if error is None else f"etcd does not answer ({error}); retrying")
        self._changed.set()
