"""Lists the jobs below a key prefix, with two small requests for each.

It first reads all keys, page by page, without their values: they show which nodes are registered, and when the newest
event was written.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from elastic.core.keys import JOB_ID, JobKeys
from elastic.core.kv import KeyRange
from elastic.core.model import FinalStatus
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from elastic.errors import TooLarge
from elastic.store.protocol import Store
from launcher.history.events import written_at
from launcher.job.named_job import other_schema

PAGE: Final = 10_000
"""Keys in a page. For each request etcd counts all further keys; many small pages would be slow."""
AT_ONCE: Final = 16
"""Jobs that are read at the same time."""


class JobLine(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `state` is one of completed, failed, stopped, running, starting, waiting, no nodes, unreadable.

    `nodes` are registered, `of` are in the newest generation. `last_event_at` is a wall clock, seconds since the epoch.
    Unknown and missing values are None.
    """

    job_id: str
    state: str
    run: int | None = None
    np: str | None = None
    nodes: int = 0
    of: int | None = None
    generation: int | None = None
    world_size: int | None = None
    last_event_at: float | None = None
    verdict: FinalStatus | None = None
    reason: str = ""


async def jobs(store: Store, prefix: str) -> list[JobLine]:
    """Return every job below the prefix, sorted by job ID. Raises `StoreError`."""
    room = asyncio.Semaphore(AT_ONCE)

    async def look(keys: JobKeys, present: Sequence[str]) -> JobLine:
        async with room:
            return await _read_job(store, keys, present)

    candidates = await _keys_by_job(store, prefix)
    try:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(look(keys, present)) for keys, present in candidates if _is_job(keys, present)]
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from failed
    return sorted((task.result() for task in asking), key=lambda line: line.job_id)


async def _keys_by_job(store: Store, prefix: str) -> list[tuple[JobKeys, list[str]]]:
    """Return everything that has keys below the prefix, with these keys."""
    root = f"{prefix.rstrip('/')}/"
    by_name = defaultdict[str, list[str]](list)
    span = KeyRange.prefix(root)
    while entries := (await store.list(span, keys_only=True, limit=PAGE)).entries:
        for entry in entries:
            name, slash, _ = entry.key.removeprefix(root).partition("/")
            if slash and JOB_ID.fullmatch(name):
                by_name[name].append(entry.key)
        span = KeyRange(entries[-1].key + "\0", span.end)
    return [(JobKeys(name, prefix), present) for name, present in by_name.items()]


def _is_job(keys: JobKeys, present: Sequence[str]) -> bool:
    """Tell a job from other keys, and from the remaining history of a deleted job to which a late node wrote."""
    return not {keys.spec, keys.incarnation, keys.verdict}.isdisjoint(present)


async def _read_job(store: Store, keys: JobKeys, present: Sequence[str]) -> JobLine:
    """Read one job. An unreadable one is listed with the reason: its size, or its schema."""
    nodes = sum(key.startswith(keys.members) for key in present)
    last_event_at = written_at(keys, max((key for key in present if key.startswith(keys.events)), default=""))
    unreadable = partial(JobLine, job_id=keys.job_id, state="unreadable", nodes=nodes, last_event_at=last_event_at)
    try:
        listings = await asyncio.gather(*map(store.list, keys.documents))
    except TooLarge as error:
        return unreadable(reason=str(error))
    entries = {entry.key: entry for listing in listings for entry in listing.entries}
    view = ViewReader(keys).read(entries, listings[0].revision, complete=False)
    if view.schema is not None:
        return unreadable(reason=other_schema(keys.job_id, view.schema))
    spec = view.spec.value if view.spec is not None else None
    generation = view.current_generation
    verdict = view.verdict.value if view.verdict is not None else None
    return JobLine(
        job_id=keys.job_id,
        state=state_of(view, nodes),
        run=spec.run if spec is not None else None,
        np=str(spec.np) if spec is not None else None,
        nodes=nodes,
        of=len(generation.members) if generation is not None else None,
        generation=generation.g if generation is not None else None,
        world_size=generation.world_size if generation is not None else None,
        last_event_at=last_event_at,
        verdict=verdict.status if verdict is not None else None,
        reason=verdict.reason if verdict is not None else generation.reason if generation is not None else "",
    )


def state_of(view: StoreView, nodes: int) -> str:
    """The state of a job with this many registered nodes, as `JobLine` has it."""
    generation = view.current_generation
    if view.verdict is not None:
        return str(view.verdict.value.status)
    if view.unreadable:
        return "unreadable"
    if not nodes:
        return "no nodes"
    if generation is None:
        return "waiting"
    return "running" if view.go is not None and view.go.value.g == generation.g else "starting"
