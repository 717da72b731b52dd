"""Where `elastic-ctl logs` writes a log: as one stream, or as whole lines that name their rank."""

from __future__ import annotations

from typing import Final, Protocol

from launcher.system.stdout import write_stdout
from launcher.text.terminal_filter import TerminalFilter, filter_stream

LINE_MAX: Final = 1 << 16
"""Bytes after which a line that does not end is written in parts."""


class LogOutput(Protocol):
    """Takes the bytes of one log."""

    def feed(self, data: bytes) -> None:
        """Write the next bytes."""

    def note(self, text: str) -> None:
        """Write a message that is not part of the log, on a separate line."""

    def interrupt(self) -> None:
        """Something else is about to be written: end colours and sequences of the log."""

    def close(self) -> None:
        """Write the remaining output."""


class StreamOutput:
    """Writes one log as it arrives. With `raw` its bytes are unchanged, otherwise they are safe for a terminal."""

    def __init__(self, *, raw: bool) -> None:
        """With `raw` the bytes are unchanged."""
        self._filter = None if raw else TerminalFilter()
        self._whole_line = True

    def feed(self, data: bytes) -> None:
        """Write the next bytes."""
        write_stdout(data if self._filter is None else self._filter.feed(data))
        self._whole_line = data.endswith(b"\n")

    def note(self, text: str) -> None:
        """Write a line that is not part of the log."""
        self.interrupt()
        write_stdout(b"" if self._whole_line else b"\n")
        write_stdout(f"{text}\n".encode())
        self._whole_line = True

    def interrupt(self) -> None:
        """End the worker's colours and sequences."""
        if self._filter is not None and (rest := self._filter.end()):
            write_stdout(rest)

    def close(self) -> None:
        """End the worker's colours and sequences."""
        self.interrupt()


class LineOutput:
    """Writes whole lines, each behind a prefix, so that several logs can share a terminal.

    If a progress bar has rewritten a line repeatedly, only its last state is shown, unless the output is `raw`.
    """

    def __init__(self, prefix: str, *, raw: bool) -> None:
        """With `raw` the bytes are unchanged."""
        self._prefix = prefix.encode()
        self._raw = raw
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """Write the lines that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        while len(self._rest) > LINE_MAX:
            lines.append(self._rest[:LINE_MAX])
            self._rest = self._rest[LINE_MAX:]
        if lines:
            write_stdout(b"".join(map(self._line, lines)))

    def note(self, text: str) -> None:
        """Write a line that is not part of the log."""
        self.close()
        write_stdout(self._line(text.encode()))

    def interrupt(self) -> None:
        """Do nothing: lines are always complete."""

    def close(self) -> None:
        """Write the line that was not complete."""
        rest, self._rest = self._rest, b""
        if rest:
            write_stdout(self._line(rest))

    def _line(self, line: bytes) -> bytes:
        if not self._raw:
            line = filter_stream(line.rstrip(b"\r").rpartition(b"\r")[2])
        return b"%s%s\n" % (self._prefix, line)
