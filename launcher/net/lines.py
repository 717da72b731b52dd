"""Cuts the bytes of a connection into lines. Standard library only: the fork server uses it, too."""

from __future__ import annotations

LINE_MAX = 1024
"""Bytes of one line with its end; more than the longest job id, node id and nonce together."""


class LineTooLong(ValueError):
    """The peer sent a line that is longer than any of ours. Close the connection it came over."""


class LineSplitter:
    """Cuts the bytes of one connection into lines. It never holds more than one line and one read."""

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = LINE_MAX) -> None:
        """No line has more bytes than `limit`, its end included."""
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; every line that is complete now, without its end. `LineTooLong` if one is."""
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if len(self._rest) >= self._limit or any(len(line) >= self._limit for line in lines):
            raise LineTooLong(f"a line is longer than {self._limit} bytes")
        return lines
