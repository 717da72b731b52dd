"""Reads the history of a job from the store, and words it for people."""

from __future__ import annotations

from datetime import UTC, datetime

from elastic.core.keys import JobKeys
from elastic.core.kv import Range
from elastic.store.protocol import Store
from launcher.history import events as history
from launcher.text.sanitize import clean


def in_words(event: history.Event) -> str:
    """One line for people; before the first generation it names none."""
    at = datetime.fromtimestamp(event.at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    generation = f"generation {event.g} " if event.g else ""
    return f"{at}  {clean(event.node)}  {generation}{event.what}: {clean(event.text)}"


async def read(store: Store, keys: JobKeys) -> list[history.Event]:
    """The history of a job, oldest first. Raises `StoreError`."""
    listing = await store.list(Range.prefix(keys.events))
    return history.read(keys, listing.entries)
