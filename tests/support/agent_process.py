"""One agent as a test sees it: its lines, its end, and every process below it."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from launcher.agent.node_id import MARK
from tests.support.awaited_events import LIMIT_S, Happenings, command_of, marked, process_end

DISK_WARNING = "its disk is nearly full"
"""The end of a line about the machine that runs the tests, not about what they prove."""


class Process(Protocol):
    """What a node's process offers: one that asyncio has started does, and so does a forked one."""

    @property
    def pid(self) -> int: ...
    @property
    def stdout(self) -> asyncio.StreamReader | None: ...
    @property
    def stderr(self) -> asyncio.StreamReader | None: ...
    @property
    def returncode(self) -> int | None: ...
    def send_signal(self, number: int, /) -> None: ...
    async def wait(self) -> int: ...


@dataclass
class Node:
    """One agent, its two outputs as lines, and the mark that all its processes carry."""

    name: str
    folder: Path
    process: Process
    mark: str
    told: Happenings
    lines: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    ended: bool = False

    @property
    def id(self) -> str:
        """The node's id, as the agent writes it in front of its lines."""
        for line in self.lines:
            if found := re.match(rf"\[elastic-launch ([^ -]+-{MARK})\] ", line):
                return found[1]
        raise AssertionError(f"node {self.name} has not said its name")

    @property
    def now(self) -> int:
        """A place in its lines, for `says(since=...)`."""
        return len(self.lines)

    async def follow(self) -> None:
        """Read its lines until it ends, and tell of each."""

        async def read(stream: asyncio.StreamReader | None, lines: list[str]) -> None:
            assert stream is not None
            async for line in stream:
                text = line.decode(errors="replace").rstrip("\n")
                if not text.endswith(DISK_WARNING):
                    lines.append(text)
                    self.told.changed()

        await asyncio.gather(read(self.process.stderr, self.lines), read(self.process.stdout, self.shown))
        await self.process.wait()
        self.ended = True
        self.told.changed()

    async def says(self, pattern: str, *, since: int = 0, within_s: float = LIMIT_S) -> re.Match[str]:
        """Wait for a line on stderr; fails at once when the agent has ended without it."""
        return await self._waits(self.lines, pattern, since, within_s)

    async def shows(self, pattern: str) -> re.Match[str]:
        """Wait for a line on stdout."""
        return await self._waits(self.shown, pattern, 0, LIMIT_S)

    async def _waits(self, lines: list[str], pattern: str, since: int, within_s: float) -> re.Match[str]:
        def look() -> re.Match[str] | None:
            found = next((match for line in lines[since:] if (match := re.search(pattern, line))), None)
            assert found or not self.ended, f"node {self.name} ended and never said {pattern!r}"
            return found

        return await self.told.until(look, f"node {self.name} says {pattern!r}", within_s)

    async def exits(self, within_s: float = LIMIT_S) -> int:
        """Wait for its end, and for the rest of its lines; the exit code (minus a signal)."""
        await self.told.until(lambda: self.ended, f"node {self.name} ends", within_s)
        assert self.process.returncode is not None
        return self.process.returncode

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def killed(self) -> None:
        """SIGKILL to the agent alone; returns when nothing at all is left of the node."""
        self.signal(signal.SIGKILL)
        await self.exits()
        await self.leaves_nothing()

    async def leaves_nothing(self) -> None:
        """Wait until no process that was started below this agent is left, whatever its session or parent."""
        try:
            async with asyncio.timeout(LIMIT_S):
                while pids := self.processes():
                    for pid in pids:
                        await process_end(pid)
        except TimeoutError:
            left = ", ".join(map(command_of, self.processes()))
            raise AssertionError(f"left of node {self.name}: {left}") from None

    def processes(self) -> list[int]:
        """Every process with the mark of this node in its environment."""
        return marked(self.mark)

    def writers(self) -> list[int]:
        """The process that writes its logs, none once it has ended."""
        return [pid for pid in self.processes() if "writes logs" in command_of(pid)]

    def nursery(self) -> int:
        """The nursery's process."""
        for pid in self.processes():
            if "launcher.nursery.main" in command_of(pid):
                return pid
        raise AssertionError(f"node {self.name} has no nursery")

    def text(self, name: str) -> str:
        """A file of its log folder, with all that the agent has said by now."""
        return (self.logs() / name).read_text()

    def logs(self) -> Path:
        """Its log folder, when what the agent has said by now is written there."""
        until_s = time.monotonic() + LIMIT_S
        while any(map(_is_busy, self.writers())):
            assert time.monotonic() < until_s, f"the logs of node {self.name} are not written"
            time.sleep(0.001)  # Nobody tells of it.
        return self.folder / "log"


def _is_busy(pid: int) -> bool:
    """Tell whether the process that writes logs has something to do: it does not wait for its pipe."""
    with contextlib.suppress(OSError):  # It has ended.
        return "pipe" not in Path(f"/proc/{pid}/wchan").read_text()
    return False


def endpoints(node: Node, name: str = "endpoints.log") -> list[str]:
    first, *others = node.text(name).splitlines()
    assert first == "PADDLE_TRAINER_ENDPOINTS:"
    return others
