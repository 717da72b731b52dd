"""Which gradients a synchronous step waits for. The gradients are letters here."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from hypothesis.strategies import integers

from elastic.errors import MessageError
from elastic.train.ps.barrier import GradientBarrier


def barrier(*workers: int, trainers: int = 0, step: int = 0) -> GradientBarrier[str]:
    made: GradientBarrier[str] = GradientBarrier(trainers or len(workers), step=step)
    for worker in workers:
        made.add_worker(worker)
    return made


class TestAStep:
    def test_is_complete_when_every_live_worker_has_given_and_then_the_next_begins(self) -> None:
        made = barrier(0, 1)
        made.add_gradients(1, 0, "b")
        assert made.take() == []
        assert made.missing() == [0]
        made.add_gradients(0, 0, "a")
        assert made.take() == ["a", "b"], "in the order of the workers"
        assert made.step == 1
        assert made.take() == []

    def test_takes_what_a_worker_gives_once(self) -> None:
        made = barrier(0, 1)
        made.add_gradients(0, 0, "a")
        made.add_gradients(0, 0, "again")
        made.add_gradients(1, 0, "b")
        assert made.take() == ["a", "b"]
        made.add_gradients(0, 0, "late")
        assert made.take() == [], "a retry of a step that is done"
        assert made.take() == []

    def test_does_not_wait_for_a_worker_that_left_but_keeps_what_it_gave(self) -> None:
        made = barrier(0, 1, 2)
        made.add_gradients(1, 0, "b")
        made.remove_worker(1)
        made.add_gradients(0, 0, "a")
        assert made.take() == []
        made.remove_worker(2)
        assert made.take() == ["a", "b"]
        made.add_gradients(0, 1, "a")
        assert made.take() == ["a"]

    def test_with_nothing_given_is_never_complete(self) -> None:
        made = barrier(0)
        made.remove_worker(0)
        assert made.take() == []
        assert made.step == 0


class TestTheFirstStep:
    def test_waits_until_all_trainers_have_come(self) -> None:
        made = barrier(0, trainers=2)
        made.add_gradients(0, 0, "a")
        assert made.take() == []
        assert made.absent() == 1
        made.add_worker(1)
        assert made.missing() == [1]
        made.add_gradients(1, 0, "b")
        assert made.take() == ["a", "b"]

    def test_counts_a_worker_that_came_and_was_lost_as_one_that_has_come(self) -> None:
        made = barrier(0, 1, trainers=2)
        made.remove_worker(1)
        made.add_gradients(0, 0, "a")
        assert made.take() == ["a"]

    def test_was_done_before_the_server_came_back(self) -> None:
        made: GradientBarrier[str] = GradientBarrier(2, step=9, opened=True)
        made.add_worker(0)
        made.add_gradients(0, 9, "a")
        assert made.take() == ["a"]


class TestComingLater:
    def test_a_newcomer_is_waited_for_from_the_step_being_gathered(self) -> None:
        made = barrier(0)
        made.add_gradients(0, 0, "a")
        made.take()
        assert made.add_worker(1) == 1
        made.add_gradients(0, 1, "a")
        assert made.take() == []
        made.add_gradients(1, 1, "b")
        assert made.take() == ["a", "b"]

    def test_one_that_gives_to_a_later_step_is_not_waited_for_before_it(self) -> None:
        made = barrier(0)
        made.add_worker(1)
        made.add_gradients(1, 1, "b")
        made.add_gradients(0, 0, "a")
        assert made.take() == ["a"]
        made.add_gradients(0, 1, "a")
        assert made.take() == ["a", "b"]

    def test_a_process_that_takes_over_a_number_gives_to_the_next_step_if_the_old_one_gave_to_this(self) -> None:
        made = barrier(0, 1)
        made.add_gradients(1, 0, "b")
        made.remove_worker(1)
        assert made.add_worker(1) == 1
        made.add_gradients(0, 0, "a")
        assert made.take() == ["a", "b"]

    def test_coming_back_does_not_make_a_worker_due_twice(self) -> None:
        made = barrier(0, 1)
        made.add_gradients(1, 0, "b")
        assert made.add_worker(1) == 1
        made.add_gradients(0, 0, "a")
        assert made.take() == ["a", "b"]

    def test_a_worker_that_comes_back_twice_is_not_waited_for_where_it_has_given_before(self) -> None:
        made = barrier(0, 1)
        made.add_gradients(1, 0, "b0")
        made.remove_worker(1)
        assert made.add_worker(1) == 1
        made.add_gradients(1, 1, "b1")
        made.remove_worker(1)
        assert made.add_worker(1) == 1
        made.add_gradients(1, 1, "b1 again")
        made.remove_worker(0)
        assert [made.take(), made.take(), made.missing()] == [["b0"], ["b1"], []]


class TestAServerWithAnOlderState:
    def test_moves_on_to_the_step_that_everybody_is_at(self) -> None:
        made = barrier(0, 1, step=3)
        made.add_gradients(0, 8, "a")
        assert made.take() == []
        made.add_gradients(1, 8, "b")
        assert made.take() == ["a", "b"]
        assert made.step == 9

    def test_does_first_the_step_that_one_worker_is_behind(self) -> None:
        made = barrier(0, 1, step=3)
        made.add_gradients(0, 8, "a8")
        made.add_gradients(1, 7, "b7")
        assert made.take() == ["b7"]
        made.add_gradients(1, 8, "b8")
        assert made.take() == ["a8", "b8"]


def test_a_worker_that_does_not_wait_for_its_steps_is_refused() -> None:
    made = barrier(0, 1)
    made.add_gradients(0, 0, "a")
    made.add_gradients(0, 1, "a")
    with pytest.raises(MessageError, match="worker 0"):
        made.add_gradients(0, 2, "a")


class Workers(RuleBasedStateMachine):
    """Workers that come, give, wait, leave and come back, as they like.

    Whatever they do, nothing given is applied twice, and a step never waits while everybody live has given to it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.barrier: GradientBarrier[tuple[int, int]] = GradientBarrier(2)
        self.at: dict[int, int] = {}
        self.live: set[int] = set()
        self.waiting: dict[int, int] = {}
        self.applied: list[tuple[int, int]] = []

    @initialize()
    def two(self) -> None:
        self.come(0)
        self.come(1)

    @rule(worker=integers(0, 3))
    def come(self, worker: int) -> None:
        due = self.barrier.add_worker(worker)
        if worker not in self.waiting:  # What it waits for it asks for again, whatever it is due at now.
            self.at[worker] = max(due, self.at.get(worker, 0))
        self.live.add(worker)
        self._take()

    @precondition(lambda self: self.live - set(self.waiting))
    @rule(pick=integers(0, 3))
    def give(self, pick: int) -> None:
        free = sorted(self.live - set(self.waiting))
        worker = free[pick % len(free)]
        step = self.at[worker]
        self.barrier.add_gradients(worker, step, (worker, step))
        assert step < self.barrier.step or self._held(worker, step)
        self.waiting[worker] = step
        self._take()

    @precondition(lambda self: len(self.live) > 1)
    @rule(pick=integers(0, 3))
    def leave(self, pick: int) -> None:
        worker = sorted(self.live)[pick % len(self.live)]
        self.live.discard(worker)
        self.waiting.pop(worker, None)
        self.barrier.remove_worker(worker)
        self._take()

    def _held(self, worker: int, step: int) -> bool:
        return (worker, step) not in self.applied

    def _take(self) -> None:
        while given := self.barrier.take():
            self.applied += given
        for worker, step in list(self.waiting.items()):
            if self.barrier.step > step:
                del self.waiting[worker]
                self.at[worker] = max(self.at[worker], self.barrier.step)

    @invariant()
    def nothing_is_applied_twice(self) -> None:
        assert len(set(self.applied)) == len(self.applied)

    @invariant()
    def somebody_live_can_always_move(self) -> None:
        assert not self.live or self.live - set(self.waiting)


Workers.TestCase.settings = settings(max_examples=100, stateful_step_count=40)
TestWorkers = Workers.TestCase
