"""When an agent's events came."""

from __future__ import annotations

import asyncio

from elastic.core.agent.events import Event, Tick, WorkersGone
from launcher.agent.core_driver import EventQueue


def test_each_event_has_the_moment_in_which_it_came_and_not_that_in_which_it_is_taken() -> None:
    async def main() -> None:
        now = [1.0]
        queue = EventQueue(lambda: now[0])
        given: tuple[Event, ...] = (Tick(), WorkersGone(1), Tick())
        for event in given:
            now[0] += 1
            queue.put_nowait(event)
        now[0] = 100.0
        taken = [await queue.get() for _ in given]
        assert taken == [(given[0], 2.0), (given[1], 3.0), (given[2], 4.0)]

    asyncio.run(main())
