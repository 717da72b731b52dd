"""Detects a nursery that is alive and does not answer.

A frozen nursery reports no exit and obeys no stop, so that without this watch a job would wait for it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

ANSWER_LIMIT_S = 2.0
"""How long the oldest order may stay without an answer. A nursery needs a few milliseconds."""

LATE_S = 0.5
"""A look that comes so much too late says that this process stood still itself, perhaps the nursery with it."""


class NurseryWatchdog:
    """Counts orders and answers, and calls `silent` when an order has had no answer for `ANSWER_LIMIT_S`."""

    def __init__(self, silent: Callable[[], None]) -> None:
        """Nothing is ordered yet. Must be made within the loop."""
        self._loop = asyncio.get_running_loop()
        self._silent = silent
        self._ordered = 0
        self._answered = 0
        self._look: asyncio.TimerHandle | None = None

    @property
    def missing(self) -> int:
        """How many orders have no answer yet."""
        return self._ordered - self._answered

    def ordered(self) -> None:
        """One more order is on its way."""
        self._ordered += 1
        if self._look is None:
            self._wait()

    def answered(self, orders: int) -> None:
        """The nursery has obeyed so many orders in all."""
        self._answered = orders
        self.stop()
        if self.missing:
            self._wait()

    def stop(self) -> None:
        """Wait no longer."""
        if self._look is not None:
            self._look.cancel()
        self._look = None

    def _wait(self) -> None:
        due_s = self._loop.time() + ANSWER_LIMIT_S
        self._look = self._loop.call_at(due_s, self._due, due_s)

    def _due(self, due_s: float) -> None:
        if self._loop.time() > due_s + LATE_S:
            self._wait()  # The nursery gets its time anew: both may have been frozen, or the machine is too slow.
            return
        self._look = None
        self._silent()
