"""The event loop beside a training script: nothing is left of it at its end."""

from __future__ import annotations

import asyncio

from elastic.train.ps.loop_thread import LoopThread


def test_a_task_that_still_runs_is_cancelled_and_has_ended_when_the_loop_stops() -> None:
    thread = LoopThread("test")
    ended: list[bool] = []
    tasks: list[asyncio.Task[None]] = []

    async def forever() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await asyncio.sleep(0)  # What is done after the cancellation is waited for, too.
            ended.append(True)

    async def begin() -> None:
        tasks.append(asyncio.create_task(forever()))
        await asyncio.sleep(0)

    thread.run(begin())
    thread.stop()
    assert ended == [True]
    assert tasks[0].cancelled()
