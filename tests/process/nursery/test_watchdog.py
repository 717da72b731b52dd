"""The agent's patience with its nursery."""

from __future__ import annotations

import asyncio
import time

import pytest

from launcher.workers import nursery_watchdog


def test_a_look_that_comes_too_late_gives_the_time_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery_watchdog, "ANSWER_LIMIT_S", 0.1)
    monkeypatch.setattr(nursery_watchdog, "LATE_S", 0.2)

    async def main() -> None:
        silent = asyncio.Event()
        watch = nursery_watchdog.NurseryWatchdog(silent.set)
        watch.ordered()
        time.sleep(0.4)  # noqa: ASYNC251  # this process stands still
        began = time.monotonic()
        await silent.wait()
        assert time.monotonic() - began > 0.05
        assert watch.missing == 1

    asyncio.run(main())


def test_every_answer_gives_the_next_order_its_own_time_and_the_last_ends_the_watch() -> None:
    async def main() -> None:
        watch = nursery_watchdog.NurseryWatchdog(lambda: pytest.fail("nothing was missing"))
        watch.ordered()
        watch.ordered()
        watch.answered(1)
        assert watch.missing == 1
        watch.answered(2)
        assert watch.missing == 0
        assert watch._look is None

    asyncio.run(main())
