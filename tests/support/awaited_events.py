"""Awaiting whatever happens in a story, with one limit for all of it; and the ends of processes of anybody's."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

LIMIT_S = 60.0
"""How long anything may take on a slow machine before a story fails."""

T = TypeVar("T")


def played(story: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Make a test of a coroutine that needs nothing but an event loop."""

    def test() -> None:
        async def within() -> None:
            async with asyncio.timeout(LIMIT_S):
                await story()

        asyncio.run(within())

    test.__name__ = story.__name__
    return test


class Happenings:
    """Wakes whoever waits after everything that happened."""

    def __init__(self) -> None:
        self._looks: list[Callable[[], None]] = []

    async def until(self, look: Callable[[], T | None], what: str, within_s: float = LIMIT_S) -> T:
        """Wait until `look` says something true; it is asked after everything that happens."""
        if found := look():
            return found
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def ask() -> None:
            if answer.done():
                return
            try:
                if found := look():
                    answer.set_result(found)
            except AssertionError as error:
                answer.set_exception(error)

        self._looks.append(ask)
        try:
            async with asyncio.timeout(within_s):
                return await answer
        except TimeoutError:
            raise AssertionError(f"not within {within_s:.0f} s: {what}") from None
        finally:
            self._looks.remove(ask)

    def changed(self) -> None:
        for ask in tuple(self._looks):
            ask()


def marked(mark: str) -> list[int]:
    """Every process that has this text in its environment."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # It has ended, or is another user's.
            if mark.encode() in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def command_of(pid: int) -> str:
    """The command line of a process, "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def runs(pid: int) -> bool:
    """Tell whether a process runs; one that waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def process_end(pid: int) -> None:
    """Wait until a process of anybody's has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(fd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(fd)
        os.close(fd)
