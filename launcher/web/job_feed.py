"""A job as it changes, for everybody who looks at its page: one watch of the store, one asker of the nodes.

Nothing is written by looking. When nobody looks any more, nothing is read.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange, KeyValue
from elastic.core.view import StoredDocument, StoreView
from elastic.errors import ElasticError, StoreError
from elastic.store.protocol import Store
from launcher.history import events as history_events
from launcher.history import training_curve
from launcher.history.job_report import build_report
from launcher.job import status
from launcher.job.named_job import NamedJob, other_schema
from launcher.job.overview import JobOverview, overview_of
from launcher.job.watch import JobWatch
from launcher.system.time_limit import wait_at_most
from launcher.web.page_data import newest_point, sections, with_live_points

ASK_EVERY_S: Final = 2.0
"""So often the nodes are asked how they stand, while somebody looks; many nodes less often."""
NODES_PER_S: Final = 16.0
PACE_S: Final = 0.2
"""Changes that come faster are told together."""
FOLLOWED_MAX: Final = 32
"""Jobs that are followed at the same time."""
LINGER_S: Final = 10.0
"""So long a job is followed on when nobody looks: a page that is loaded again finds it there."""


LISTINGS_MAX: Final = 8
"""Jobs that are looked for in the store at the same time, before they are followed."""


class TooManyJobs(ElasticError):
    """More jobs are looked at than one server follows. Close a page, or start another server."""


class JobFeed:
    """`sections` are those of `launcher.web.page_data`, as JSON; who has shown them waits for another `version`.

    With them are `trouble` (the store is away, since when and why) and `absent` (why there is nothing to show).
    """

    def __init__(self, job: NamedJob) -> None:
        """Nothing is known before `run`."""
        self.job = job
        self.sections: dict[str, bytes] = {}
        self.version = 0
        self.over = False
        """Nothing comes any more."""
        self._history = _MirroredHistory(job.keys)
        self._seen = training_curve.TrainingCurve()
        self._overview: JobOverview | None = None
        self._trouble: dict[str, object] | None = None
        self._there: bool | None = None
        self._incarnation: StoredDocument[str] | None = None
        """Of the job that was shown last."""
        self._changed = asyncio.Event()
        ranges = (*job.keys.everything, KeyRange.prefix(job.keys.events), KeyRange.key(job.keys.course))
        self._watch = JobWatch(job, ranges=ranges)

    @property
    def view(self) -> StoreView:
        """What the store says."""
        return self._watch.view

    async def run(self) -> None:
        """Follow the job until cancelled."""
        try:
            async with self._watch:
                await self._publish_loop()
        finally:
            self.over = True
            self.version += 1
            self._changed.set()

    async def changed(self, version: int, limit_s: float) -> None:
        """Wait until there is another version than this one, at most so long."""
        if self.version == version:
            await wait_at_most(limit_s, self._changed.wait())

    async def _publish_loop(self) -> None:
        asked_at = -ASK_EVERY_S
        while True:
            self._take()
            if self._there:
                self._show(status.describe(self.view, self.job.job_id))
                clock = asyncio.get_running_loop().time
                if self.view.verdict is None and clock() >= asked_at + self._ask_every_s:
                    of = self.view.incarnation
                    overview = await overview_of(self.job, self.view)
                    if self.view.incarnation == of:  # It may be another job by now.
                        self._overview = overview
                        self._note(overview)
                    self._show(status.describe(self.view, self.job.job_id))
                    asked_at = clock()
            elif self._there is False or self._trouble is not None:
                self._publish({})
            await asyncio.sleep(PACE_S)
            limit_s = self._ask_every_s - PACE_S if self._there and self.view.verdict is None else None
            await self._watch.changes(limit_s)

    @property
    def _ask_every_s(self) -> float:
        return max(ASK_EVERY_S, len(self.view.members) / NODES_PER_S)

    def _note(self, found: JobOverview) -> None:
        """Keep what rank 0 says of its steps: its node writes it only once in a while."""
        if (newest := newest_point(found)) is not None:
            point, metrics = newest
            last = self._seen.points[-1] if self._seen.points else None
            if last is None or (point.g, point.step) != (last.g, last.step):
                self._seen = training_curve.add(self._seen, point, metrics)

    def _show(self, described: status.JobStatus) -> None:
        """Tell what the store says, and the nodes' newest words."""
        now = time.time()
        ended = described.verdict is not None
        asked = self._overview if self._overview is not None and not ended else None
        live_nodes = {node for node in self.view.members if not ended}
        overview = JobOverview(
            status=described,
            snapshots={node: said for node, said in asked.snapshots.items() if node in live_nodes} if asked else {},
            unreachable=asked.unreachable if asked else {},
            asked_at=asked.asked_at if asked else now,
        )
        events, written = self._history.events, with_live_points(self._history.course, self._seen)
        verdict = self.view.verdict.value if self.view.verdict is not None else None
        report = build_report(events, written, now=now, verdict=verdict, has_members=bool(self.view.members))
        self._publish(sections(overview, report, written, events, now))

    def _publish(self, found: Mapping[str, object]) -> None:
        everything = {**found, "absent": self._absence, "trouble": self._trouble}
        for name, value in everything.items():
            made = msgspec.json.encode(value)
            if self.sections.get(name) != made:  # What is the same stays the same object.
                self.sections = {**self.sections, name: made}
                self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @property
    def _absence(self) -> str | None:
        """Why there is nothing to show; None if there is, or if it is not known yet."""
        if self._there is not False:
            return None
        schema = self.view.schema
        return _absent(self.job.job_id) if schema is None else other_schema(self.job.job_id, schema)

    def _take(self) -> None:
        """Take what the store says now."""
        words, entries = self._watch.trouble, self._watch.entries
        if words != (self._trouble or {}).get("words", ""):
            self._trouble = _trouble(words)
        if entries is None:
            return
        there = bool(entries) and self.view.schema is None
        if self._there and not there:
            self.sections = {}  # It was forgotten, or replaced by a job that cannot be read.
        self._there = there
        if self.view.incarnation != self._incarnation:
            self._seen, self._overview = training_curve.TrainingCurve(), None  # They are those of another job.
        self._incarnation = self.view.incarnation
        if there:
            self._history.read(entries)


