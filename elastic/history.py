"""The history of a job for people, in the store: who changed the world, when, and why (pure).

The proposer writes one short event for each generation, go and verdict, after its proposal was carried out, and who
tells of a recovery one for it, once it is over. In a parameter-server job the proposer adds how the recovery of seats
began that start on another node. Nothing depends on it, and an event can be missing: its writer may be gone, or not
know that its proposal held.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Final

import msgspec

from elastic.keys import JobKeys, decode
from elastic.model import Cause, Generation, Go, Verdict
from elastic.naming import failed_words
from elastic.proposals import Transaction
from elastic.recovery import Recovery
from elastic.seattimeline import Beginning
from elastic.store.base import Delete, Entry, Operation, Put, Range
from elastic.unreadable import UNREADABLE

KEPT: Final = 200
"""Events that are kept; older ones are deleted."""
TEXT_MAX: Final = 1000
PHASES_MAX: Final = 32
AT_MAX: Final = 253_402_300_799
"""The last second of the year 9999, the last that a calendar can name."""
_DIGITS: Final = 14
"""Of the milliseconds in a key, so that keys sort by time."""


class What(StrEnum):
    """What an event tells of."""

    GENERATION = "generation"
    GO = "go"
    VERDICT = "verdict"
    START = "start"
    RECOVERY = "recovery"
    SEATS = "seats"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event: `node` wrote it, `at` is that node's wall clock (seconds since the epoch), `text` says why.

    `phases` are those of a start or a recovery, in seconds, in their order. `rev` is the revision of the roster in
    which seats start, and `of` the node that starts them, where another one writes.
    """

    at: Annotated[float, msgspec.Meta(ge=0, le=AT_MAX)]
    node: Annotated[str, msgspec.Meta(max_length=300)]
    what: What
    g: int
    text: Annotated[str, msgspec.Meta(max_length=TEXT_MAX)] = ""
    phases: Annotated[Mapping[str, float], msgspec.Meta(max_length=PHASES_MAX)] = msgspec.field(default_factory=dict)
    rev: int = 0
    of: Annotated[str, msgspec.Meta(max_length=300)] = ""


def events_of(keys: JobKeys, transaction: Transaction, node: str, at: float) -> list[Event]:
    """The events of a proposal that was carried out, none of any other transaction."""
    found = []
    for operation in transaction.then:
        if not isinstance(operation, Put) or operation.key not in (keys.generation, keys.go, keys.verdict):
            continue
        document = decode(keys, operation.key, operation.value)
        match document:
            case Generation():
                count = len(document.members)
                text = f"{count} node{'' if count == 1 else 's'}, world size {document.world_size}: {document.reason}"
                found.append(_event(What.GENERATION, document.g, text, node, at))
            case Go():
                parts = [*_words(document.cause), document.note, f"{document.budget.charged} restarts charged"]
                found.append(_event(What.GO, document.g, "; ".join(part for part in parts if part), node, at))
            case Verdict():
                text = "; ".join([f"{document.status}: {document.reason}", *_words(document.cause)])
                found.append(_event(What.VERDICT, document.g, text, node, at))
    return found


def of_recovery(found: Recovery, node: str, at: float) -> Event:
    """The event of a recovery, or of a first start."""
    lengths = {str(name): round(length, 4) for name, length in found.phases}
    what = What.START if found.start else What.RECOVERY
    return msgspec.structs.replace(_event(what, found.g, found.line, node, at), phases=lengths, rev=found.rev)


def of_beginning(found: Beginning, node: str, at: float) -> Event:
    """The event of seats that start on another node than `node`, which proposed it."""
    lengths = {str(name): round(length, 4) for name, length in found.phases}
    event = _event(What.SEATS, found.g, found.text, node, at)
    return msgspec.structs.replace(event, phases=lengths, rev=found.rev, of=found.node)


def beginning(events: Iterable[Event], found: Recovery, node: str) -> Event | None:
    """What the proposer noted of how a recovery of `node` began, None if it is not there."""
    at = (What.SEATS, found.g, found.rev, node)
    return next((event for event in events if (event.what, event.g, event.rev, event.of) == at), None)


def remember(keys: JobKeys, event: Event, present: Sequence[str]) -> tuple[Operation, ...]:
    """What to write for an event when these keys of events are there, in order: itself, and away with the oldest.

    Keys keep the order in which things happened: where a clock is behind that of an earlier writer, the event is put
    right after the newest.
    """
    at_ms = int(event.at * 1000)
    newest = max((ms for key in present if (ms := _milliseconds(keys, key)) is not None), default=-1)
    key = f"{keys.events}{max(at_ms, newest + 1, 0):0{_DIGITS}d}-{event.node}"
    put = Put(key, msgspec.json.encode(event))
    if len(present) < KEPT:
        return (put,)
    return put, Delete(Range(keys.events, sorted(present)[-(KEPT - 1)]))


def read(keys: JobKeys, entries: Iterable[Entry]) -> list[Event]:
    """The events of a listing, oldest first. What cannot be read is left out."""
    found = []
    for entry in sorted(entries, key=lambda entry: entry.key):
        if entry.key.startswith(keys.events):
            try:
                found.append(_DECODER.decode(entry.value))
            except UNREADABLE:
                continue
    return found


def _event(what: What, g: int, text: str, node: str, at: float) -> Event:
    return Event(at=round(at, 3), node=node, what=what, g=g, text=text[:TEXT_MAX])


def _words(cause: Cause | None) -> list[str]:
    return [failed_words([cause.first], cause.host)] if cause is not None else []


def _milliseconds(keys: JobKeys, key: str) -> int | None:
    text = key[len(keys.events) :].partition("-")[0]
    return int(text) if len(text) == _DIGITS and text.isascii() and text.isdigit() else None


_DECODER = msgspec.json.Decoder(Event)
