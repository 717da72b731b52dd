"""Drawings of the page in a real browser: they fill their boxes, and lengths and heights are those of the values."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.model import ChangeReason, FinalStatus, Verdict
from elastic.core.view import encode
from launcher.history import training_curve
from launcher.history.events import HistoryEvent, remember
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.web.html import document
from tests.support.awaited_events import played
from tests.support.browser import Look, browser, browser_test, look
from tests.support.job_reports import back, ended, go, made
from tests.support.page_server import Served, serving
from tests.support.page_values import picture, told

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
SLACK_PX = 2.0
MARGIN_PX = 64
"""Beside a chart: the words of its axis."""
TRAINED_S = 60.0

SIZES = """() => [...document.querySelectorAll('#timeline, .charts .chart')].map((part) => {
  const drawing = part.querySelector('svg'), box = drawing.parentElement.getBoundingClientRect();
  const lines = [...drawing.querySelectorAll('.grid, .lane')].map((line) => line.getBoundingClientRect());
  const { width, height } = drawing.getBoundingClientRect();
  return {
    box: [box.width, box.height],
    drawing: [width, height],
    left: Math.min(...lines.map((line) => line.left)) - box.left,
    right: box.right - Math.max(...lines.map((line) => line.right)),
    scale: width / drawing.viewBox.baseVal.width,
  };
})"""
"""Of the timeline and each chart: its box, its drawing, how far its lines stay from the sides, and its scale."""


def history(began: float) -> list[HistoryEvent]:
    return [made(1, began), go(1, began + 0.5), back(1, began, 2.0)]


def course(began: float) -> TrainingCurve:
    points = (
        CurvePoint(10 * second, began + 2.0 + second, 1, math.exp(-second / 10), 10.0)
        for second in range(int(TRAINED_S) - 2)
    )
    return TrainingCurve(points=tuple(points))


def trains(served: Served, began: float) -> None:
    keys = JobKeys("j", "/p")
    for event in history(began):
        served.core.txn((), remember(keys, event, []))
    served.core.txn((), [Put(keys.curve, training_curve.write(course(began)))])


def ends(served: Served, at: float) -> None:
    keys = JobKeys("j", "/p")
    verdict = Verdict(status=FinalStatus.COMPLETED, reason="all is done", run=1, g=1, at=at)
    served.core.txn((), [*remember(keys, ended(1, at), []), Put(keys.root + "verdict", encode(verdict))])


async def fills(seen: Look) -> None:
    await seen.page.locator(".chart svg").nth(1).wait_for()
    await seen.page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    sizes: list[dict[str, Any]] = await seen.page.evaluate(SIZES)
    assert len(sizes) == 3, "the timeline, loss and rate"
    timeline, *charts = sizes
    assert charts[0]["drawing"] == charts[1]["drawing"]
    for one in (*charts, timeline):
        assert abs(one["box"][0] - one["drawing"][0]) <= SLACK_PX, one
        assert abs(one["scale"] - 1) * one["box"][0] <= SLACK_PX, one
        assert -SLACK_PX <= one["right"] <= MARGIN_PX, one
    assert all(-SLACK_PX <= one["left"] <= MARGIN_PX for one in charts), charts
    wide = await seen.page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert wide[0] <= wide[1]


@browser_test
@played
async def test_charts_fill_their_boxes_on_a_desk_and_a_phone_before_and_after_the_end_of_a_job() -> None:
    began = time.time() - TRAINED_S
    async with serving() as one, browser() as chromium:
        trains(one, began)
        url = f"{one.base}/job/j"
        before = [await look(chromium, url, size) for size in (DESK, PHONE)]
        for seen in before:
            await fills(seen)
        ends(one, began + TRAINED_S)
        after = [await look(chromium, url, size) for size in (DESK, PHONE)]
        for seen in (*before, *after):
            await seen.text("#state", "completed")
            await fills(seen)
        for seen, size in zip(after, (PHONE, DESK), strict=True):
            await seen.page.set_viewport_size(size)
            await fills(seen)
        assert [seen.troubles for seen in (*before, *after)] == [[]] * 4


def losses(*values: float) -> TrainingCurve:
    return TrainingCurve(points=tuple(CurvePoint(step, 11.0 + step, 1, loss) for step, loss in enumerate(values)))


def page(folder: Path, *events: HistoryEvent, points: TrainingCurve) -> str:
    path = folder / "page.html"
    path.write_bytes(document({"job": "j"}, told(picture(5), *events, points=points)).html)
    return path.as_uri()


TICKS = """() => {
  const chart = document.querySelector('.chart');
  return {
    title: chart.querySelector('figcaption').innerText,
    heights: [...chart.querySelectorAll('.grid')].map((line) => +line.getAttribute('y1')),
    names: [...chart.querySelectorAll('text[text-anchor=end]')].map((text) => +text.textContent),
  };
}"""


@browser_test
@pytest.mark.parametrize(
    ("values", "log"),
    [
        ((2.5, 0.3, 0.004), True),
        ((2.5, 0.3, 0.2), True),
        ((1e300, 1.0, 5e-324), True),
        ((2.5, 1.0, 0.3), False),
        ((2.5, 0.004, 0.0), False),
        ((2.5, 0.004, -0.5), False),
    ],
)
def test_a_positive_loss_over_more_than_a_decade_has_a_log_scale_and_the_chart_says_so(
    tmp_path: Path, values: tuple[float, ...], log: bool
) -> None:
    @played
    async def shown() -> None:
        async with browser() as chromium:
            seen = await look(chromium, page(tmp_path, *history(10.0), points=losses(*values)), DESK)
            await seen.page.locator(".chart svg").wait_for()
            ticks = await seen.page.evaluate(TICKS)
            assert ("log scale" in ticks["title"]) == log
            assert 2 <= len(ticks["names"]) <= 8
            assert ticks["names"][0] <= min(values)
            assert max(values) <= ticks["names"][-1]
            places = [math.log10(name) for name in ticks["names"]] if log else ticks["names"]
            scales = [
                (below - above) / (high - low)
                for (low, high), (below, above) in zip(pairwise(places), pairwise(ticks["heights"]), strict=True)
            ]
            assert max(scales) == pytest.approx(min(scales), rel=0.01)
            assert seen.troubles == []

    shown()


BARS = """() => [...document.querySelectorAll('.timed')].map((part) => ({
  title: part.querySelector('h3').innerText,
  bars: [...part.querySelectorAll('.stack')].map((bar) =>
    [...bar.querySelectorAll('span')].reduce((sum, phase) => sum + phase.getBoundingClientRect().width, 0)),
  right: part.querySelector('.scale').lastElementChild.innerText,
  wide: part.querySelector('.stack').getBoundingClientRect().width,
}))"""


@browser_test
def test_recoveries_share_one_time_axis_and_the_first_start_has_its_own(tmp_path: Path) -> None:
    events = [made(1, 0.0, ChangeReason.FIRST), go(1, 0.5), back(1, 0.0, 15.0)]
    for g, took in ((2, 0.4), (3, 1.6)):
        events += [made(g, 20.0 * g), go(g, 20.0 * g + 0.1), back(g, 20.0 * g, took)]

    @played
    async def shown() -> None:
        async with browser() as chromium:
            seen = await look(chromium, page(tmp_path, *events, points=losses(1.0, 0.5)), DESK)
            await seen.text("#recoveries", "Start")
            recoveries, start = await seen.page.evaluate(BARS)
            assert (recoveries["title"], recoveries["right"]) == ("Recoveries", "1.6 s")
            longer, shorter = recoveries["bars"]
            assert longer == pytest.approx(4 * shorter, rel=0.01)
            assert longer == pytest.approx(recoveries["wide"], rel=0.01)
            assert (start["title"], start["right"]) == ("Start", "16 s")
            assert await seen.said("#phases-legend") == "spawn\nstep"
            assert seen.troubles == []

    shown()
