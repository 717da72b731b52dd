"""Queries the linked nodes in rounds while the core doubts that they are alive."""

from __future__ import annotations

from collections.abc import Callable, Collection

NEVER = float("-inf")
RECENT_ROUNDS = 2
"""A node may be late with one answer if it answered a question at most this many rounds before."""


class LinkDoubt:
    """Sends one query per round to every linked node; a node that does not answer counts as not linked.

    A node that misses a query counts as silent until it answers another one, its link is new, or the doubt is over. One
    missed answer is tolerated if the node has just answered the query before: a busy host can pause for longer than
    the query waits.
    """

    def __init__(
        self,
        ask: Callable[[int], None],
        tell: Callable[[frozenset[str], float], None],
        later: Callable[[float, Callable[[], None]], object],
        clock: Callable[[], float],
    ) -> None:
        """Take `ask(number)`, which queries every linked node and leads to `answered`, and `later(seconds, call)`.

        `tell(nodes, heard_at)` gets the nodes whose link is up and that are not silent, at each change and after each
        round; `heard_at` is when the newest query was sent, on `clock`, that none of these nodes has missed.
        """
        self._ask, self._tell, self._later, self._clock = ask, tell, later, clock
        self._wanted = False
        self._every_s = 0.0
        self._number = 0
        self._open = False
        self._asked_at = self._answered_at = self._heard_at = NEVER
        self._up: frozenset[str] = frozenset()
        self._asked: frozenset[str] = frozenset()
        self._answered: frozenset[str] = frozenset()
        self._silent: frozenset[str] = frozenset()

    def every(self, seconds: float) -> None:
        """Query at once and then at this interval; 0.0 stops the rounds."""
        self._wanted, self._every_s = bool(seconds), seconds or self._every_s
        if self._wanted and not self._open:
            self._begin()

    def links_changed(self, up: Collection[str]) -> None:
        """Take the links that are up now. A node with a new link is not silent, even if it missed queries before."""
        self._up = frozenset(up)
        self._asked &= self._up
        self._silent &= self._up
        self._tell(self._up - self._silent, self._heard_at)

    def answered(self, number: int, nodes: frozenset[str]) -> None:
        """End a round; `nodes` have answered in time."""
        if number != self._number:
            return
        missed = self._asked - nodes
        recent = self._asked_at <= self._answered_at + RECENT_ROUNDS * self._every_s
        self._silent = missed - self._answered if recent else missed
        self._answered, self._answered_at = nodes, self._asked_at
        if not missed - self._silent:
            self._heard_at = self._asked_at
        self._tell(self._up - self._silent, self._heard_at)
        self._later(max(self._asked_at + self._every_s - self._clock(), 0.0), self._next)

    def _next(self) -> None:
        self._open = False
        if self._wanted:
            self._begin()
        elif self._silent:
            self._silent = frozenset()
            self._tell(self._up, self._heard_at)

    def _begin(self) -> None:
        self._open = True
        self._number += 1
        self._asked, self._asked_at = self._up, self._clock()
        self._ask(self._number)
