"""A terminal on which a node runs, and what a person sees there."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pyte

from tests.support.awaited_events import Happenings

TAKE = """
import fcntl, os, sys, termios
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
for one in range(3):
    os.dup2(fd, one)
os.environ.pop("CI", None)
os.environ.pop("NO_COLOR", None)
os.environ["TERM"] = "xterm-256color"
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Makes the terminal that is named that of this session, and runs the rest of the command there."""


class Terminal:
    """What stands on it, as a terminal emulator shows it."""

    def __init__(self, controller: int, name: str, told: Happenings, columns: int, rows: int) -> None:
        self.name = name
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._controller = controller
        self._told = told
        self.resize(columns, rows)
        asyncio.get_running_loop().add_reader(controller, self._read)

    @property
    def within(self) -> tuple[str, ...]:
        """The command that runs another one there."""
        return (sys.executable, "-c", TAKE, self.name)

    @property
    def lines(self) -> list[str]:
        """What is to be seen, without blank lines."""
        return [line.rstrip() for line in self.screen.display if line.strip()]

    @property
    def all_lines(self) -> list[str]:
        """The same, with what has scrolled away."""
        past = ("".join(line[at].data for at in range(self.screen.columns)) for line in self.screen.history.top)
        return [line.rstrip() for line in [*past, *self.screen.display] if line.strip()]

    async def shows(self, *words: str) -> None:
        """Wait until all these words are to be seen."""

        def look() -> bool | None:
            seen = "\n".join(self.lines)
            return all(word in seen for word in words) or None

        await self._told.until(look, f"a screen with {words}")

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._controller, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen.resize(rows, columns)

    def _read(self) -> None:
        try:
            data = os.read(self._controller, 1 << 16)
        except OSError:  # Nobody has it open any more.
            asyncio.get_running_loop().remove_reader(self._controller)
            return
        self._stream.feed(data)
        self._told.changed()


@contextmanager
def terminal(told: Happenings, columns: int = 100, rows: int = 24) -> Iterator[Terminal]:
    """A terminal, in the loop that runs."""
    controller, slave = pty.openpty()
    try:
        yield Terminal(controller, os.ttyname(slave), told, columns, rows)
    finally:
        asyncio.get_running_loop().remove_reader(controller)
        os.close(controller)
        os.close(slave)
