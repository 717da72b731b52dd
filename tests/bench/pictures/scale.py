"""How long agents take to join and to learn of a failure, as a job grows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.bench import results
from tests.bench.against import MEETING
from tests.bench.pictures.style import MARGIN, RIGHT, TEXT_MIN, Canvas, Colours, Mark, Scale, text_width
from tests.bench.results import OURS, Figure

FILES: Final = ("scale_sizes", "scale")
"""Where a size is in both, the second one counts."""
HEIGHT: Final = 330
SIZES: Final = (10, 32, 100, 300, 1000, 3000)
TICKS_S: Final = (0.01, 0.1, 1, 10, 100)


class Series(NamedTuple):
    """One line: whose it is, the pattern of its figures, its colour among those of the phases, and its words."""

    who: str
    what: str
    mark: Mark
    colour: int | None
    words: str


SERIES: Final = (
    Series(MEETING, r"(\d+) agents meet", Mark.SQUARE, None, "torch's rendezvous: all agents have joined"),
    Series(OURS, r"(\d+) agents meet", Mark.CIRCLE, 3, "elastic-launch: all agents have joined"),
    Series(
        OURS,
        r"one of (\d+) lost: all workers run again, all agents on one machine",
        Mark.DIAMOND,
        2,
        "elastic-launch, a node fails: all agents have restarted workers",
    ),
    Series(
        OURS, r"the leader of (\d+) lost", Mark.DOWN, 0, "elastic-launch, the leader fails: all agents are notified"
    ),
    Series(OURS, r"one of (\d+) lost", Mark.UP, 5, "elastic-launch, a node fails: all agents are notified"),
)


def measured(folder: Path) -> list[list[tuple[int, Figure]]]:
    """The points of each series, by the number of agents."""
    figures = {(figure.what, figure.who): figure for name in FILES for figure in results.read(name, folder)}
    return [_points(series, list(figures.values())) for series in SERIES]


def _points(series: Series, figures: Sequence[Figure]) -> list[tuple[int, Figure]]:
    matches = ((re.fullmatch(series.what, figure.what), figure) for figure in figures if figure.who == series.who)
    return sorted(
        ((int(match[1]), figure) for match, figure in matches if match is not None), key=lambda point: point[0]
    )


def draw(folder: Path, colours: Colours) -> str:
    """The picture."""
    lines = measured(folder)
    canvas = Canvas("Joining and failures as a job grows", colours)
    y = canvas.heading(38, canvas.title) + 4
    shades = [colours.soft if series.colour is None else colours.phases[series.colour] for series in SERIES]
    for series, shade in zip(SERIES, shades, strict=True):
        canvas.mark(MARGIN + 7, y - 5, series.mark, shade)
        canvas.text(MARGIN + 24, y, series.words)
        y += 24
    top, bottom = y + 4, y + 4 + HEIGHT
    left = MARGIN + text_width("0.01 s", TEXT_MIN) + 10
    values = [value for points in lines for _, figure in points for value in (figure.value, *figure.rounds)]
    sizes = [size for points in lines for size, _ in points]
    across = Scale(min(sizes) * 0.8, max(sizes) * 1.25, left, RIGHT, log=True)
    upright = Scale(min(values) * 0.7, max(values) * 1.4, bottom, top, log=True)
    _axes(canvas, across, upright)
    for series, shade, points in zip(SERIES, shades, lines, strict=True):
        _line(canvas, points, series.mark, shade, across, upright)
    canvas.text((left + RIGHT) / 2, bottom + 46, "agents", colour=colours.soft, anchor="middle")
    note = (
        "Points are medians, lines reach from the smallest to the largest round; both axes are logarithmic. Agents "
        "without training processes share one machine with 2 cores and etcd; torch's agents are threads of one "
        "process on one core."
    )
    return canvas.svg(canvas.paragraph(bottom + 80, note) + 2)


def _axes(canvas: Canvas, across: Scale, upright: Scale) -> None:
    ticks = [(size, f"{size:,}") for size in SIZES if across.low <= size <= across.high]
    canvas.x_axis(across, ticks, upright.end, upright.start)
    for value in TICKS_S:
        if upright.low <= value <= upright.high:
            y = upright.at(value)
            canvas.path(f"M{across.start:.1f} {y:.1f}H{across.end:.1f}", canvas.colours.line, width=1)
            canvas.text(across.start - 10, y + 6, f"{value:g} s", colour=canvas.colours.soft, anchor="end")


def _line(
    canvas: Canvas, points: Sequence[tuple[int, Figure]], mark: Mark, colour: str, across: Scale, upright: Scale
) -> None:
    """The points of one series. One that did not end within its limit is an open point with its limit beside it."""
    places = [(across.at(size), upright.at(figure.value), figure) for size, figure in points]
    if len(places) > 1:
        canvas.path("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y, _ in places), colour, width=2)
    for x, y, figure in places:
        if figure.unfinished:
            canvas.mark(x, y, Mark.RING, canvas.colours.bad)
            words = f"not within {figure.value:.0f} s"
            canvas.text(x - 12, y + 6, words, colour=canvas.colours.bad, anchor="end")
        else:
            canvas.whisker(upright.at(min(figure.rounds)), upright.at(max(figure.rounds)), x, colour, upright=True)
            canvas.mark(x, y, mark, colour)
