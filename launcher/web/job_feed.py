"""Follows a job for all open pages together: one watch of etcd, one client that queries the nodes.

A feed writes nothing to etcd. It reads nothing once the last page is closed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
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
from launcher.web.page_data import Sections, newest_point, sections, with_live_points

ASK_EVERY_S: Final = 2.0
"""Interval of the queries to the nodes while a page is open; longer for jobs of many nodes (`NODES_PER_S`)."""
NODES_PER_S: Final = 16.0
PACE_S: Final = 0.2
"""Changes within this time are published together."""
FOLLOWED_MAX: Final = 32
"""Jobs that one server follows at the same time."""
LINGER_S: Final = 10.0
"""Time from the close of the last page until the job is no longer followed, so that a reload is quick."""
LISTINGS_MAX: Final = 8
"""Lookups in etcd at the same time, of jobs that are not followed yet."""


class TooManyJobs(ElasticError):
    """Pages of more jobs are open than one server follows. Close a page, or start another server."""


class JobFeed:
    """The newest sections of `launcher.web.page_data` as JSON. Readers wait for the next `version`.

    Two more sections are `outage` (since when etcd has not answered, and why) and `absent` (why there is nothing to
    show).
    """

    def __init__(self, job: NamedJob) -> None:
        """Sections are empty until `run` has read the job."""
        self.job = job
        self.sections: dict[str, bytes] = {}
        self.version = 0
        self.over = False
        """`run` has ended: no version follows."""
        self.viewers = 0
        """Open pages."""
        self._seen = training_curve.TrainingCurve()
        self._overview: JobOverview | None = None
        self._outage: dict[str, object] | None = None
        self._incarnation: StoredDocument[str] | None = None
        """That of the published sections."""
        self._changed = asyncio.Event()
        ranges = (*job.keys.everything, KeyRange.prefix(job.keys.events), KeyRange.key(job.keys.curve))
        self._watch = JobWatch(job, ranges=ranges)

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
        """Wait until the version is no longer `version`, for at most `limit_s`."""
        if self.version == version:
            await wait_at_most(limit_s, self._changed.wait())

    async def _publish_loop(self) -> None:
        clock, asked_at = asyncio.get_running_loop().time, -ASK_EVERY_S
        while True:
            self._publish_newest()
            view, limit_s = self._watch.view, None
            if self._watch.entries and view.schema is None and view.verdict is None:
                limit_s = asked_at + max(ASK_EVERY_S, len(view.members) / NODES_PER_S) - clock()
                if limit_s <= 0:
                    await self._ask(view)
                    asked_at = clock()
                    continue
            await asyncio.sleep(PACE_S)
            await self._watch.changes(limit_s)

    async def _ask(self, view: StoreView) -> None:
        """Query the nodes, and add rank 0's newest step to the curve: its node writes the curve only once a minute."""
        overview = await overview_of(self.job, view)
        if self._watch.view.incarnation != view.incarnation:
            return  # Meanwhile another job has this ID.
        self._overview = overview
        if (newest := newest_point(overview)) is not None:
            point, metrics = newest
            last = self._seen.points[-1] if self._seen.points else None
            if last is None or (point.g, point.step) != (last.g, last.step):
                self._seen = training_curve.add(self._seen, point, metrics)

    def _publish_newest(self) -> None:
        """Publish the job as stored in etcd, or why there is nothing to show; do nothing while neither is known."""
        view, entries, words = self._watch.view, self._watch.entries, self._watch.outage
        if words != (self._outage or {}).get("words", ""):
            self._outage = _outage(words)
        if view.incarnation != self._incarnation:
            self._seen, self._overview = training_curve.TrainingCurve(), None  # Those of another job.
            self._incarnation = view.incarnation
        absent, shown = None, dict[str, object]()
        if view.schema is not None:
            absent = other_schema(self.job.job_id, view.schema)
        elif entries:
            shown |= self._sections(view, entries)
        elif entries is not None:
            absent = _absent(self.job.job_id)
        elif self._outage is None:
            return
        self._publish({**shown, "absent": absent, "outage": self._outage})

    def _sections(self, view: StoreView, entries: Mapping[str, KeyValue]) -> Sections:
        """The job from its etcd entries and the nodes' newest answers."""
        now, keys, verdict = time.time(), self.job.keys, view.verdict.value if view.verdict is not None else None
        asked = self._overview if verdict is None else None
        members = view.members if asked is not None else {}
        overview = JobOverview(
            status=status.describe(view, self.job.job_id),
            snapshots={node: said for node, said in asked.snapshots.items() if node in members} if asked else {},
            unreachable=asked.unreachable if asked else {},
            asked_at=asked.asked_at if asked else now,
        )
        events = history_events.read(keys, entries.values())
        stored = training_curve.read(entries[keys.curve].value) if keys.curve in entries else None
        course = with_live_points(stored, self._seen)
        report = build_report(events, course, now=now, verdict=verdict, has_members=bool(view.members))
        return sections(overview, report, course, events, now)

    def _publish(self, everything: Mapping[str, object]) -> None:
        before, self.sections = self.sections, {name: msgspec.json.encode(value) for name, value in everything.items()}
        for name, made in self.sections.items():
            if before.get(name) == made:  # Equal sections stay the same object.
                self.sections[name] = before[name]
        if self.sections != before:
            self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _absent(job_id: str) -> str:
    return f"There is no job {job_id} in etcd; the page shows it as soon as it exists"


