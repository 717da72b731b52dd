"""Splits the bytes of a connection into lines. Standard library only, because the fork server also uses it."""

from __future__ import annotations

LINE_MAX = 1024
"""Maximum bytes of one line with its end; more than the longest job ID, node ID and nonce together."""


class LineTooLong(ValueError):
    """The peer sent a line that is longer than any valid one. Close its connection."""


class LineSplitter:
    """Splits the bytes of one connection into lines. It never holds more than one line and one read."""

    __slots__ = ("_limit", "_rest")

    def __init__(self, limit: int = LINE_MAX) -> None:
        """Take the maximum bytes of a line, including its end."""
        self._limit = limit
        self._rest = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take bytes; return every complete line, without its end. Raises `LineTooLong`."""
        self._rest += data
        lines: list[bytes] = []
        if b"\n" in data:
            *lines, rest = bytes(self._rest).split(b"\n")
            self._rest = bytearray(rest)
        if len(self._rest) >= self._limit or any(len(line) >= self._limit for line in lines):
            raise LineTooLong(f"a line is longer than {self._limit} bytes")
        return lines
