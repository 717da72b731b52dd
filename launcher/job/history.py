"""Reads the history of a job from the store, and words it for people."""

from __future__ import annotations

from datetime import UTC, datetime

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.store.protocol import Store
from launcher.history import events
from launcher.text.sanitize import sanitize_line


def event_line(event: events.HistoryEvent) -> str:
    """One line for people; before the first generation it names none."""
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    generation = f"generation {event.g} " if event.g else ""
    return f"{at}  {sanitize_line(event.node)}  {generation}{event.what}: {sanitize_line(event.text)}"


async def read_history(store: Store, keys: JobKeys) -> list[events.HistoryEvent]:
    """The history of a job, oldest first. Raises `StoreError`."""
    listing = await store.list(KeyRange.prefix(keys.events))
    return events.read(keys, listing.entries)
