"""Recovery time by scenario: the points of the table of that name, sorted, with the spread of their rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench import jobs, results, scenarios, torchft_jobs
from tests.bench.pictures.names import NAMES
from tests.bench.pictures.style import BODY, MARGIN, RIGHT, Canvas, Colours, Mark, Scale, seconds
from tests.bench.results import NO_LEARN, OURS, Figure

PROJECT: Final = {
    OURS: (Mark.CIRCLE, "elastic-launch"),
    NO_LEARN: (Mark.RING, "elastic-launch --no-learn"),
}
PEERS: Final = {
    jobs.TUNED: (Mark.SQUARE, "torchrun, tuned timeouts"),
    jobs.DEFAULTS: (Mark.DIAMOND, "torchrun"),
    torchft_jobs.TUNED: (Mark.UP, f"torchft, timeouts of {torchft_jobs.TUNED_S:g} s"),
    torchft_jobs.DEFAULTS: (Mark.DOWN, "torchft"),
}
TICKS_S: Final = (0.1, 0.3, 1, 3, 10, 30, 100)
LOW_S, HIGH_S = 0.075, 105.0
LABEL, LANE = 24, 18


def measured(folder: Path) -> list[list[Figure]]:
    """The figures of each scenario; the scenario with the shortest recovery of ours is first."""
    rows: dict[str, list[Figure]] = {}
    for figure in scenarios.in_order(results.read("recovery", folder)):
        rows.setdefault(figure.what, []).append(figure)
    return sorted(rows.values(), key=lambda row: min((f.value for f in row if f.who == OURS), default=HIGH_S))


def draw(folder: Path, colours: Colours) -> str:
    """The picture."""
    rows = measured(folder)
    canvas = Canvas("Recovery time by scenario", colours)
    y = canvas.heading(38, canvas.title)
    y = _legend(canvas, y + 4) + 12
    scale = Scale(LOW_S, HIGH_S, MARGIN, RIGHT, log=True)
    bottom = y + sum(_height(row) for row in rows)
    ticks = [(at, f"{at:g} s") for at in TICKS_S]
    canvas.x_axis(scale, ticks, y, bottom)
    for row in rows:
        y = _row(canvas, row, y, scale)
    note = (
        "Each point is a median, each line reaches from the smallest to the largest round, and the number is the "
        "median of elastic-launch. The axis is logarithmic. One machine with 2 cores, gloo; three nodes with one "
        "worker each, unless the row says otherwise. --no-learn: a node does not load the script's imports in advance."
    )
    return canvas.svg(canvas.paragraph(bottom + 52, note) + 2)


def _legend(canvas: Canvas, y: float) -> float:
    columns = (
        ("this project", PROJECT, canvas.colours.ours, MARGIN),
        ("peers", PEERS, canvas.colours.peer, MARGIN + 300),
    )
    for title, series, colour, x in columns:
        canvas.text(x, y, title, size=BODY, bold=True, colour=colour)
        for number, (mark, words) in enumerate(series.values()):
            canvas.mark(x + 7, y + 19 + 24 * number, mark, colour)
            canvas.text(x + 24, y + 25 + 24 * number, words)
    return y + 25 + 24 * len(PEERS)


def _height(row: list[Figure]) -> float:
    lanes = 1 + any(figure.who in PEERS for figure in row)
    return LABEL + LANE * lanes + 12


def _row(canvas: Canvas, row: list[Figure], y: float, scale: Scale) -> float:
    """One scenario: its name, below it a lane of this project and one of the peers; gives where the next row is."""
    colours = canvas.colours
    canvas.box(MARGIN - 2, y, RIGHT - MARGIN + 4, LABEL, colours.back)
    canvas.text(MARGIN, y + 18, NAMES[row[0].what])
    for figure in row:
        if figure.who == OURS:
            canvas.text(RIGHT, y + 18, seconds(figure.value), size=BODY, bold=True, anchor="end", colour=colours.ours)
    for number, (series, colour) in enumerate(((PROJECT, colours.ours), (PEERS, colours.peer))):
        middle = y + LABEL + LANE * (number + 0.5) + 1
        for figure in row:
            if figure.who in series:
                canvas.whisker(scale.at(min(figure.rounds)), scale.at(max(figure.rounds)), middle, colour)
        for figure in reversed(row):
            if figure.who in series:
                canvas.mark(scale.at(figure.value), middle, series[figure.who][0], colour)
    return y + _height(row)
