"""The encoding of a generation in the store: JSON, compressed if it is long (pure).

Every agent reads the whole document at every change, so its length determines the cost of a change in a large job. With
one worker on each node, a member takes about 130 bytes of JSON, and 20 to 33 bytes after zlib. A short document is not
compressed, so that `etcdctl get` shows it. `read` accepts both forms at any length: a zlib stream begins with "x", and
JSON never does.
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec

from elastic.core.model import Generation

PLAIN_BYTES_MAX = 4096
"""The longest JSON that is not compressed: about 28 members."""
ZLIB_LEVEL = 5
"""The leader compresses once, every agent receives the result, and each level inflates equally fast. For 1,000 members
on EC2: level 1 takes 0.6 ms and leaves 30.9 kB, level 5 1.4 ms and 27.1 kB, level 6 1.9 ms and 26.6 kB, level 9 8 ms
and 26.4 kB."""
INFLATED_BYTES_MAX = 8 << 20
"""The longest JSON that a document may inflate to. The largest document that the store takes (1.4 MB) has about 50,000
members, which are 7 MB of JSON. Decoding JSON takes at most 17 times its length, so at most 140 MB here."""
ZLIB_START: Final = b"x"
T = TypeVar("T", bound=Generation)

_ENCODER = msgspec.json.Encoder()


def write(generation: Generation) -> bytes:
    """Encode a generation as its document."""
    text = _ENCODER.encode(generation)
    return text if len(text) <= PLAIN_BYTES_MAX else zlib.compress(text, ZLIB_LEVEL)


def read(document: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a document.

    Pass a decoder that was made at import: msgspec analyses a type when it makes a decoder, and crashes if two threads,
    each with an agent's loop, make it analyse the same type at the same time.

    Raises `ValueError`, which says what is wrong, or one of `elastic._decode.UNREADABLE`.
    """
    return decoder.decode(_inflate(document) if document.startswith(ZLIB_START) else document)


def _inflate(document: bytes) -> bytes:
    """Inflate one zlib stream that fills the document, to at most `INFLATED_BYTES_MAX` bytes."""
    stream = zlib.decompressobj()
    try:
        text = stream.decompress(document, INFLATED_BYTES_MAX + 1)
    except zlib.error as error:
        raise ValueError(f"the compressed document is damaged: {error}") from error
    if len(text) > INFLATED_BYTES_MAX:
        raise ValueError(f"the document inflates to more than {INFLATED_BYTES_MAX} bytes")
    if not stream.eof:
        raise ValueError("the compressed document is truncated")
    if stream.unused_data:
        raise ValueError(f"{len(stream.unused_data)} bytes follow the end of the compressed document")
    return text
