"""The documents of a job in the store: how they are written and read, and what one agent knows of them (pure).

Documents are JSON with a schema: a document that does not fit raises `DocumentError` and nothing else can happen. Their
keys are those of `elastic.core.keys`. The number of the schema is in `spec`. If it is another one than `SCHEMA`, no
document of the job is decoded: what they mean, only the other version knows.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.core import generation_codec
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyValue
from elastic.core.model import (
    SCHEMA,
    Budget,
    DrainOrder,
    Generation,
    Go,
    JobSpec,
    Leader,
    Member,
    Outcome,
    SavedCheckpoint,
    StopOrder,
    Verdict,
    contradiction,
)
from elastic.errors import DocumentError

DOCUMENT_BYTES_MAX = 1_400_000
"""Below etcd's limit of 1.5 MiB for a request."""

T = TypeVar("T")

Document = (
    str | Leader | JobSpec | Member | Generation | Go | Outcome | Verdict | SavedCheckpoint | StopOrder | DrainOrder
)


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[T]):
    """A document with the revisions it was read at."""

    value: T
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class StoreView:
    """What one agent knows of its job in the store, at `revision`.

    `members` and `outcomes` are complete only for an agent that follows all of them (`complete`); the others know
    themselves. `damaged` names documents that could not be read,
    `damaged_at` has the mod revision of each; `unreadable` are those of them that the whole job stands on.

    `schema` is None, or the schema of a job of another version: `ViewReader` reads no document of such a job.
    """

    revision: int = 0
    incarnation: StoredDocument[str] | None = None
    leader: StoredDocument[Leader] | None = None
    secret: StoredDocument[str] | None = None
    spec: StoredDocument[JobSpec] | None = None
    generation: StoredDocument[Generation] | None = None
    go: StoredDocument[Go] | None = None
    verdict: StoredDocument[Verdict] | None = None
    saved: StoredDocument[SavedCheckpoint] | None = None
    halt: StoredDocument[StopOrder] | None = None
    leaves: Mapping[str, StoredDocument[DrainOrder]] = field(default_factory=dict)
    members: Mapping[str, StoredDocument[Member]] = field(default_factory=dict)
    outcomes: Mapping[tuple[int, str], StoredDocument[Outcome]] = field(default_factory=dict)
    complete: bool = False
    damaged: tuple[str, ...] = ()
    damaged_at: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    schema: int | None = None

    @property
    def budget(self) -> Budget:
        """What the present run of the job has used up: the newest document has the newest budget."""
        if self.generation is None or (self.spec is not None and self.spec.value.run != self.generation.value.run):
            return Budget()
        generation, go = self.generation.value, self.go.value if self.go is not None else None
        # Each revision of a parameter-server job is charged when it is made, after the go.
        started = go is not None and go.g == generation.g and not generation.rev
        return go.budget if go is not None and started else generation.budget


