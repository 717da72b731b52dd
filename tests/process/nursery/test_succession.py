"""A nursery forks its successor, which loads what a script has imported and takes the node over when nothing runs."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.nursery.protocol import (
    ChildExited,
    ChildrenForked,
    GenerationExited,
    ModuleToLoad,
    ModuleUnfit,
    NurseryReady,
    PrepareSuccessor,
)
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system import node_lock
from launcher.system.processes import adopt_orphans
from tests.support.nursery_harness import LIMIT_S, Nest, nest, watch_end

pytestmark = pytest.mark.timeout(120)

WARM = PreloadConfig("", (), None, ())
SEES = "import sys; print('wave' in sys.modules, flush=True); sys.stdin.read() if len(sys.argv) > 1 else None"
WAITS = "import sys, time; print('wave' in sys.modules, flush=True); time.sleep(1000)"
WAVE = str(getattr(importlib.util.find_spec("wave"), "origin", ""))


def prepare(it: Nest, file: str = WAVE, on_end: Callable[[ModuleUnfit], None] = lambda unfit: None) -> None:
    order = PrepareSuccessor((ModuleToLoad("wave", file, ()),), ("RANK",), (), (), 1.0)
    assert it.workers.prepare(order, (), lambda report: None, on_end)


class Ended:
    """What a successor says when it must not have loaded a module."""

    def __init__(self) -> None:
        self._said: asyncio.Queue[ModuleUnfit] = asyncio.Queue()

    def __call__(self, unfit: ModuleUnfit) -> None:
        self._said.put_nowait(unfit)

    async def said(self) -> ModuleUnfit:
        async with asyncio.timeout(LIMIT_S):
            return await self._said.get()


async def runs(it: Nest, g: int, code: str) -> str:
    """One worker from its start to its end: the last line that it wrote."""
    it.run_for(60)
    it.log().unlink(missing_ok=True)
    it.workers.spawn(g, [it.program(sys.executable, "-c", code, env=dict(os.environ))])
    assert isinstance(event := await it.next(), ChildrenForked)
    assert event.cold == ("",)
    assert isinstance(await it.next(), ChildExited)
    await it.gone()
    return it.log().read_text().splitlines()[-2]


async def ready(it: Nest) -> None:
    """The successor has taken over."""
    async with asyncio.timeout(LIMIT_S):
        while not isinstance(await it.events.get(), NurseryReady):
            pass


def _ends(pidfd: int) -> bool:
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(1000 * LIMIT_S))


def test_workers_find_what_the_successor_has_loaded_and_the_old_nursery_ends(tmp_path: Path) -> None:
    async def story() -> None:
        adopt_orphans()
        lock = tmp_path / "lock"
        async with nest(tmp_path, recipe=WARM, lock=lock) as it:
            old = it.workers.pid
            assert old is not None
            assert await runs(it, 1, SEES) == "False"
            has_ended = watch_end(old)
            prepare(it)
            await ready(it)
            new = it.workers.pid
            assert new not in (None, old)
            assert await asyncio.to_thread(has_ended, LIMIT_S)
            assert lock.exists()
            assert not node_lock.proven_dead(lock), "the successor holds it"
            for g in (2, 3):
                assert await runs(it, g, SEES) == "True"
            has_ended = watch_end(new or 0)
        assert await asyncio.to_thread(has_ended, LIMIT_S)
        assert not lock.exists()

    asyncio.run(story())


def test_a_successor_waits_until_the_workers_of_the_old_nursery_are_gone(tmp_path: Path) -> None:
    async def story() -> None:
        adopt_orphans()
        async with nest(tmp_path, recipe=WARM) as it:
            old = it.workers.pid
            it.workers.spawn(1, [it.program(sys.executable, "-c", WAITS, env=dict(os.environ))])
            assert isinstance(await it.next(), ChildrenForked)
            prepare(it)
            await is_ready(it)
            assert it.workers.pid == old
            it.workers.kill()
            assert isinstance(await it.next(), ChildExited)
            assert isinstance(await it.next(), GenerationExited)
            assert it.workers.pid != old
            assert await runs(it, 2, SEES) == "True"

    asyncio.run(story())


def test_a_successor_that_must_not_have_loaded_a_module_says_so_and_another_one_can_be_made(tmp_path: Path) -> None:
    async def story() -> None:
        adopt_orphans()
        async with nest(tmp_path, recipe=WARM) as it:
            ended = Ended()
            prepare(it, "/another/wave.py", ended)
            assert await ended.said() == ("wave", f"is {WAVE} here, and /another/wave.py in the script")
            prepare(it, WAVE, ended)
            await ready(it)
            assert await runs(it, 1, SEES) == "True"

    asyncio.run(story())


def test_a_nursery_that_dies_takes_its_successor_with_it(tmp_path: Path) -> None:
    async def story() -> None:
        adopt_orphans()
        async with nest(tmp_path, recipe=WARM) as it:
            prepare(it)
            async with asyncio.timeout(LIMIT_S):
                while it.workers._successor is None or it.workers._successor.pidfd < 0:
                    await asyncio.sleep(0.001)
            successor = it.workers._successor
            fd = os.dup(successor.pidfd)
            os.kill(it.workers.pid or 0, 9)
            assert await asyncio.to_thread(_ends, fd)
            os.close(fd)

    asyncio.run(story())
