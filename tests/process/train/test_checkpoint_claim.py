"""The fence around a checkpoint folder that does not answer."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from elastic.train.checkpoint import fence
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.workers import checkpoint_claim
from launcher.workers.checkpoint_claim import CheckpointClaim
from tests.support.awaited_events import LIMIT_S


class Heard(Console):
    """A console whose lines are awaited."""

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self.lines: asyncio.Queue[str] = asyncio.Queue()

    def write_line(self, text: str) -> None:
        self.lines.put_nowait(text)


def test_a_checkpoint_folder_that_hangs_holds_no_agent_back_and_is_claimed_once_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim before is a pipe: who reads it waits until somebody writes."""
    monkeypatch.setattr(checkpoint_claim, "SLOW_S", 0.0)
    monkeypatch.setattr(checkpoint_claim, "PAUSE_S", 0.0)
    fence.claim(tmp_path, "job/1")
    before = tmp_path / fence.FENCE / "0000000001" / fence.CLAIM
    said = before.read_bytes()
    before.unlink()
    os.mkfifo(before)

    async def story() -> None:
        console = Heard(2)
        claim = CheckpointClaim(tmp_path, AgentLog("n", console, level=Verbosity.QUIET))
        async with asyncio.timeout(LIMIT_S):
            claim.begin("job/2")
            assert "has not responded for" in await console.lines.get()
            pipe = os.open(before, os.O_WRONLY)
            before.rename(before.with_name("pipe"))
            before.write_bytes(said)
            os.close(pipe)  # The reader gets nothing, which is no claim.
            assert "is not fenced: " in await console.lines.get()
            assert "is fenced now" in await console.lines.get()
        claim.end()

    asyncio.run(story())
    found = fence.current(tmp_path)
    assert found is not None
    assert found.mark == "job/2"
