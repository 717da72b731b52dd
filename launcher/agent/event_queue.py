"""The queue of an agent's events: it knows when each of them came, however late it is looked at."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from elastic.core.agent.events import Event


class EventQueue(asyncio.Queue[Event]):
    """Without a bound. `arrived_at` is when the event that was taken last had been put in, by `clock`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Nothing has come yet."""
        super().__init__()
        self._clock = clock
        self._times: deque[float] = deque()
        self.arrived_at = clock()

    def _put(self, item: Event) -> None:
        self._times.append(self._clock())
        super()._put(item)

    def _get(self) -> Event:
        self.arrived_at = self._times.popleft()
        return super()._get()
