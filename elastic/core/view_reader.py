"""Reads the documents of a job from the entries of the store (pure).

Documents are JSON with a schema: a document that does not fit raises `DocumentError`, and no other exception. Their
keys are those of `elastic.core.keys`. The number of the schema is in `spec`. If it differs from `SCHEMA`, no document
of the job is decoded, because only the other version knows what they mean.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from elastic._decode import UNREADABLE
from elastic.core import generation_codec
from elastic.core.keys import JobKeys
from elastic.core.kv import KeyValue
from elastic.core.model import (
    SCHEMA,
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
from elastic.core.ps.model import PS_MODES, ClusterSpec, PsJobSpec
from elastic.core.view import StoredDocument, StoreView
from elastic.errors import DocumentError

DOCUMENT_BYTES_MAX = 1_400_000
"""Below etcd's limit of 1.5 MiB for a request."""

Known = tuple[KeyValue, StoredDocument[Any] | None]
"""An entry with its document, None if the document cannot be read."""


class ViewReader:
    """Turns entries of the store into a `StoreView`, decoding only what changed since the last call."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self._decoded: dict[str, Known] = {}

    def read(self, entries: Mapping[str, KeyValue], revision: int, *, complete: bool) -> StoreView:
        """Build the view of these entries. A document that does not fit its schema is listed in `damaged`."""
        keys = self._keys
        if (schema := _other_schema(entries.get(keys.spec))) is not None:
            return StoreView(revision=revision, complete=complete, schema=schema)
        self._decoded = decoded = self._decode_changed(entries)
        generation, replaced = _newest([decoded[key] for key in keys.generations if key in decoded])
        damaged = [key for key, (_, stored) in decoded.items() if stored is None or stored is replaced]
        documents = _by_kind(keys, decoded)
        single: dict[str, Any] = {name: documents[name].get("") for name in _SINGLE}
        return StoreView(
            revision=revision,
            generation=generation,
            leaves=documents["leave"],
            members=documents["members"],
            outcomes=_newest_outcomes(documents["outcomes"]),
            complete=complete,
            damaged=tuple(damaged),
            damaged_at={key: decoded[key][0].mod_revision for key in damaged},
            unreadable=tuple(key for key in damaged if not key.startswith(keys.tolerated_prefixes)),
            **single,
        )

    def _decode_changed(self, entries: Mapping[str, KeyValue]) -> dict[str, Known]:
        """Return every entry with its document; entries that have not changed since the last call are not decoded."""
        before, decoded = self._decoded, dict[str, Known]()
        for key, entry in entries.items():
            known = before.get(key)
            if known is not None and (known[0] is entry or known[0] == entry):
                decoded[key] = known
            elif is_known(self._keys, key):  # A later version may use keys that this one does not know.
                decoded[key] = (entry, self._decode(entry))
        return decoded

    def _decode(self, entry: KeyValue) -> StoredDocument[Any] | None:
        try:
            value = decode(self._keys, entry.key, entry.value)
        except DocumentError:
            return None
        return StoredDocument(value, entry.create_revision, entry.mod_revision, entry.lease)


def _newest(
    written: Iterable[Known],
) -> tuple[StoredDocument[Generation] | None, StoredDocument[Generation] | None]:
    """The document of the newest generation, and an older one under another key, which an operator has written."""
    readable = (stored for _, stored in written if stored is not None)
    newest, replaced, *_ = (*sorted(readable, key=lambda stored: -stored.mod_revision), None, None)
    return newest, replaced


def _by_kind(keys: JobKeys, decoded: Mapping[str, Known]) -> Mapping[str, Mapping[str, StoredDocument[Any]]]:
    """The readable documents, by the first part of their keys and by the rest."""
    documents: defaultdict[str, dict[str, StoredDocument[Any]]] = defaultdict(dict)
    for key, (_, stored) in decoded.items():
        if stored is not None:
            kind, _, name = key[len(keys.root) :].partition("/")
            documents[kind][name] = stored
    return documents


def _newest_outcomes(written: Mapping[str, StoredDocument[Any]]) -> dict[tuple[int, str], StoredDocument[Outcome]]:
    """The outcome of the newest start of each node in each generation."""
    outcomes: dict[tuple[int, str], StoredDocument[Outcome]] = {}
    for name, stored in written.items():
        g, node = name.split("/")[:2]
        known = outcomes.get((int(g), node))
        if known is None or known.value.since <= stored.value.since:
            outcomes[int(g), node] = stored
    return outcomes


def decode(keys: JobKeys, key: str, value: bytes) -> Any:
    """Decode the document of a key. Raises `DocumentError`, with the key and the reason."""
    document = _read(keys, key, value)
    if wrong := contradiction(document):
        raise DocumentError(f"{key}: {wrong}")
    return document


def is_known(keys: JobKeys, key: str) -> bool:
    """Return whether this version has a document under that key."""
    return key.startswith((keys.members, keys.outcomes, keys.leaves)) or key[len(keys.root) :] in _READERS


def _read(keys: JobKeys, key: str, value: bytes) -> Any:
    if len(value) > DOCUMENT_BYTES_MAX:
        raise DocumentError(f"{key}: {len(value)} bytes are more than the limit of {DOCUMENT_BYTES_MAX}")
    try:
        if key.startswith(keys.members):
            return _MEMBER.decode(value)
        if key.startswith(keys.leaves):
            return _LEAVE.decode(value)
        if key.startswith(keys.outcomes):
            if not _OUTCOME_KEY.fullmatch(key[len(keys.outcomes) :]):
                raise DocumentError(f"{key}: not the key of an outcome")
            return _OUTCOME.decode(value)
        read = _READERS.get(key[len(keys.root) :])
        if read is None:
            raise DocumentError(f"{key}: no such document in this schema")
        return read(value)
    except (ValueError, *UNREADABLE) as error:
        raise DocumentError(f"{key}: {error}") from error


def _read_spec(value: bytes) -> JobSpec:
    return (_PS_SPEC if _SPEC_HEAD.decode(value).mode in PS_MODES else _SPEC).decode(value)


def _other_schema(spec: KeyValue | None) -> int | None:
    """The schema in a spec, whatever else the spec contains; None if it has none, or `SCHEMA`."""
    try:
        schema = SCHEMA if spec is None else _SPEC_HEAD.decode(spec.value).schema
    except UNREADABLE:
        return None
    return schema if schema != SCHEMA else None


class _SpecHead(msgspec.Struct, frozen=True):
    """The part of a spec that decides how to decode the rest."""

    schema: int = SCHEMA
    mode: object = None


_SPEC_HEAD = msgspec.json.Decoder(_SpecHead)
_SPEC = msgspec.json.Decoder(JobSpec)
_PS_SPEC = msgspec.json.Decoder(PsJobSpec)
_MEMBER = msgspec.json.Decoder(Member)
_LEAVE = msgspec.json.Decoder(DrainOrder)
_OUTCOME = msgspec.json.Decoder(Outcome)
_OUTCOME_KEY = re.compile(r"\d{10}/.+")
_SINGLE: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "incarnation": msgspec.json.Decoder(str).decode,
    "leader": msgspec.json.Decoder(Leader).decode,
    "secret": msgspec.json.Decoder(str).decode,
    "spec": _read_spec,
    "go": msgspec.json.Decoder(Go).decode,
    "verdict": msgspec.json.Decoder(Verdict).decode,
    "saved": msgspec.json.Decoder(SavedCheckpoint).decode,
    "halt": msgspec.json.Decoder(StopOrder).decode,
}
"""The documents that a job has once; the fields of the view have the same names."""
_GENERATIONS: Final = {
    kind.document_name: partial(generation_codec.read, decoder=msgspec.json.Decoder(kind))
    for kind in (Generation, ClusterSpec)
}
_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {**_SINGLE, **_GENERATIONS}
