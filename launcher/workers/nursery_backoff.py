"""How soon a nursery that died is replaced."""

from __future__ import annotations

from dataclasses import dataclass

LASTED_S = 60.0
"""A nursery that lived for so long was in order; whatever ended it, the next begins a new row."""
DEATHS_MAX = 6
"""In a row. With the pauses the last of them comes a quarter of a minute after the first, and its imports besides."""
PAUSE_S = 0.5


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
