"""Errors that a rank sends to the others, so that all ranks raise them (pure)."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from elastic.errors import CheckpointError, RestoreUnrecoverable


class RankError(msgspec.Struct, frozen=True):
    """An error of a rank, and whether a retry may succeed."""

    text: str
    transient: bool

    @classmethod
    def of(cls, error: CheckpointError) -> RankError:
        """Return the error as a rank sends it to the others."""
        return cls(str(error), error.transient)


_decoder = msgspec.json.Decoder(RankError | None)


def encode_error(error: RankError | None) -> bytes:
    """Encode the message of a rank; None for no error."""
    return msgspec.json.encode(error)


def decode_errors(messages: Iterable[bytes]) -> list[RankError | None]:
    """Decode the messages of all ranks."""
    return [_decoder.decode(message) for message in messages]


def raise_first(errors: Iterable[RankError | None]) -> None:
    """Raise the first error, the same on all ranks: `CheckpointError` if transient, else `RestoreUnrecoverable`."""
    for error in errors:
        if error is not None:
            raise CheckpointError(error.text, transient=True) if error.transient else RestoreUnrecoverable(error.text)
