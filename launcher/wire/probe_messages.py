"""The documents of a reachability probe in the store (pure).

`elastic-ctl doctor` writes a probe. Every member that reads it tries to connect to every other one and writes an
answer. The job depends on neither: invalid documents are ignored.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import DocumentError

WORDS_MAX = 300
UNREACHED_MAX = 1000
"""Maximum nodes that an answer names; its size stays far below the limit of etcd."""
BYTES_MAX = 1_000_000

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,32}\Z")]
Words = Annotated[str, msgspec.Meta(max_length=WORDS_MAX)]


class Probe(msgspec.Struct, frozen=True):
    """One probe. `at` is the client's wall clock, seconds since the epoch, for display only."""

    id: Id
    at: float


class UnreachedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member that could not be reached, and why."""

    node: Words
    why: Words


class ProbeAnswer(msgspec.Struct, frozen=True):
    """The result of one member: the number of others it reached, those it did not, and the number of untried ones."""

    reached: Annotated[int, msgspec.Meta(ge=0)]
    unreached: tuple[UnreachedMember, ...] = ()
    untried: Annotated[int, msgspec.Meta(ge=0)] = 0


T = TypeVar("T", Probe, ProbeAnswer)


def encode(document: Probe | ProbeAnswer) -> bytes:
    """Encode a document as compact JSON."""
    return msgspec.json.encode(document)


def read(value: bytes, kind: type[T]) -> T:
    """Decode a document of this kind. Raises `DocumentError` if it is invalid."""
    if len(value) > BYTES_MAX:
        raise DocumentError(f"{len(value)} bytes are more than a probe or an answer may have")
    try:
        return msgspec.json.decode(value, type=kind)
    except UNREADABLE as error:
        raise DocumentError(f"not a probe or an answer: {error}") from error
