"""How soon a nursery that died is replaced."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.workers.nursery_watchdog import DEATHS_MAX, LASTED_S, PAUSE_S


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
