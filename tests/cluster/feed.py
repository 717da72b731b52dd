"""All that the agents of a cluster say, in one order, as something to await."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """One line, and the machine whose agent said it."""

    machine: str
    text: str


class Feed:
    """Lines in the order in which they came here."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self._news = asyncio.Condition()

    async def add(self, machine: str, text: str) -> None:
        """One more line."""
        async with self._news:
            self.lines.append(Line(machine, text))
            self._news.notify_all()

    async def until(
        self, pattern: str, *, since: int, limit_s: float, of: str | None = None
    ) -> tuple[int, re.Match[str]]:
        """Wait for a line from place `since` on, of one machine or of any; the place after it, and what matched.

        Raises TimeoutError, which says what it waited for and shows the last lines.
        """
        place = since
        try:
            async with asyncio.timeout(limit_s), self._news:
                while True:
                    await asyncio.sleep(0)  # So that a limit that is over ends this, however many lines there are.
                    while place < len(self.lines):
                        line, place = self.lines[place], place + 1
                        found = re.search(pattern, line.text) if of in (None, line.machine) else None
                        if found:
                            return place, found
                    await self._news.wait()
        except TimeoutError:
            whom = of or "any machine"
            text = f"no line {pattern!r} of {whom} within {limit_s:g} s; the last lines:\n{self.tail()}"
            raise TimeoutError(text) from None

    def tail(self, count: int = 60) -> str:
        """The newest lines, for a person."""
        return "\n".join(f"{line.machine}  {line.text}" for line in self.lines[-count:])
