"""Errors that a rank tells the others, as bytes, and raises in turn (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from elastic.errors import CheckpointError, RestoreUnrecoverable


def encode_error(error: Exception | None, *, unrecoverable: bool) -> bytes:
    """What a rank tells the others of its error: b"" for none; else the first byte is for `is_unrecoverable`."""
    return b"" if error is None else (b"!" if unrecoverable else b"?") + str(error).encode()


def is_unrecoverable(said: bytes) -> bool:
    """Tell whether the rank that said it has no hope in another start."""
    return said.startswith(b"!")


def raise_first(words: Iterable[bytes]) -> None:
    """Raise the first error that a rank has told, the same on all ranks."""
    for said in words:
        if said:
            raise (RestoreUnrecoverable if is_unrecoverable(said) else CheckpointError)(said[1:].decode())
