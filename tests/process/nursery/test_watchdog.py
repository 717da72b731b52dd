"""The agent's patience with its nursery."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from launcher.workers import nursery_watchdog
from launcher.workers.nursery_watchdog import NurseryWatchdog
from tests.support.nursery_harness import nest


def test_a_look_that_comes_too_late_gives_the_time_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_watchdog, "AGAIN_S", 0.1)

    async def main() -> None:
        silent = asyncio.Event()
        NurseryWatchdog(lambda: True, silent.set).expect(0.2)
        time.sleep(0.4)  # noqa: ASYNC251  # this process stands still
        began = time.monotonic()
        await silent.wait()
        assert time.monotonic() - began > 0.05

    asyncio.run(main())


def test_what_comes_between_the_two_looks_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_watchdog, "AGAIN_S", 0.05)

    async def main() -> None:
        looks, over = 0, asyncio.Event()

        def missing() -> bool:
            nonlocal looks
            looks += 1
            if looks == 3:
                over.set()
            return looks < 3

        NurseryWatchdog(missing, lambda: pytest.fail("it came")).expect(0.1)
        await over.wait()

    asyncio.run(main())


def test_where_nothing_is_missing_there_is_no_timer() -> None:
    async def main() -> None:
        watch = NurseryWatchdog(lambda: False, lambda: pytest.fail("nothing was missing"))
        watch.expect(1.0)
        assert watch._timer is None

    asyncio.run(main())


def test_each_order_of_a_nursery_is_answered_and_the_last_answer_ends_the_watch(tmp_path: Path) -> None:
    async def main() -> None:
        async with nest(tmp_path) as it:
            it.workers.spawn(1, [it.spec("")])
            it.workers.stop(10)
            await it.spawned()
            await it.exited()
            await it.gone()
            process = it.workers._process
            assert process is not None
            assert process._ordered == process._answered == 3
            timer = process._answers._timer
            assert timer is not None
            assert timer.cancelled()

    asyncio.run(main())
