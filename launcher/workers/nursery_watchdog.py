"""When a fork server that runs but does nothing is killed, and how soon one that died is replaced.

A frozen fork server reports no exit and obeys no stop, so that without this watchdog a job would wait for it
indefinitely.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

AGAIN_S = 0.5
"""Time between the two checks of a fork server. It needs a few milliseconds to report or to answer."""

LASTED_S = 60.0
"""A fork server that lived for this time was healthy; whatever ended it, the next death starts a new count."""
DEATHS_MAX = 6
"""Consecutive deaths. With the pauses the last one comes a quarter of a minute after the first, plus its imports."""
PAUSE_S = 0.5


class NurseryWatchdog:
    """Calls `silent` if something is still `missing` at its deadline.

    It checks twice, `AGAIN_S` apart: this process, or the whole host, may have been suspended until the first check,
    and the fork server with it, which then gets its time once more, but not twice. The loop reads what the fork server
    has sent before it calls timers, so that reports that arrived while this process was suspended are known at each
    check.
    """

    def __init__(self, missing: Callable[[], bool], silent: Callable[[], None]) -> None:
        """`missing` returns whether an answer of the fork server is missing; `silent` is called if it stays missing."""
        self._missing = missing
        self._silent = silent
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, limit_s: float) -> None:
        """Expect what is missing now, if anything, within `limit_s`, but at least `AGAIN_S`."""
        self.stop()
        if self._missing():
            self._look_in(max(limit_s - AGAIN_S, 0.0), last=False)

    def stop(self) -> None:
        """Stop expecting answers."""
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
    """Counts the consecutive deaths of one node's fork servers."""

    in_row: int = 0

    def died(self, lived_s: float) -> float | None:
        """Note a death after `lived_s` seconds: returns the back-off before the next start, None to give up."""
        self.in_row = 1 if lived_s >= LASTED_S else self.in_row + 1
        if self.in_row > DEATHS_MAX:
            return None
        return PAUSE_S * 2.0 ** (self.in_row - 2) if self.in_row > 1 else 0.0
