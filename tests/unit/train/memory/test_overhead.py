"""The line that says that copies to memory cost too much."""

from __future__ import annotations

from elastic.train.memory.overhead import COMMITS, COMMITS_SKIPPED, CommitOverhead


def said(step_s: float, blocked_s: list[float]) -> list[str]:
    """What is said when each step takes `step_s` and each commit blocks so long."""
    toll, now, lines = CommitOverhead(), 0.0, []
    for blocked in blocked_s:
        began = now + step_s
        now = began + blocked
        lines.append(toll.line(began, now))
    return [line for line in lines if line]


def test_a_twentieth_of_a_step_and_less_is_not_worth_a_line() -> None:
    assert said(1.0, [0.049] * 100) == []


def test_more_is_said_once_with_the_mend() -> None:
    assert said(0.1, [0.015] * 100) == [
        "in-memory checkpoints take 15 % of training time (15.0 ms each); "
        "increase memory_every about 3× to stay below 5 %"
    ]


def test_the_first_commits_which_take_the_memory_do_not_count() -> None:
    assert said(1.0, [5.0] * COMMITS_SKIPPED + [0.01] * COMMITS) == []


def test_a_single_slow_commit_among_many_does_not_count_for_all() -> None:
    assert said(1.0, [0.01] * 10 + [0.5] + [0.01] * 30) == []
