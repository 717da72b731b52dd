"""A job as it changes in the store: whoever follows it wakes up when something did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.errors import StoreError
from elastic.store.mirror import Mirror
from launcher.job.named_job import NamedJob


class JobWatch:
    """`view` is the newest one. A store that is away is outlived; `trouble` says why it is, "" while it is not."""

    def __init__(self, job: NamedJob, tell: Callable[[str], object] = lambda _: None) -> None:
        """Begin with what stands there now, when entered. `tell` hears in a line that the store is away, or back."""
        self.view = StoreView()
        self.trouble = ""
        self._job = job
        self._tell = tell
        self._reader = ViewReader(job.keys)
        self._changed = asyncio.Event()
        self._mirror = Mirror(job.store, on_change=self._mirrored, on_trouble=self._troubled)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Look for the first time. Raises `NoSuchJob`, and `StoreError` if the store does not answer."""
        self.view = await self._job.view()
        self._mirror.follow(self._job.keys.everything)
        self._task = asyncio.create_task(self._mirror.run(), name="mirror")
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Follow no more."""
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait({self._task})

    async def changes(self, limit_s: float | None = None) -> bool:
        """Wait until something has changed since the last call, at most so long; whether it has.

        Raises `OtherSchema` where another job has taken its place, of another version.
        """
        assert self._task is not None
        if self._task.done():
            self._task.result()  # Only a mistake of ours ends it, and is raised here.
        try:
            async with asyncio.timeout(limit_s):
                await self._changed.wait()
        except TimeoutError:
            return False
        self._changed.clear()
        self._job.check_schema(self.view)
        return True

    def _mirrored(self, mirror: Mirror) -> None:
        if mirror.listed:
            self.view = self._reader.read(mirror.entries, mirror.revision, complete=True)
            self._changed.set()

    def _troubled(self, error: StoreError | None) -> None:
        self.trouble = "" if error is None else str(error)
        self._tell("etcd answers again" if error is None else f"etcd does not answer ({error}); trying again")
        self._changed.set()
