"""One agent's view of the documents of a job in the store, and the encoding of documents (pure).

`elastic.core.view_reader` reads them. Their keys are those of `elastic.core.keys`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from elastic.core import generation_codec
from elastic.core.model import (
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
)

T = TypeVar("T")

Document = (
    str | Leader | JobSpec | Member | Generation | Go | Outcome | Verdict | SavedCheckpoint | StopOrder | DrainOrder
)


@dataclass(frozen=True, slots=True)
class StoredDocument(Generic[T]):
    """A document with the revisions of its key, and its lease (0 without one)."""

    value: T
    create_revision: int
    mod_revision: int
    lease: int = 0


@dataclass(frozen=True, slots=True)
class StoreView:
    """One agent's view of its job in the store, at `revision`.

    `members` and `outcomes` are complete only for an agent that follows all of them (`complete`); other agents see only
    their own. `generation` is the document under the one of `JobKeys.generations` that exists. `damaged` are the keys
    of documents that cannot be read, `damaged_at` are their mod revisions, and `unreadable` are those of them that the
    whole job needs.

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
    def current_generation(self) -> Generation | None:
        """The newest generation of the current run of the job, None before its first one."""
        if self.generation is None or (self.spec is not None and self.spec.value.run != self.generation.value.run):
            return None
        return self.generation.value

    @property
    def budget(self) -> Budget:
        """The used budget of the current run of the job, from the newest document that contains it."""
        generation, go = self.current_generation, self.go.value if self.go is not None else None
        if generation is None:
            return Budget()
        # A charge to a generation that continues is in its next document, which is newer than its start signal.
        started = go is not None and go.g == generation.g and not generation.continues
        return go.budget if go is not None and started else generation.budget


def encode(document: Document) -> bytes:
    """Encode a document as compact JSON; a long generation is compressed."""
    return generation_codec.write(document) if isinstance(document, Generation) else _ENCODER.encode(document)


_ENCODER: Final = msgspec.json.Encoder()
