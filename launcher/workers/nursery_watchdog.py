"""When a nursery that is alive and does nothing is ended, and how soon one that died is replaced.

A frozen nursery reports no exit and obeys no stop, so that without this watch a job would wait for it for ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

AGAIN_S = 0.5
"""Between the two looks at a nursery. It needs a few milliseconds to report or to answer."""

LASTED_S = 60.0
"""A nursery that lived for so long was in order; whatever ended it, the next begins a new row."""
DEATHS_MAX = 6
"""In a row. With the pauses the last of them comes a quarter of a minute after the first, and its imports besides."""
PAUSE_S = 0.5


class NurseryWatchdog:
    """Calls `silent` if something is still `missing` when its time is up.

    It looks twice, `AGAIN_S` apart: this process, or the whole machine, may have been suspended until the first look,
    and the nursery with it, which gets its time once more then, but not twice. The loop reads what the nursery has sent
    before it calls timers, so that what came while this process was suspended is known at each look.
    """

    def __init__(self, missing: Callable[[], bool], silent: Callable[[], None]) -> None:
        """Nothing is expected yet."""
        self._missing = missing
        self._silent = silent
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, limit_s: float) -> None:
        """What is missing now, if anything, is to come within so many seconds, but at least `AGAIN_S`."""
        self.stop()
        if self._missing():
            self._look_in(max(limit_s - AGAIN_S, 0.0), last=False)

    def stop(self) -> None:
        """Nothing is expected any more."""
        if self._timer is not None:
            self._timer.cancel()

    def _look_in(self, delay_s: float, *, last: bool) -> None:
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._look, last)

    def _look(self, last: bool) -> None:
        if self._missing():
            if last:
                self._silent()
            else:
                self._look_in(AGAIN_S, last=True)


@dataclass(slots=True)
class NurseryBackoff:
    """The deaths of one node's nurseries, in a row."""

    in_row: int = 0

    def died(self, lived_s: float) -> float | None:
        """One died after so many seconds: how long to wait before the next, None if there is to be none."""
        self.in_row = 1 if lived_s >= LASTED_S else self.in_row + 1
        if self.in_row > DEATHS_MAX:
            return None
        return PAUSE_S * 2.0 ** (self.in_row - 2) if self.in_row > 1 else 0.0