class ViewReader:
    """Turns entries of the store into a `StoreView`, decoding only what changed since the last call."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self._decoded: dict[str, tuple[KeyValue, StoredDocument[Any] | None]] = {}

    def read(self, entries: Mapping[str, KeyValue], revision: int, *, complete: bool) -> StoreView:
        """Build the view of these entries. A document that does not fit its schema is left out and named."""
        keys, before = self._keys, self._decoded
        if (schema := _other_schema(entries.get(keys.spec))) is not None:
            return StoreView(revision=revision, complete=complete, schema=schema)
        members_at, outcomes_at = len(keys.members), len(keys.outcomes)
        decoded: dict[str, tuple[KeyValue, StoredDocument[Any] | None]] = {}
        members: dict[str, StoredDocument[Member]] = {}
        leaves: dict[str, StoredDocument[DrainOrder]] = {}
        outcomes: dict[tuple[int, str], StoredDocument[Outcome]] = {}
        damaged: list[str] = []
        single: dict[str, StoredDocument[Any]] = {}
        for key, entry in entries.items():
            known = before.get(key)
            if known is None and not is_known(keys, key):
                continue  # A later version may put something there; it is not ours.
            if known is None or (known[0] is not entry and known[0] != entry):
                known = (entry, self._decode(entry))
            decoded[key] = known
            stored = known[1]
            if stored is None:
                damaged.append(key)
            elif key.startswith(keys.members):
                members[key[members_at:]] = stored
            elif key.startswith(keys.leaves):
                leaves[key[len(keys.leaves) :]] = stored
            elif key.startswith(keys.outcomes):
                g, _, start = key[outcomes_at:].partition("/")
                at = (int(g), start.partition("/")[0])
                known_end = outcomes.get(at)
                if known_end is None or known_end.value.since <= stored.value.since:
                    outcomes[at] = stored
            else:
                single[key] = stored
        self._decoded = decoded
        return StoreView(
            revision=revision,
            incarnation=single.get(keys.incarnation),
            leader=single.get(keys.leader),
            secret=single.get(keys.secret),
            spec=single.get(keys.spec),
            generation=single.get(keys.generation),
            go=single.get(keys.go),
            verdict=single.get(keys.verdict),
            saved=single.get(keys.saved),
            halt=single.get(keys.halt),
            leaves=leaves,
            members=members,
            outcomes=outcomes,
            complete=complete,
            damaged=tuple(damaged),
            damaged_at={key: decoded[key][0].mod_revision for key in damaged},
            unreadable=tuple(key for key in damaged if not key.startswith(keys.tolerated_prefixes)),
        )

    def _decode(self, entry: KeyValue) -> StoredDocument[Any] | None:
        try:
            value = decode(self._keys, entry.key, entry.value)
        except DocumentError:
            return None
        return StoredDocument(value, entry.create_revision, entry.mod_revision, entry.lease)


def encode(document: Document) -> bytes:
    """Write a document as compact JSON."""
    return generation_codec.write(document) if isinstance(document, Generation) else _ENCODER.encode(document)


def decode(keys: JobKeys, key: str, value: bytes) -> Any:
    """Read the document of a key; `DocumentError` names the key and what does not fit."""
    document = _read(keys, key, value)
    if wrong := contradiction(document):
        raise DocumentError(f"{key}: {wrong}")
    return document


def is_known(keys: JobKeys, key: str) -> bool:
    """Tell whether this version has a document at that key."""
    return key.startswith((keys.members, keys.outcomes, keys.leaves)) or key[len(keys.root) :] in _SINGLE


def _read(keys: JobKeys, key: str, value: bytes) -> Any:
    if len(value) > DOCUMENT_BYTES_MAX:
        raise DocumentError(f"{key}: {len(value)} bytes are more than a document may have")
    try:
        if key.startswith(keys.members):
            return _MEMBER.decode(value)
        if key.startswith(keys.leaves):
            return _LEAVE.decode(value)
        if key.startswith(keys.outcomes):
            if not _OUTCOME_KEY.fullmatch(key[len(keys.outcomes) :]):
                raise DocumentError(f"{key}: not the key of an outcome")
            return _OUTCOME.decode(value)
        read = _SINGLE.get(key[len(keys.root) :])
        if read is None:
            raise DocumentError(f"{key}: no such document in this schema")
        return read(value)
    except (ValueError, *UNREADABLE) as error:
        raise DocumentError(f"{key}: {error}") from error


def _other_schema(spec: KeyValue | None) -> int | None:
    """The schema that a spec names, whatever else it says; None if it names none, or `SCHEMA`."""
    try:
        schema = SCHEMA if spec is None else _SCHEMA_OF_SPEC.decode(spec.value).schema
    except UNREADABLE:
        return None
    return schema if schema != SCHEMA else None


class _SchemaOfSpec(msgspec.Struct, frozen=True):
    schema: int = SCHEMA


_SCHEMA_OF_SPEC = msgspec.json.Decoder(_SchemaOfSpec)
_ENCODER = msgspec.json.Encoder()
_MEMBER = msgspec.json.Decoder(Member)
_LEAVE = msgspec.json.Decoder(DrainOrder)
_OUTCOME = msgspec.json.Decoder(Outcome)
_OUTCOME_KEY = re.compile(r"\d{10}/.+")
_SINGLE: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "incarnation": msgspec.json.Decoder(str).decode,
    "leader": msgspec.json.Decoder(Leader).decode,
    "secret": msgspec.json.Decoder(str).decode,
    "spec": msgspec.json.Decoder(JobSpec).decode,
    "generation": generation_codec.read,
    "go": msgspec.json.Decoder(Go).decode,
    "verdict": msgspec.json.Decoder(Verdict).decode,
    "saved": msgspec.json.Decoder(SavedCheckpoint).decode,
    "halt": msgspec.json.Decoder(StopOrder).decode,
}
