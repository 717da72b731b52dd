"""The agreement of all workers on the step at which they stop, after a planned stop was requested.

The request reaches the ranks at different times, and no rank may stop at a step that another one has already left:
that rank would wait for it in a collective. So each rank, from its first commit after it received the request:

1. publishes the step that it has reached, and counts itself as notified;
2. while a rank is not notified, publishes that it enters step s+1, and continues;
3. once all ranks are notified, continues only if a rank has entered a later step; otherwise it parks at s;
4. stops when all ranks are parked at s, and counts itself as having seen that. While it waits, it may see that a rank
   has entered s+1: then it follows.

Once all ranks are notified, no rank enters a step that none had entered before, so all stop at the highest entered
step. The rules assume nothing about the collectives of a step, and before the request a step needs no collective and
no message.

The rules are a generator of single operations on a board that all ranks share (torch's store), so that a test can
order the operations of many ranks in any way.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

POLL_S: Final = 0.002
POLL_EACH_S: Final = 20e-6
"""A parked rank polls every `POLL_S`, plus this for each rank, so that many ranks do not flood the store."""
LEAVE_LIMIT_S: Final = 10.0
"""The time that rank 0, which hosts the board, waits for the others to see that all ranks are parked."""
LINGER_S: Final = 1.0
"""The time that it then waits for them to save and exit. A rank that is killed before delays it no longer."""
PREFIX: Final = "elastic/stop/"


@dataclass(frozen=True, slots=True)
class CounterAdd:
    """Add to a counter that starts at 0; the result is its new value."""

    key: str
    amount: int


@dataclass(frozen=True, slots=True)
class BoardRead:
    """Read a number; 0 if the key does not exist."""

    key: str


@dataclass(frozen=True, slots=True)
class CompareAndSwap:
    """Write `new` if the value is `old` (0: the key does not exist); the result is the value afterwards."""

    key: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class BoardPause:
    """Wait for a poll interval; the result is 0."""


BoardOperation = CounterAdd | BoardRead | CompareAndSwap | BoardPause


class CommitVerdict(Enum):
    """The decision of a rank after a commit."""

    CONTINUE = "continue"
    STOP = "stop"


HEARD: Final = "heard"
SEEN: Final = "seen"
TOP: Final = "top"


def at_commit(step: int, world: int, *, first: bool) -> Generator[BoardOperation, int, CommitVerdict]:
    """Decide, after the commit of `step`, whether a notified rank stops. `first`: its first such commit."""
    if first:  # If steps have no collective, this rank may be ahead of all others.
        yield from _raise_top(step)
    heard = yield CounterAdd(HEARD, 1 if first else 0)
    if heard < world:
        yield from _raise_top(step + 1)
        return CommitVerdict.CONTINUE
    top = yield BoardRead(TOP)
    if top > step:
        return CommitVerdict.CONTINUE
    parked = yield CounterAdd(f"parked/{step}", 1)
    while parked < world:
        top = yield BoardRead(TOP)
        if top > step:
            return CommitVerdict.CONTINUE
        yield BoardPause()
        parked = yield CounterAdd(f"parked/{step}", 0)
    yield CounterAdd(SEEN, 1)
    return CommitVerdict.STOP


def _raise_top(step: int) -> Generator[BoardOperation, int, None]:
    top = yield BoardRead(TOP)
    while top < step:
        top = yield CompareAndSwap(TOP, top, step)


class StopBoard:
    """The board: the store of the process group. Each generation has a new store, so the keys are its own."""

    def __init__(self, store: Any, world: int) -> None:
        """`store` is a `torch.distributed.Store`."""
        self._store = store
        self._pause_s = POLL_S + world * POLL_EACH_S

    def do(self, operation: BoardOperation) -> int:
        """Execute one operation."""
        match operation:
            case CounterAdd(key, amount):
                return int(self._store.add(PREFIX + key, amount))
            case BoardRead(key):
                return int(self._store.get(PREFIX + key)) if self._store.check([PREFIX + key]) else 0
            case CompareAndSwap(key, old, new):
                return int(self._store.compare_set(PREFIX + key, str(old) if old else "", str(new)))
            case BoardPause():
                time.sleep(self._pause_s)
                return 0

    def run(self, rules: Generator[BoardOperation, int, CommitVerdict]) -> CommitVerdict:
        """Execute the rules, and return their decision."""
        try:
            operation = next(rules)
            while True:
                operation = rules.send(self.do(operation))
        except StopIteration as end:
            return CommitVerdict(end.value)

    def leave(self, rank: int, world: int) -> None:
        """Wait until the others no longer need this rank; the last call of each rank.

        Rank 0 returns when all others have called it, or `LINGER_S` after all have seen where to stop, or after
        `LEAVE_LIMIT_S`, because a killed rank may not have seen it. Another rank returns at once, even if the board is
        gone: everything is saved.
        """
        try:
            left = self.do(CounterAdd("left", 1))
        except RuntimeError:  # torch raises it when rank 0, which hosts the store, has exited.
            if rank == 0:
                raise
            return
        began_s = time.monotonic()
        limit_s = LEAVE_LIMIT_S
        while rank == 0 and left < world and time.monotonic() < began_s + limit_s:
            self.do(BoardPause())
            left = self.do(CounterAdd("left", 0))
            if limit_s != LINGER_S and self.do(CounterAdd(SEEN, 0)) >= world:
                began_s, limit_s = time.monotonic(), LINGER_S
