"""Errors that a rank sends to the others, and that all of them raise (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elastic.errors import CheckpointError, RestoreUnrecoverable


class RankError(msgspec.Struct, frozen=True):
    """What went wrong on a rank, and whether the next try may do better."""

    text: str
    transient: bool

    @classmethod
    def of(cls, error: CheckpointError) -> RankError:
        """The error as a rank sends it to the others."""
        return cls(str(error), error.transient)


_decoder = msgspec.json.Decoder(RankError | None)


def encode_error(error: RankError | None) -> bytes:
    """The message of a rank, which may have no error to tell."""
    return msgspec.json.encode(error)


def decode_errors(messages: Iterable[bytes]) -> list[RankError | None]:
    """What each rank has sent, by rank."""
    return [_decoder.decode(message) for message in messages]


def raise_first(errors: Iterable[RankError | None]) -> None:
    """Raise the first error that a rank has sent, the same on all ranks: unrecoverable unless it is transient."""
    for error in errors:
        if error is not None:
            raise CheckpointError(error.text, transient=True) if error.transient else RestoreUnrecoverable(error.text)