def _absent(job_id: str) -> str:
    return f"There is no job {job_id} in etcd; it is shown here as soon as there is"


def _trouble(words: str) -> dict[str, object] | None:
    return {"since": round(time.time()), "words": words} if words else None


class _MirroredHistory:
    """Events and course of a mirror; what stays the same is not read again."""

    def __init__(self, keys: JobKeys) -> None:
        self.events: Sequence[history_events.HistoryEvent] = ()
        self.course: training_curve.TrainingCurve | None = None
        self._keys = keys
        self._read: dict[str, KeyValue] = {}
        self._course_read: KeyValue | None = None

    def read(self, entries: Mapping[str, KeyValue]) -> None:
        """Take what is new."""
        found = {key: entry for key, entry in entries.items() if key.startswith(self._keys.events)}
        if found != self._read:
            self._read, self.events = found, history_events.read(self._keys, found.values())
        written = entries.get(self._keys.course)
        if written != self._course_read:
            self._course_read = written
            self.course = training_curve.read(written.value) if written is not None else None


class JobFeeds:
    """The jobs that somebody looks at."""

    def __init__(self, store: Store, key_prefix: str, servers: tuple[str, ...]) -> None:
        """Nobody looks yet."""
        self.store = store
        self.key_prefix = key_prefix
        self._servers = servers
        self._viewers: dict[str, int] = {}
        self._feeds: dict[str, tuple[JobFeed, asyncio.Task[None]]] = {}
        self._listings = asyncio.Semaphore(LISTINGS_MAX)
        self._trouble: dict[str, object] | None = None
        """Since when and why the store does not say which jobs there are."""

    def job(self, job_id: str) -> NamedJob:
        """A job by its name."""
        return NamedJob(job_id, JobKeys(job_id, self.key_prefix), self.store, self._servers)

    async def absence_document(self, job_id: str) -> dict[str, object] | None:
        """What to show of a job that is not in the store, or while the store is away; None if it can be followed.

        So requests for jobs that do not exist use up no places.
        """
        if job_id in self._feeds:
            return None
        span = KeyRange.prefix(self.job(job_id).keys.root)
        try:
            async with self._listings:
                entries = (await self.store.list(span, keys_only=True, limit=1)).entries
        except StoreError as error:
            self._trouble = self._trouble or _trouble(str(error))
            return {"absent": None, "trouble": self._trouble}
        self._trouble = None
        return None if entries else {"absent": _absent(job_id), "trouble": None}

    @asynccontextmanager
    async def of(self, job_id: str) -> AsyncIterator[JobFeed]:
        """A job that is followed while the block runs, and a little longer."""
        if job_id not in self._feeds or self._feeds[job_id][1].done():
            if len(self._feeds) >= FOLLOWED_MAX:
                raise TooManyJobs(f"{FOLLOWED_MAX} jobs are followed already; try again in {LINGER_S:g} s")
            live = JobFeed(self.job(job_id))
            self._feeds[job_id] = live, asyncio.create_task(live.run(), name=f"follow {job_id}")
        live, task = self._feeds[job_id]
        self._viewers[job_id] = self._viewers.get(job_id, 0) + 1
        try:
            yield live
            if task.done() and not task.cancelled():
                task.result()  # Only a mistake of ours ends it, and is raised here.
        finally:
            self._viewers[job_id] -= 1
            if not self._viewers[job_id]:
                asyncio.get_running_loop().call_later(LINGER_S, self._forget, job_id)

    def _forget(self, job_id: str) -> None:
        if not self._viewers.get(job_id) and job_id in self._feeds:
            self._viewers.pop(job_id, None)
            self._feeds.pop(job_id)[1].cancel()

    async def close(self) -> None:
        """Follow nothing any more."""
        tasks = [task for _, task in self._feeds.values()]
        self._feeds.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
