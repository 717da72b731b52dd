"""A job as it changes, for everybody who looks at its page: one watch of the store, one asker of the nodes.

Nothing is written by looking. When nobody looks any more, nothing is read.
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
        self.viewers = 0
        """How many look at it."""
        self._seen = training_curve.TrainingCurve()
        self._overview: JobOverview | None = None
        self._trouble: dict[str, object] | None = None
        self._incarnation: StoredDocument[str] | None = None
        """Of the job that was shown last."""
        self._changed = asyncio.Event()
        ranges = (*job.keys.everything, KeyRange.prefix(job.keys.events), KeyRange.key(job.keys.course))
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
        """Wait until there is another version than this one, at most so long."""
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
        """Ask the nodes, and keep what rank 0 says of its steps: its node writes it only once in a while."""
        overview = await overview_of(self.job, view)
        if self._watch.view.incarnation != view.incarnation:
            return  # It is another job by now.
        self._overview = overview
        if (newest := newest_point(overview)) is not None:
            point, metrics = newest
            last = self._seen.points[-1] if self._seen.points else None
            if last is None or (point.g, point.step) != (last.g, last.step):
                self._seen = training_curve.add(self._seen, point, metrics)

    def _publish_newest(self) -> None:
        """Tell what the store says, or why there is nothing to show; nothing while neither is known."""
        view, entries, words = self._watch.view, self._watch.entries, self._watch.trouble
        if words != (self._trouble or {}).get("words", ""):
            self._trouble = _trouble(words)
        if view.incarnation != self._incarnation:
            self._seen, self._overview = training_curve.TrainingCurve(), None  # They are those of another job.
            self._incarnation = view.incarnation
        absent, shown = None, dict[str, object]()
        if view.schema is not None:
            absent = other_schema(self.job.job_id, view.schema)
        elif entries:
            shown |= self._sections(view, entries)
        elif entries is not None:
            absent = _absent(self.job.job_id)
        elif self._trouble is None:
            return
        self._publish({**shown, "absent": absent, "trouble": self._trouble})

    def _sections(self, view: StoreView, entries: Mapping[str, KeyValue]) -> Sections:
        """What the store says, and the nodes' newest words."""
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
        stored = training_curve.read(entries[keys.course].value) if keys.course in entries else None
        course = with_live_points(stored, self._seen)
        report = build_report(events, course, now=now, verdict=verdict, has_members=bool(view.members))
        return sections(overview, report, course, events, now)

    def _publish(self, everything: Mapping[str, object]) -> None:
        before, self.sections = self.sections, {name: msgspec.json.encode(value) for name, value in everything.items()}
        for name, made in self.sections.items():
            if before.get(name) == made:  # What is the same stays the same object.
                self.sections[name] = before[name]
        if self.sections != before:
            self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


def _absent(job_id: str) -> str:
    return f"There is no job {job_id} in etcd; it is shown here as soon as there is"


def _trouble(words: str) -> dict[str, object] | None:
    return {"since": round(time.time()), "words": words} if words else None


class JobFeeds:
    """The jobs that somebody looks at."""

    def __init__(self, store: Store, key_prefix: str, servers: tuple[str, ...]) -> None:
        """Nobody looks yet."""
        self.store = store
        self.key_prefix = key_prefix
        self._servers = servers
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
        live.viewers += 1
        try:
            yield live
            if task.done() and not task.cancelled():
                task.result()  # Only a mistake of ours ends it, and is raised here.
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
        """Follow nothing any more."""
        tasks = [task for _, task in self._feeds.values()]
        self._feeds.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