def _outage(words: str) -> dict[str, object] | None:
    return {"since": round(time.time()), "words": words} if words else None


class JobFeeds:
    """The feeds of the jobs whose pages are open."""

    def __init__(self, store: Store, key_prefix: str, servers: tuple[str, ...]) -> None:
        """`servers` are the endpoints of etcd, for messages."""
        self.store = store
        self.key_prefix = key_prefix
        self._servers = servers
        self._feeds: dict[str, tuple[JobFeed, asyncio.Task[None]]] = {}
        self._listings = asyncio.Semaphore(LISTINGS_MAX)
        self._outage: dict[str, object] | None = None
        """Since when and why etcd does not answer lookups."""

    def job(self, job_id: str) -> NamedJob:
        """A job by its name."""
        return NamedJob(job_id, JobKeys(job_id, self.key_prefix), self.store, self._servers)

    async def absence_document(self, job_id: str) -> dict[str, object] | None:
        """Return the sections of a job that is not in etcd, or while etcd does not answer; None if it can be followed.

        This keeps requests for jobs that do not exist from using up the places of `FOLLOWED_MAX`.
        """
        if job_id in self._feeds:
            return None
        span = KeyRange.prefix(self.job(job_id).keys.root)
        try:
            async with self._listings:
                entries = (await self.store.list(span, keys_only=True, limit=1)).entries
        except StoreError as error:
            self._outage = self._outage or _outage(str(error))
            return {"absent": None, "outage": self._outage}
        self._outage = None
        return None if entries else {"absent": _absent(job_id), "outage": None}

    @asynccontextmanager
    async def of(self, job_id: str) -> AsyncIterator[JobFeed]:
        """Follow a job while the block runs, and `LINGER_S` longer. Raises `TooManyJobs`."""
        if job_id not in self._feeds or self._feeds[job_id][1].done():
            if len(self._feeds) >= FOLLOWED_MAX:
                raise TooManyJobs(f"{FOLLOWED_MAX} jobs are followed already; try again in {LINGER_S:g} s")
            live = JobFeed(self.job(job_id))
            self._feeds[job_id] = live, asyncio.create_task(live.run(), name=f"follow {job_id}")
        live, task = self._feeds[job_id]
        live.viewers += 1
        try:
            yield live
            if task.done() and not task.cancelled():
                task.result()  # Only a bug ends it; raise that here.
        finally:
            live.viewers -= 1
            if not live.viewers:
                asyncio.get_running_loop().call_later(LINGER_S, self._forget, live)

    def _forget(self, live: JobFeed) -> None:
        followed, task = self._feeds.get(live.job.job_id, (None, None))
        if followed is live and task is not None and not live.viewers:
            del self._feeds[live.job.job_id]
            task.cancel()

    async def close(self) -> None:
        """Stop following all jobs."""
        tasks = [task for _, task in self._feeds.values()]
        self._feeds.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
