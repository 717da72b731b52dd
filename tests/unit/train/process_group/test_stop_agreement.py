"""The agreement on the step of a planned stop, with the operations of all ranks in any order."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.train.process_group.stop_agreement import (
    BoardOperation,
    BoardPause,
    BoardRead,
    CommitVerdict,
    CompareAndSwap,
    CounterAdd,
    at_commit,
)

STEPS_MAX = 400


class Board:
    """The shared board as a dict."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def do(self, operation: BoardOperation) -> int:
        match operation:
            case CounterAdd(key, amount):
                self.numbers[key] = self.numbers.get(key, 0) + amount
                return self.numbers[key]
            case BoardRead(key):
                return self.numbers.get(key, 0)
            case CompareAndSwap(key, old, new):
                if self.numbers.get(key, 0) == old:
                    self.numbers[key] = new
                return self.numbers[key]
            case BoardPause():
                return 0


@dataclass
class Rank:
    """One worker: it trains, and takes part in the agreement once it has heard."""

    hears_at: int
    """The word is there from this many turns of this rank on."""
    step: int = 0
    turns: int = 0
    counted: bool = False
    stopped: bool = False
    rules: Generator[BoardOperation, int, CommitVerdict] | None = None
    pending: BoardOperation | None = None


def turn(rank: Rank, ranks: list[Rank], board: Board, last: int, *, collective: bool) -> None:
    """Let one rank do one thing: an operation on the board, or the step that it is in."""
    rank.turns += 1
    if rank.rules is not None:
        assert rank.pending is not None
        try:
            rank.pending = rank.rules.send(board.do(rank.pending))
        except StopIteration as end:
            rank.rules, rank.pending = None, None
            rank.stopped = end.value is CommitVerdict.STOP
        return
    if rank.step == last:
        return  # The script is at its end.
    if collective and any(other.step < rank.step or (other.stopped and other.step == rank.step) for other in ranks):
        return  # The collective of the next step waits for who is behind.
    rank.step += 1
    if rank.turns >= rank.hears_at:
        rank.rules = at_commit(rank.step, len(ranks), first=not rank.counted)
        rank.counted = True
        rank.pending = next(rank.rules)


def play(hears: list[int], order: list[int], last: int, *, collective: bool) -> list[Rank]:
    ranks, board = [Rank(at) for at in hears], Board()
    for one in order:
        rank = ranks[one % len(ranks)]
        if not rank.stopped:
            turn(rank, ranks, board, last, collective=collective)
    for _ in range(STEPS_MAX * len(ranks)):  # Then everybody gets turns in equal measure.
        for rank in ranks:
            if not rank.stopped:
                turn(rank, ranks, board, last, collective=collective)
    return ranks


@settings(max_examples=300)
@given(
    hears=st.lists(st.integers(1, 60), min_size=1, max_size=5),
    order=st.lists(st.integers(0, 4), max_size=400),
    collective=st.booleans(),
)
def test_all_ranks_stop_at_the_same_step_in_whatever_order_they_hear_and_act(
    hears: list[int], order: list[int], collective: bool
) -> None:
    ranks = play(hears, order, last=10**6, collective=collective)
    assert all(rank.stopped for rank in ranks)
    assert len({rank.step for rank in ranks}) == 1


@settings(max_examples=150)
@given(
    hears=st.lists(st.integers(1, 30), min_size=2, max_size=4),
    order=st.lists(st.integers(0, 3), max_size=200),
    last=st.integers(1, 12),
)
def test_a_script_that_is_at_its_end_holds_nobody_up(hears: list[int], order: list[int], last: int) -> None:
    ranks = play(hears, order, last, collective=True)
    assert all(rank.stopped or (rank.step == last and rank.rules is None) for rank in ranks)
    assert len({rank.step for rank in ranks}) == 1


def test_nobody_stops_while_one_has_not_heard() -> None:
    ranks = play([1, 1, 10**9], [0, 1, 2] * 50, last=200, collective=True)
    assert [(rank.stopped, rank.step) for rank in ranks] == [(False, 200)] * 3
