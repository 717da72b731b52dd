"""What a node says while it waits."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from elastic.store.memory_store import MemoryStore
from launcher import waiting
from launcher.console import Console
from launcher.logs import Narrator
from launcher.waiting import WaitingLines
from tests.unit.bench import spare
from tests.unit.documents import KEYS


def test_a_node_that_waits_says_for_whom_and_how_long_it_has_been_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "FIRST_S", 0.0)
    monkeypatch.setattr(waiting, "EVERY_S", 0.0)
    bench = spare(np="3:3")
    clock = itertools.count(100.0, 20.0)
    said: list[str] = []
    enough = asyncio.Event()

    class Heard(Narrator):
        def say(self, text: str) -> None:
            said.append(text)
            if len(said) == 2:
                enough.set()

    async def main() -> None:
        store = MemoryStore(bench.shelf.core, lambda: 0.0)
        with (tmp_path / "console").open("w") as file:
            narrator = Heard("b", Console(file.fileno()))
        lines = WaitingLines(bench.core, store, KEYS, narrator, lambda: next(clock))
        running = asyncio.create_task(lines.run())
        await enough.wait()
        running.cancel()

    asyncio.run(main())
    # The clock moves by 20 s with every look at it: one for the question, one for the answer.
    assert said == [
        "2 of 3 nodes are here; waiting for 1 more (40 s so far)",
        "2 of 3 nodes are here; waiting for 1 more (80 s so far)",
    ]
