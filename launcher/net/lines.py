"""Cuts the bytes of a connection into lines."""

from __future__ import annotations

LINE_MAX = 1024
"""Bytes of one line with its end; more than the longest job id, node id and nonce together."""


class LineTooLong(ValueError):
    """The peer sent a line that no agent sends. Close the connection it came over."""


class LineSplitter:
    """Cuts the bytes of one connection into lines. It never holds more than one line and one read."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; every line that is complete now, without its end. `LineTooLong` if one is."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) >= LINE_MAX or any(len(line) >= LINE_MAX for line in lines):
            raise LineTooLong(f"a line is longer than {LINE_MAX} bytes")
        return lines
