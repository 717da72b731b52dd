"""How all workers find one step at which they stop, once a planned stop was asked for.

The word reaches the ranks at different moments, and no rank may stop at a step that another one has already left:
the other would wait for it in a collective. So each rank, from its first commit after it heard the word:

1. says which step it has reached, and counts itself as one that has heard;
2. while somebody has not heard, says "I enter step s+1" and goes on;
3. once all have heard, goes on only if somebody has entered a later step; otherwise it parks at s;
4. stops when all are parked at s, and counts itself as one that has seen it. While it waits, somebody may turn out to
   have entered s+1: then it follows.

After all have heard nobody enters a step that was not entered before, so they meet at the highest one. Nothing is
assumed about the collectives of a step, and before the word a step costs nothing: no collective, no request.

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
"""A parked rank asks again after `POLL_S` and so much more for each rank, so that a large world does not flood it."""
LEAVE_LIMIT_S: Final = 10.0
"""How long rank 0, which has the board, stays until the others have seen that all are parked."""
LINGER_S: Final = 1.0
"""How long it then stays until they have saved and left. One that is killed before it leaves is not waited for."""
PREFIX: Final = "elastic/stop/"


@dataclass(frozen=True, slots=True)
class CounterAdd:
    """Add to a counter that starts at 0; the answer is its new value."""

    key: str
    amount: int


@dataclass(frozen=True, slots=True)
class BoardRead:
    """Read a number; 0 if nobody wrote it."""

    key: str


@dataclass(frozen=True, slots=True)
class CompareAndSwap:
    """Write `new` if `old` stands there (0: nothing does); the answer is what stands there afterwards."""

    key: str
    old: int
    new: int


@dataclass(frozen=True, slots=True)
class BoardPause:
    """Wait a little; the answer is 0."""


BoardOperation = CounterAdd | BoardRead | CompareAndSwap | BoardPause


class CommitVerdict(Enum):
    """What a rank does after a commit."""

    GO_ON = "go on"
    STOP = "stop"


HEARD: Final = "heard"
SEEN: Final = "seen"
TOP: Final = "top"


def at_commit(step: int, world: int, *, first: bool) -> Generator[BoardOperation, int, CommitVerdict]:
    """What a rank that has heard the word does after its commit of `step`. `first`: it is its first one since."""
    if first:  # Where steps have no collective, this rank may be ahead of all others.
        yield from _raise_top(step)
    heard = yield CounterAdd(HEARD, 1 if first else 0)
    if heard < world:
        yield from _raise_top(step + 1)
        return CommitVerdict.GO_ON
    top = yield BoardRead(TOP)
    if top > step:
        return CommitVerdict.GO_ON
    parked = yield CounterAdd(f"parked/{step}", 1)
    while parked < world:
        top = yield BoardRead(TOP)
        if top > step:
            return CommitVerdict.GO_ON
        yield BoardPause()
        parked = yield CounterAdd(f"parked/{step}", 0)
    yield CounterAdd(SEEN, 1)
    return CommitVerdict.STOP


def _raise_top(step: int) -> Generator[BoardOperation, int, None]:
    top = yield BoardRead(TOP)
    while top < step:
        top = yield CompareAndSwap(TOP, top, step)


class StopBoard:
    """The store of the process group as the board. Every key is this generation's: the store is new with it."""

    def __init__(self, store: Any, world: int) -> None:
        """`store` is a `torch.distributed.Store`."""
        self._store = store
        self._pause_s = POLL_S + world * POLL_EACH_S

    def do(self, operation: BoardOperation) -> int:
        """Carry out one operation."""
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
        """Carry out the rules to their end."""
        try:
            operation = next(rules)
            while True:
                operation = rules.send(self.do(operation))
        except StopIteration as end:
            return CommitVerdict(end.value)

    def leave(self, rank: int, world: int) -> None:
        """The last call. Rank 0 returns when all others have called it, or have seen where to stop `LINGER_S` ago.

        It gives up after `LEAVE_LIMIT_S`: who is killed may not even have seen it.
        Another rank that no longer finds the board returns too: everything is saved, and only rank 0 would look there.
        """
        try:
            left = self.do(CounterAdd("left", 1))
        except RuntimeError:  # What torch raises when rank 0, whose process has the store, is gone.
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
