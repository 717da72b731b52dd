"""Where each document of a job stands in the store, and how it is written and read (pure).

::

    <prefix>/<job>/arrived              model.Arrival; each node that registers reads it and writes its own
    <prefix>/<job>/halt                 model.Halt, from an operator: the run is to end
    <prefix>/<job>/incarnation          random, created once; compared in every transaction
    <prefix>/<job>/secret               text; agents prove with it that they belong to the job (`launcher.wire.links`)
    <prefix>/<job>/spec                 model.Spec
    <prefix>/<job>/leave/<node>         model.Leave, from an operator: that node is to leave
    <prefix>/<job>/members/<node>       model.Member, under the node's lease
    <prefix>/<job>/generation           model.Generation, the one document that the proposer writes (`generation_codec`)
    <prefix>/<job>/go                   model.Go
    <prefix>/<job>/outcomes/<g>/<node>  model.Outcome; g with ten digits, so that keys sort by it. Of a later start in
                                        the same generation (a roster's revision) the node is <node>/<since>
    <prefix>/<job>/verdict              model.Verdict
    <prefix>/<job>/events/<at>-<tag>    history.Event, for people
    <prefix>/<job>/course               course.Course, for people: step, loss and rate as training went on
    <prefix>/<job>/probe                probe.Probe, under the asker's lease: everybody is to try to reach everybody
    <prefix>/<job>/saved                model.Saved, the newest committed checkpoint; nothing is decided by it
    <prefix>/<job>/answers/<id>/<node>  probe.Answer to that probe, under the node's lease; nobody mirrors it

Documents are JSON with a schema: a document that does not fit raises `DocumentError` and nothing else can happen.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.core import generation_codec
from elastic.core.kv import KeyRange, KeyValue
from elastic.core.model import (
    SCHEMA,
    Arrival,
    DrainOrder,
    Generation,
    Go,
    JobSpec,
    Member,
    Outcome,
    SavedCheckpoint,
    StopOrder,
    Verdict,
    contradiction,
)
from elastic.errors import DocumentError

JOB_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
PREFIX_DEFAULT = "/elastic"
DOCUMENT_BYTES_MAX = 1_400_000
"""Below etcd's limit of 1.5 MiB for a request."""

T = TypeVar("T")

