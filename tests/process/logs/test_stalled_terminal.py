"""The live status on a terminal that stands still (Ctrl-S, a pager), whose room is for the text."""

from __future__ import annotations

import asyncio
import os
import termios

import pytest

from launcher.logs import console
from launcher.logs.console import Console
from launcher.terminal import status_block
from launcher.terminal.content import BlockContent
from launcher.terminal.status_block import StatusBlock

ROOM = 1 << 15
LOOKS = 600
"""Drawings of some 150 bytes: nearly three times the room."""
LIMIT_S = 30.0


def test_a_terminal_that_stands_still_for_long_has_all_text_when_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "BUFFER_BYTES", ROOM)
    monkeypatch.setattr(status_block, "EVERY_S", 0.001)
    monkeypatch.setattr(status_block, "in_foreground", lambda _: True)

    async def story(screen: int, ours: int) -> None:
        often, shown, looks = asyncio.Event(), asyncio.Event(), 0
        got = bytearray()

        def look() -> BlockContent:
            nonlocal looks
            looks += 1
            if looks >= LOOKS:
                often.set()
            return BlockContent(
                "digits", "world 24", "training", f"step {looks} of 100000", looks / 100_000, "loss 0.1"
            )

        def read() -> None:
            got.extend(os.read(screen, 1 << 16))
            if b"digits" in got.partition(b"important")[2]:
                shown.set()

        output = Console(ours)
        while not output.waiting:
            output.write(b"x" * 1000 + b"\n")
        status = StatusBlock(output, ours, look)
        await often.wait()
        output.write(b"an important line\n")
        asyncio.get_running_loop().add_reader(screen, read)
        await shown.wait()
        status.close()
        output.close()
        assert b"was blocked" not in got

    async def within(screen: int, ours: int) -> None:
        async with asyncio.timeout(LIMIT_S):
            await story(screen, ours)

    screen, ours = os.openpty()
    try:
        termios.tcsetwinsize(ours, (24, 80))
        asyncio.run(within(screen, ours))
    finally:
        os.close(screen)
        os.close(ours)
