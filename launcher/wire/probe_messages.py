"""The question who can reach whom, as documents in the store (pure).

Somebody writes a probe. Every member that sees it tries to reach every other one and answers. Neither is part of what
the job stands on: a document that does not fit is left out.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import DocumentError

WORDS_MAX = 300
UNREACHED_MAX = 1000
"""An answer names no more nodes than this; it stays far below what a store takes."""
BYTES_MAX = 1_000_000

Id = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{8,32}\Z")]
Words = Annotated[str, msgspec.Meta(max_length=WORDS_MAX)]


class Probe(msgspec.Struct, frozen=True):
    """One question. `at` is the asker's wall clock, seconds since the epoch, for people only."""

    id: Id
    at: float


class UnreachedMember(msgspec.Struct, frozen=True, array_like=True):
    """A member that could not be reached, and why."""

    node: Words
    why: Words


class ProbeAnswer(msgspec.Struct, frozen=True):
    """What one member found: how many others it reached, which not, and how many it had no time for."""

    reached: Annotated[int, msgspec.Meta(ge=0)]
    unreached: tuple[UnreachedMember, ...] = ()
    untried: Annotated[int, msgspec.Meta(ge=0)] = 0


T = TypeVar("T", Probe, ProbeAnswer)


def encode(document: Probe | ProbeAnswer) -> bytes:
    """Write a document as compact JSON."""
    return msgspec.json.encode(document)


def read(value: bytes, kind: type[T]) -> T:
    """Read a document of this kind; `DocumentError` says what does not fit."""
    if len(value) > BYTES_MAX:
        raise DocumentError(f"{len(value)} bytes are more than a probe or an answer may have")
    try:
        return msgspec.json.decode(value, type=kind)
    except UNREADABLE as error:
        raise DocumentError(f"not a probe or an answer: {error}") from error
