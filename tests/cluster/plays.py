"""One job for a file of tests: each strikes it with a fault, and the last one lets it end.

A job starts in some seconds and recovers in less, so the tests share it. When one of them breaks it, the others say so.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.cluster import engine
from tests.cluster.faults import FAULTS, Heal
from tests.cluster.stage import MACHINES, Stage, stage

REASON = engine.missing()
MARKS = [
    pytest.mark.hosts,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(REASON) and "ELASTIC_HOSTS_REQUIRED" not in os.environ, reason=REASON or "an engine runs"),
]
ALIVE_STEPS = 25
"""About a second of training."""


class Play:
    """A stage whose job trains, and the loop that it lives in."""

    def __init__(self, runner: asyncio.Runner, on: Stage) -> None:
        self._runner = runner
        self._on = on
        self._broken = ""
        self._dice = Random(1)

    def act(self, name: str, story: Callable[[Stage], Coroutine[Any, Any, None]]) -> None:
        """Run one test's part."""
        if self._broken:
            pytest.fail(f"the job was broken by {self._broken}")
        self._broken = name
        self._runner.run(story(self._on))
        self._broken = ""

    async def strike(self, name: str) -> Heal:
        """Let this fault begin."""
        self._on.note(name)
        return await FAULTS[name].strike(self._on, self._dice)

    def costs_a_machine(self, name: str, *, shown_by: str = "") -> None:
        """While the fault lasts the others train, and afterwards all do.

        `shown_by`: another fault, that is over at once; training may not feel the first one before the next start.
        """

        async def story(on: Stage) -> None:
            heal = await self.strike(name)
            if shown_by:
                await self.strike(shown_by)
            await on.trains(len(on.machines) - 1)
            await heal()
            await on.all_here()

        self.act(name, story)

    def costs_a_restart(self, name: str) -> None:
        """The fault ends a generation; the next one has all machines."""

        async def story(on: Stage) -> None:
            _, before = await on.trains(len(on.machines), steps=0)
            heal = await self.strike(name)
            while (await on.trains(len(on.machines), steps=0))[1] == before:
                pass
            await heal()
            await on.all_here()

        self.act(name, story)

    def is_survived(self, name: str, *, struck: str) -> None:
        """When the fault has struck, which a line tells, it is healed, and all machines train again."""

        async def story(on: Stage) -> None:
            since = on.now
            heal = await self.strike(name)
            await on.says(struck, since=since)
            await heal()
            await on.all_here()

        self.act(name, story)

    def costs_nothing(self, name: str, *, steps: int, lasts_s: float = 0.0) -> None:
        """While the fault lasts, and afterwards, the same generation trains; it makes so many steps meanwhile.

        The fault lasts `lasts_s` at least. Without a step it is over as soon as it has begun: the training stands
        still while it lasts.
        """

        async def story(on: Stage) -> None:
            _, before = await on.trains(len(on.machines), steps=0)
            heal = await self.strike(name)
            until_s = time.monotonic() + lasts_s
            during = (await on.trains(len(on.machines), steps=steps))[1] if steps else before
            while during == before and time.monotonic() < until_s:
                during = (await on.trains(len(on.machines), steps=steps))[1]
            await heal()
            _, after = await on.trains(len(on.machines), steps=ALIVE_STEPS)
            on.heal()
            assert (during, after) == (before, before), on.feed.tail()

        self.act(name, story)


@contextmanager
def play(folder: Path, *flags: str, machines: int = MACHINES, etcd: str = "3.5") -> Iterator[Play]:
    """A play whose job trains on all machines."""
    with asyncio.Runner() as runner:
        context = stage(folder, *flags, machines=machines, etcd=etcd)
        on = runner.run(context.__aenter__())
        try:
            runner.run(on.begin())
            yield Play(runner, on)
        finally:
            (folder / "feed.log").write_text(on.feed.tail(1 << 30))
            runner.run(context.__aexit__(None, None, None))