Document = (
    str | Arrival | JobSpec | Member | Generation | Go | Outcome | Verdict | SavedCheckpoint | StopOrder | DrainOrder
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
    themselves and `follows`, the member before them in line. `damaged` names documents that could not be read,
    `damaged_at` has the mod revision of each; `unreadable` are those of them that the whole job stands on. `schema` is
    the version of a spec that was written by another version of this project.
    """

    revision: int = 0
    incarnation: StoredDocument[str] | None = None
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
    follows: str | None = None
    damaged: tuple[str, ...] = ()
    damaged_at: Mapping[str, int] = field(default_factory=dict)
    unreadable: tuple[str, ...] = ()
    schema: int | None = None


class JobKeys:
    """The keys of one job."""

    def __init__(self, job_id: str, prefix: str = PREFIX_DEFAULT) -> None:
        """Build every key from the job's id, which must match `JOB_ID`."""
        if not JOB_ID.fullmatch(job_id):
            raise ValueError(f"job id {job_id!r}: 1 to 128 letters, digits, '.', '_' or '-'")
        self.job_id = job_id
        self.root: Final = f"{prefix.rstrip('/')}/{job_id}/"
        self.arrived: Final = self.root + "arrived"
        self.incarnation: Final = self.root + "incarnation"
        self.secret: Final = self.root + "secret"
        self.spec: Final = self.root + "spec"
        self.halt: Final = self.root + "halt"
        self.leaves: Final = self.root + "leave/"
        self.members: Final = self.root + "members/"
        self.generation: Final = self.root + "generation"
        self.go: Final = self.root + "go"
        self.outcomes: Final = self.root + "outcomes/"
        self.verdict: Final = self.root + "verdict"
        self.events: Final = self.root + "events/"
        self.course: Final = self.root + "course"
        self.probe: Final = self.root + "probe"
        self.saved: Final = self.root + "saved"
        self.answers: Final = self.root + "answers/"

    def member(self, node: str) -> str:
        """The key of a member."""
        return self.members + node

    def leave(self, node: str) -> str:
        """The key under which a node is told to leave."""
        return self.leaves + node

    def outcome(self, g: int, node: str, since: int = 0) -> str:
        """The key of a node's outcome of generation g, of the start that revision `since` asked for."""
        return f"{self.outcomes}{g:010d}/{node}" + (f"/{since}" if since else "")

    def later_outcomes(self, g: int, node: str) -> KeyRange:
        """A node's outcomes of every later start in generation g."""
        return KeyRange.prefix(self.outcome(g, node) + "/")

    def answer(self, probe: str, node: str) -> str:
        """The key of a node's answer to a probe."""
        return f"{self.answers}{probe}/{node}"

    def outcomes_below(self, g: int) -> KeyRange:
        """Every outcome of the generations before g."""
        return KeyRange(self.outcomes, f"{self.outcomes}{g:010d}/")

    def known(self, key: str) -> bool:
        """Tell whether this version has a document at that key."""
        return key.startswith((self.members, self.outcomes, self.leaves)) or key[len(self.root) :] in _SINGLE

    @property
    def bearable(self) -> tuple[str, ...]:
        """How the keys begin whose documents one node, or nobody, stands on: the job goes on if they are damaged."""
        return (self.members, self.outcomes, self.saved, self.secret, self.halt, self.leaves)

    @property
    def everything(self) -> tuple[KeyRange, ...]:
        """What the proposer follows: all but what sorts first: history and course for people, answers, who arrived."""
        return (KeyRange(self.generation, self._end),)

    def followed(self, *members: str) -> tuple[KeyRange, ...]:
        """What everybody else follows: the job's documents, itself, and the one member before it in line."""
        documents = (KeyRange(self.generation, self.members), KeyRange(self.outcomes[:-1] + "0", self._end))
        return (*documents, *(KeyRange.key(self.member(node)) for node in members))

    @property
    def _end(self) -> str:
        return self.root[:-1] + "0"


class ViewReader:
    """Turns entries of the store into a `StoreView`, decoding only what changed since the last call."""

    def __init__(self, keys: JobKeys) -> None:
        self._keys = keys
        self._decoded: dict[str, tuple[KeyValue, StoredDocument[Any] | None]] = {}

    def read(self, entries: Mapping[str, KeyValue], revision: int, *, complete: bool, follows: str | None) -> StoreView:
        """Build the view of these entries. A document that does not fit its schema is left out and named."""
        keys, before = self._keys, self._decoded
        members_at, outcomes_at = len(keys.members), len(keys.outcomes)
        decoded: dict[str, tuple[KeyValue, StoredDocument[Any] | None]] = {}
        members: dict[str, StoredDocument[Member]] = {}
        leaves: dict[str, StoredDocument[DrainOrder]] = {}
        outcomes: dict[tuple[int, str], StoredDocument[Outcome]] = {}
        damaged: list[str] = []
        single: dict[str, StoredDocument[Any]] = {}
        schema: int | None = None
        for key, entry in entries.items():
            known = before.get(key)
            if known is None and not keys.known(key):
                continue  # A later version may put something there; it is not ours.
            if known is None or (known[0] is not entry and known[0] != entry):
                known = (entry, self._decode(entry))
            decoded[key] = known
            stored = known[1]
            if stored is None:
                damaged.append(key)
                schema = _schema(entry.value) if key == keys.spec else schema
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
            follows=follows,
            damaged=tuple(damaged),
            damaged_at={key: decoded[key][0].mod_revision for key in damaged},
            unreadable=tuple(key for key in damaged if not key.startswith(keys.bearable)),
            schema=schema,
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


def _schema(value: bytes) -> int | None:
    """The version that a document names, None if it names none or this one."""
    try:
        schema = _VERSIONED.decode(value).schema
    except UNREADABLE:
        return None
    return schema if schema != SCHEMA else None


class _Versioned(msgspec.Struct, frozen=True):
    schema: int


_VERSIONED = msgspec.json.Decoder(_Versioned)
_ENCODER = msgspec.json.Encoder()
_MEMBER = msgspec.json.Decoder(Member)
_LEAVE = msgspec.json.Decoder(DrainOrder)
_OUTCOME = msgspec.json.Decoder(Outcome)
_OUTCOME_KEY = re.compile(r"\d{10}/.+")
_SINGLE: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "arrived": msgspec.json.Decoder(Arrival).decode,
    "incarnation": msgspec.json.Decoder(str).decode,
    "secret": msgspec.json.Decoder(str).decode,
    "spec": msgspec.json.Decoder(JobSpec).decode,
    "generation": generation_codec.read,
    "go": msgspec.json.Decoder(Go).decode,
    "verdict": msgspec.json.Decoder(Verdict).decode,
    "saved": msgspec.json.Decoder(SavedCheckpoint).decode,
    "halt": msgspec.json.Decoder(StopOrder).decode,
}
