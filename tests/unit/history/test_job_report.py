"""The story of a job: which time was a pause, and what is told of each generation."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.model import ChangeReason, FinalStatus, Verdict
from launcher.history.events import KEPT, EventKind, FailureRecord, HistoryEvent
from launcher.history.job_report import JobReport, build_report
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.job.history import report_line
from tests.support.job_reports import FIRST, LOST, back, course, ended, go, made

FAILURE = FailureRecord(g=1, host="h", node="b", rank=1, code=1, words="exit 1", tail=("ValueError",))


def pauses(story: JobReport) -> list[tuple[float, float]]:
    return [(pause.began, pause.ended) for pause in story.pauses]


# A job that told everything


def test_goodput_counts_from_the_command_to_the_verdict_without_pauses_and_steps_made_again() -> None:
    points = course((1, 10.0, 1), (400, 49.5, 1), (381, 52.0, 2), (900, 100.0, 2))
    story = build_report([*FIRST, *LOST, ended(2, 100.0)], points, now=5000.0)
    assert (story.began, story.until, story.since) == (0.0, 100.0, None)
    assert pauses(story) == [(0.0, 10.0), (49.5, 52.0)]
    assert (story.pauses[1].again, story.pauses[1].again_s) == (20, 2.0)
    assert story.goodput == pytest.approx((100 - 10 - 2.5 - 2) / 100)
    totals = story.totals
    assert (totals.wall_s, totals.paused_s, totals.again_s) == (100.0, 12.5, 2.0)
    assert (totals.restarts, totals.step, totals.again, len(story.generations)) == ({"node lost": 1}, 900, 20, 2)


def test_a_generation_has_who_was_in_its_moments_its_phases_and_its_steps() -> None:
    story = build_report([*FIRST, *LOST, ended(2, 100.0)], course((381, 52.0, 2), (900, 100.0, 2)), now=5000.0)
    first, second = story.generations
    assert (first.nodes, first.start, first.published_at, first.go_at) == (("a", "b"), True, 4.0, 4.5)
    assert (first.first_step_at, first.ended_at, first.last_step) == (10.0, 49.5, 400)
    assert (second.nodes, second.why) == (("a",), ChangeReason.NODE_LOST)
    assert (second.phases, second.complete) == ({"spawn": 1.0, "step": 1.0}, True)
    assert (second.steps, second.last_step, second.restored_step, second.again) == (520, 900, 380, 20)
    assert second.ended_at == 100.0


def test_the_failure_that_a_go_or_a_verdict_tells_ended_the_generation_before() -> None:
    fatal = msgspec.structs.replace(FAILURE, g=2)
    end = msgspec.structs.replace(ended(2, 60.0, FinalStatus.FAILED), failure=fatal)
    story = build_report([*FIRST, made(2, 50.0, ChangeReason.FAILURE), go(2, 51.0, 1, FAILURE), end], now=99.0)
    assert [one.failure for one in story.generations] == [FAILURE, fatal]
    assert story.first_failure == FAILURE
    assert story.until == 60.0


def test_the_line_says_how_long_the_downtime_was_and_in_how_many_periods() -> None:
    points = course((1, 10.0, 1), (400, 49.5, 1), (381, 52.0, 2), (900, 100.0, 2))
    assert ": 12.5 s of downtime in 2 periods, " in report_line(build_report([*FIRST, *LOST], points, now=100.0))


@pytest.mark.parametrize(
    ("now", "words"),
    [(52.0, "20 steps lost, 0 of them repeated (0.0 s)"), (53.5, "20 steps lost, 15 of them repeated (1.5 s)")],
)
def test_steps_that_were_lost_are_not_called_made_again_before_there_was_time_for_it(now: float, words: str) -> None:
    points = course((1, 10.0, 1), (400, 49.5, 1))
    assert report_line(build_report([*FIRST, *LOST], points, now=now)).endswith(f", {words}")
    assert report_line(build_report([*FIRST, *LOST], points, now=60.0)).endswith(", 20 steps repeated (2.0 s)")


def test_the_verdicts_document_serves_where_its_event_is_missing() -> None:
    verdict = Verdict(status=FinalStatus.COMPLETED, reason="all", run=1, g=1, at=40.0)
    story = build_report(FIRST, now=99.0, verdict=verdict)
    assert (story.until, story.goodput) == (40.0, 0.75)


def test_it_is_json() -> None:
    story = build_report([*FIRST, *LOST], course((1, 10.0, 1)), now=60.0)
    assert msgspec.json.decode(msgspec.json.encode(story), type=JobReport) == story


# What nobody lived to tell


def test_a_start_that_is_not_over_is_a_pause_until_now() -> None:
    story = build_report(FIRST[:2], now=30.0)
    assert (pauses(story), story.pauses[0].open, story.goodput) == ([(4.0, 30.0)], True, 0.0)


def test_a_recovery_that_nobody_told_goes_from_the_last_step_in_the_course_to_the_first() -> None:
    points = course((1, 10.0, 1), (350, 45.0, 1), (300, 53.0, 2), (600, 90.0, 2))
    story = build_report([*FIRST, *LOST[:2], ended(2, 100.0)], points, now=999.0)
    assert pauses(story)[1] == (45.0, 53.0)
    assert story.pauses[1].again == 51


def test_a_generation_of_which_no_step_is_known_is_a_pause_where_the_script_reports_steps() -> None:
    story = build_report([*FIRST, *LOST[:2], made(3, 55.0), back(3, 55.0, 5.0), ended(3, 100.0)], now=999.0)
    assert pauses(story) == [(0.0, 10.0), (50.5, 55.0), (55.0, 60.0)]


def test_a_script_that_reports_nothing_works_from_its_go_on() -> None:
    told = [made(1, 4.0, ChangeReason.FIRST), go(1, 5.0), made(2, 50.0), go(2, 51.0), ended(2, 104.0)]
    story = build_report(told, now=999.0)
    assert pauses(story) == [(4.0, 5.0), (50.0, 51.0)]
    assert story.goodput == pytest.approx(0.98)


def test_a_job_whose_newest_step_is_old_is_in_a_pause_and_one_with_slow_steps_is_not() -> None:
    points = course((1, 10.0, 1), (400, 49.5, 1))
    assert build_report(FIRST, points, now=150.0).pauses[-1].open is False
    story = build_report(FIRST, points, now=1049.5)
    assert (pauses(story)[-1], story.pauses[-1].open) == ((49.5, 1049.5), True)
    slow = TrainingCurve(points=tuple(CurvePoint(number, 10.0 + 300 * number, 1, rate=1 / 300) for number in range(3)))
    assert build_report(FIRST, slow, now=1049.5).pauses[-1].open is False


def test_a_job_in_which_nobody_is_left_is_in_a_pause_since_its_last_step() -> None:
    story = build_report(FIRST, course((1, 10.0, 1), (400, 49.5, 1)), now=60.0, has_members=False)
    assert pauses(story)[-1] == (49.5, 60.0)


def test_events_of_an_older_version_tell_their_pauses_too() -> None:
    old = HistoryEvent(at=12.0, node="a", what=EventKind.START, g=1, phases={"join": 1.5, "step": 0.5})
    end = HistoryEvent(at=20.0, node="a", what=EventKind.VERDICT, g=1, text="completed: all is well")
    story = build_report([HistoryEvent(at=11.0, node="a", what=EventKind.GENERATION, g=1), old, end], now=99.0)
    assert (pauses(story), story.goodput) == ([(10.0, 12.0)], 0.8)
    assert story.until == 20.0


# Which part of a history


def test_a_run_whose_verdict_nobody_told_ends_where_another_one_begins() -> None:
    again = (made(3, 1000.0, ChangeReason.FIRST, run=2), go(3, 1001.0))
    story = build_report([*FIRST, *LOST, *again], now=1010.0)
    assert (story.began, [one.g for one in story.generations]) == (1000.0, [3])


def test_a_generation_that_is_told_after_the_verdict_of_its_run_begins_none() -> None:
    story = build_report([*FIRST, ended(2, 51.5), *LOST[:1]], now=1010.0)
    assert (story.began, story.until, [one.g for one in story.generations]) == (0.0, 51.5, [1, 2])


def test_it_is_that_of_the_newest_run() -> None:
    again = (made(3, 1000.0, ChangeReason.FIRST, run=2), go(3, 1001.0))
    story = build_report([*FIRST, *LOST, ended(2, 100.0), *again], course((900, 99.0, 2)), now=1010.0)
    assert (story.began, story.until) == (1000.0, 1010.0)
    assert [one.g for one in story.generations] == [3]


def test_when_the_beginning_is_gone_it_says_since_when_it_counts() -> None:
    told = [event for g in range(2, 2 + KEPT // 2) for event in (made(g, g * 10.0), go(g, g * 10.0 + 1))]
    story = build_report(told, now=99999.0)
    assert (story.since, story.began) == (20.0, 20.0)
    assert build_report(told[:9], now=99999.0).since is None


def test_of_a_parameter_server_job_only_the_first_start_is_a_pause() -> None:
    tasks = msgspec.structs.replace(back(1, 40.0, 3.0), what=EventKind.RECOVERY, rev=2)
    told = [*FIRST, msgspec.structs.replace(made(1, 40.0), rev=2), tasks, ended(1, 100.0)]
    story = build_report(told, now=999.0)
    assert (pauses(story), story.goodput) == ([(0.0, 10.0)], 0.9)


def test_a_job_without_events_has_no_story() -> None:
    assert build_report([], now=1.0) == JobReport()


numbers = st.integers(-1, 5) | st.integers(-(2**70), 2**70)
moments = st.floats(0, 1000) | st.floats(0, 2e11)
steps = st.none() | st.integers(-1, 2**62)
events = st.builds(
    HistoryEvent,
    at=moments,
    node=st.just("a"),
    what=st.sampled_from(EventKind),
    g=numbers,
    rev=numbers,
    why=st.none() | st.sampled_from(ChangeReason),
    phases=st.dictionaries(st.sampled_from(["step", "join", "x"]), st.floats(-10, 1e9), max_size=3),
    began=st.none() | moments,
    last_at=st.none() | moments,
    complete=st.none() | st.booleans(),
    last_step=steps,
    restored_step=steps,
)
point = st.builds(
    CurvePoint, st.integers(0, 2**62), moments, numbers, st.none(), st.none() | st.floats(allow_nan=False)
)


@given(st.lists(events, max_size=12), st.lists(point, max_size=6), moments, st.booleans())
def test_whatever_the_store_holds_it_is_a_share_and_adds_up(
    told: list[HistoryEvent], points: list[CurvePoint], now: float, has_members: bool
) -> None:
    story = build_report(told, TrainingCurve(points=tuple(points)), now=now, has_members=has_members)
    assert story.goodput is None or 0.0 <= story.goodput <= 1.0
    totals = story.totals
    if story.goodput is not None:
        parts = story.goodput * totals.wall_s + totals.paused_s + totals.again_s
        assert parts == pytest.approx(totals.wall_s, abs=0.01)
    msgspec.json.encode(story)
