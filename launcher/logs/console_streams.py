"""How workers' output is shown on a console: unchanged, as lines of several workers, or as JSON.

`ConsoleStreams` belongs to a node, a `ConsoleStream` to one output of one worker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final

from elastic.core.ps.model import Role
from elastic.core.text import processes_name
from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter
from launcher.text.dedup import LineDeduplicator, MergedLine

LINE_BYTES: Final = 1 << 16
"""An unfinished line is held back up to this length where whole lines are shown."""
AT_ONCE: Final = 2000
"""The output of a worker that writes more lines than this at once is not compared with that of others."""

ProcessRef = tuple[Role, int]
"""Its role, and its rank or index."""


class ConsoleStream:
    """The console for one output of one worker: shows each byte at once, even unfinished lines and progress bars."""

    def __init__(self, console: Console) -> None:
        """`console` receives the output."""
        self.console = console

    def write(self, data: bytes) -> None:
        """Show further bytes."""
        self.console.write(data)

    def end(self) -> None:
        """Note the end of the output; an unfinished line stays as it is."""


class ConsoleStreams:
    """The consoles of a node for its workers."""

    def __init__(self, consoles: tuple[Console, Console], node: str = "", lines: JsonFormatter | None = None) -> None:
        """`consoles` are for stdout and stderr; both may be the same. With `lines` JSON is shown."""
        self.consoles = consoles
        self._node = node
        self._lines = lines
        shared_console = {console: SharedConsole(console, node) for console in consoles}
        self._shared_consoles = tuple(shared_console[console] for console in consoles)

    def of(
        self, role: Role, rank: int, local_rank: int, g: int, *, shared: bool
    ) -> tuple[ConsoleStream, ConsoleStream]:
        """Return the streams for stdout and stderr of a process, which may be `shared` with others of its node."""
        if self._lines is not None:
            line = partial(self._lines.worker_line, role, rank, local_rank, g)
            return (
                _JsonStream(self.consoles[0], partial(line, "stdout")),
                _JsonStream(self.consoles[1], partial(line, "stderr")),
            )
        if shared:
            who = (role, rank)
            return _PrefixedStream(self._shared_consoles[0], who), _PrefixedStream(self._shared_consoles[1], who)
        return ConsoleStream(self.consoles[0]), ConsoleStream(self.consoles[1])


class _LineStream(ConsoleStream):
    """Shows whole lines only. An unfinished one is shown at the end, or when it is very long."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._unfinished = b""

    def write(self, data: bytes) -> None:
        whole, end, self._unfinished = (self._unfinished + data).rpartition(b"\n")
        if end:
            self._say(whole.split(b"\n"))
        if len(self._unfinished) > LINE_BYTES:
            self._finish()

    def end(self) -> None:
        self._finish()

    def _finish(self) -> None:
        """Show an unfinished line as if it ended here."""
        if self._unfinished:
            self._say([self._unfinished])
        self._unfinished = b""

    def _say(self, lines: Sequence[bytes]) -> None:
        raise NotImplementedError


class _PrefixedStream(_LineStream):
    """One of several workers that share a console."""

    def __init__(self, shared_console: SharedConsole, who: ProcessRef) -> None:
        super().__init__(shared_console.console)
        self._shared_console = shared_console
        self._who = who
        shared_console.join(who)

    def end(self) -> None:
        super().end()
        self._shared_console.leave(self._who)

    def _say(self, lines: Sequence[bytes]) -> None:
        self._shared_console.write_lines(self._who, [after_carriage_returns(line) for line in lines])


class _JsonStream(_LineStream):
    """Shows one object for each line."""

    def __init__(self, console: Console, said: Callable[[datetime, bytes], bytes]) -> None:
        super().__init__(console)
        self._said = said

    def _say(self, lines: Sequence[bytes]) -> None:
        now = datetime.now(UTC)
        self.console.write(b"".join(self._said(now, after_carriage_returns(line)) for line in lines))


class SharedConsole:
    """The workers that share a console. Lines that several of them write are shown once (`launcher.text.dedup`)."""

    def __init__(self, console: Console, node: str) -> None:
        """`node` is shown before each line, "" for none. `join` adds workers."""
        self.console = console
        self._node = node
        self._collapse: LineDeduplicator[ProcessRef] = LineDeduplicator()
        self._outputs: dict[ProcessRef, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def join(self, who: ProcessRef) -> None:
        """Add an output of a worker."""
        self._outputs[who] = self._outputs.get(who, 0) + 1
        self._collapse.join(who)

    def leave(self, who: ProcessRef) -> None:
        """Remove an output of a worker."""
        self._outputs[who] -= 1
        if not self._outputs[who]:
            del self._outputs[who]
            self._show(self._collapse.leave(who))

    def write_lines(self, who: ProcessRef, lines: Sequence[bytes]) -> None:
        """Take whole lines of a worker."""
        if len(lines) > AT_ONCE:
            self._show(self._collapse.flush())
            prefix = self._prefix((who,))
            self.console.write(prefix + (b"\n" + prefix).join(lines) + b"\n")
        else:
            self._show(self._collapse.add_lines(who, lines, time.monotonic()))

    def _show(self, shown: Sequence[MergedLine[ProcessRef]]) -> None:
        if shown:
            self.console.write(b"".join(b"%s%s\n" % (self._prefix(line.who), line.text) for line in shown))
        at = self._collapse.due_at
        if at is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._due)

    def _due(self) -> None:
        self._timer = None
        self._show(self._collapse.due(time.monotonic()))

    def _prefix(self, who: Iterable[ProcessRef]) -> bytes:
        node = f"[{self._node}] " if self._node else ""
        return f"{node}{processes_name(who)}: ".encode(errors="surrogateescape")


def after_carriage_returns(line: bytes) -> bytes:
    """Return what a terminal would show of a line that was overwritten with carriage returns: its last state."""
    return line.rstrip(b"\r").rpartition(b"\r")[2] if b"\r" in line else line
