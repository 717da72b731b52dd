"""What people read of a node's workers, from what the workers say at which time."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from elastic.channel.messages import JoiningGroup, PreparationOver, Preparing, Progress
from launcher.workers.reports.progress_text import (
    PROGRESS_EVERY_S,
    PROGRESS_EVERY_TERMINAL_S,
    ProgressFormatter,
    progress_line,
    rate_words,
)
from launcher.workers.reports.states import RATE_WINDOW_S, TrackedProcess
from launcher.workers.reports.step_rate import METRICS_KEPT_MAX
from tests.support.worker_messages import tracked


class Telling:
    """The workers of a node, and what people read of them."""

    def __init__(self, *, terminal: bool = False) -> None:
        self.formatter = ProgressFormatter(terminal)
        self.workers = {rank: tracked(rank) for rank in range(3)}

    @property
    def first(self) -> TrackedProcess:
        return self.workers[0]

    @property
    def pending(self) -> bool:
        return self.formatter.pending(self.workers.values())

    def reported(self, step: int, world: int, metrics: Mapping[str, float | None], now: float) -> None:
        """Rank 0 made a step."""
        self.first.heard(Progress(step, world, dict(metrics)), now)

    def joining(self, rank: int, missing: str, now: float) -> None:
        self.workers[rank].heard(JoiningGroup(missing), now)

    def preparing(self, rank: int, what: str, now: float) -> None:
        self.workers[rank].heard(Preparing(what) if what else PreparationOver(), now)

    def progress(self, now: float, *, last: bool = False) -> str:
        return self.formatter.progress(self.first.report, now, last=last)

    def waits(self, now: float) -> list[str]:
        return self.formatter.waits(self.workers.values(), now)


@pytest.fixture
def telling() -> Telling:
    return Telling()


# The line of progress


def test_the_line_of_progress_has_step_rate_world_and_loss_before_the_other_metrics() -> None:
    line = progress_line(1200, 24.12, 3, {"accuracy": 0.5, "loss": 0.12341})
    assert line == "step 1200 · 24.1 steps/s · world 3 · loss 0.1234 · accuracy 0.5"


def test_a_slow_rate_is_told_in_seconds_for_a_step_and_an_unknown_one_is_left_out() -> None:
    assert progress_line(5, 0.25, 1, {}) == "step 5 · 4.0 s/step · world 1"
    assert progress_line(5, None, 1, {"loss": None}) == "step 5 · world 1 · loss not finite"


def test_a_rate_that_is_none_is_left_out() -> None:
    assert rate_words(0.0) == ""


def test_the_first_report_is_told_at_once_and_the_next_after_a_while(telling: Telling) -> None:
    telling.reported(1, 2, {"loss": 2.0}, 100.0)
    assert telling.progress(100.0) == "step 1 · world 2 · loss 2"
    telling.reported(11, 2, {"loss": 1.0}, 110.0)
    assert telling.progress(100.0 + PROGRESS_EVERY_S - 1) == ""
    assert telling.progress(100.0 + PROGRESS_EVERY_S) == "step 11 · 1.0 steps/s · world 2 · loss 1"


def test_a_terminal_hears_more_often() -> None:
    telling = Telling(terminal=True)
    for step in (1, 2):
        telling.reported(step, 1, {}, float(step))
        telling.progress(1.0)
    assert telling.progress(1.0 + PROGRESS_EVERY_TERMINAL_S) == "step 2 · 1.0 steps/s · world 1"


def test_nothing_is_told_twice_and_the_last_step_is_told_at_the_end(telling: Telling) -> None:
    assert telling.progress(0.0, last=True) == ""
    telling.reported(1, 1, {}, 0.0)
    assert telling.progress(0.0)
    assert not telling.pending
    assert telling.progress(1000.0) == ""
    telling.reported(8, 1, {}, 7.0)
    assert telling.pending
    assert telling.progress(7.0, last=True) == "step 8 · 1.0 steps/s · world 1"
    assert telling.progress(7.0, last=True) == ""


def test_the_rate_is_that_of_the_last_reports(telling: Telling) -> None:
    for second in range(100):
        telling.reported(second if second < 60 else 60 + (second - 60) * 10, 1, {}, float(second))
    assert telling.progress(100.0, last=True).startswith("step 450 · 10.0 steps/s")


def test_reports_that_are_long_ago_are_not_in_the_rate(telling: Telling) -> None:
    for step, now in ((1, 0.0), (2, 10.0), (3, RATE_WINDOW_S + 5.0)):
        telling.reported(step, 1, {}, now)
    slow = f"step 3 · {RATE_WINDOW_S - 5:.1f} s/step · world 1"
    assert telling.progress(1000.0) == slow


def test_going_back_to_an_older_step_is_no_rate(telling: Telling) -> None:
    telling.reported(500, 1, {}, 0.0)
    telling.reported(100, 1, {}, 1.0)
    assert telling.progress(1.0) == "step 100 · world 1"
    telling.reported(102, 1, {}, 2.0)
    assert telling.progress(2.0, last=True) == "step 102 · 2.0 steps/s · world 1"


def test_a_late_word_about_the_same_step_does_not_slow_the_rate(telling: Telling) -> None:
    telling.reported(1, 1, {}, 0.0)
    telling.reported(11, 1, {}, 1.0)
    telling.reported(11, 1, {"accuracy": 0.9}, 99.0)
    assert telling.progress(99.0) == "step 11 · 10.0 steps/s · world 1 · accuracy 0.9"


def test_a_report_without_metrics_leaves_those_that_were_known(telling: Telling) -> None:
    telling.reported(1, 1, {"loss": 1.0}, 0.0)
    telling.reported(2, 1, {}, 1.0)
    assert telling.progress(1.0) == "step 2 · 1.0 steps/s · world 1 · loss 1"


def test_a_metric_that_is_said_once_in_an_epoch_stays_beside_the_loss_of_each_step(telling: Telling) -> None:
    telling.reported(1, 1, {"accuracy": 0.5, "loss": 2.0}, 0.0)
    telling.reported(2, 1, {"loss": 1.0}, 1.0)
    assert telling.progress(1.0) == "step 2 · 1.0 steps/s · world 1 · loss 1 · accuracy 0.5"


def test_metrics_with_ever_new_names_are_not_all_kept(telling: Telling) -> None:
    for step in range(1000):
        telling.reported(step, 1, {f"name{step}": 1.0}, float(step))
    assert len(telling.first.report.steps.metrics) == METRICS_KEPT_MAX
    assert "name999" in telling.first.report.steps.metrics


# Waits


def test_a_wait_for_others_is_told_every_ten_seconds_with_the_newest_names(telling: Telling) -> None:
    telling.joining(0, "rank 2 (downloading), rank 3", 100.0)
    telling.joining(1, "rank 2 (downloading), rank 3", 101.0)
    assert telling.waits(109.9) == []
    assert telling.waits(110.0) == ["waiting 10 s for rank 2 (downloading), rank 3"]
    telling.joining(0, "rank 2 (unpacking)", 112.0)
    assert telling.waits(119.0) == []
    assert telling.waits(120.5) == ["waiting 20 s for rank 2 (unpacking)"]


def test_a_wait_that_is_over_is_not_told(telling: Telling) -> None:
    telling.joining(0, "rank 1", 0.0)
    telling.joining(0, "", 5.0)
    telling.joining(2, "rank 1", 5.0)
    assert telling.pending
    telling.workers[2].hung_up(6.0)
    assert telling.waits(100.0) == []
    assert not telling.pending


def test_a_preparation_is_told_every_ten_seconds(telling: Telling) -> None:
    telling.preparing(2, "downloading", 100.0)
    assert telling.waits(109.0) == []
    assert telling.waits(110.0) == ["rank 2 is preparing: downloading (10 s)"]
    assert telling.waits(111.0) == []
    telling.preparing(2, "unpacking", 115.0)
    assert telling.waits(140.0) == ["rank 2 is preparing: unpacking (40 s)"]
    assert telling.waits(141.0) == []
    telling.preparing(2, "", 145.0)
    assert telling.waits(200.0) == []
