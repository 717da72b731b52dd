"""The picture at the top of README.md: one of three nodes is killed, and how long it takes until the others train."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench import jobs, results
from tests.bench.pictures.groups import GROUPS, lengths_ms, whole
from tests.bench.pictures.style import (
    BODY,
    MARGIN,
    NUMBER,
    RIGHT,
    TEXT_MIN,
    Canvas,
    Colours,
    Scale,
    seconds,
    text_width,
)
from tests.bench.recovery import KINDS, STATE_MB
from tests.bench.results import OURS, Figure

WHAT: Final = f"{KINDS['state'].what} ({STATE_MB:.0f} MB)"
"""The scenario of the picture: with this one number everything in it agrees."""
LAUNCHERS: Final = {
    OURS: "elastic-launch",
    jobs.TUNED: "torchrun, tuned timeouts",
    jobs.DEFAULTS: "torchrun, default timeouts",
}
BEFORE_MS, AFTER_MS = 65, 60
LANES_LEFT: Final = 116
LANE, BAR, ROW = 42, 26, 34


def measured(folder: Path) -> list[Figure]:
    """The recoveries of the scenario, the shortest first."""
    figures = [figure for figure in results.read("recovery", folder) if figure.what == WHAT and figure.who in LAUNCHERS]
    return sorted(figures, key=lambda figure: figure.value)


def draw(folder: Path, colours: Colours) -> str:
    """The picture."""
    figures = measured(folder)
    ours = next(figure for figure in figures if figure.who == OURS)
    title = f"One of three nodes is killed: {seconds(ours.value)} until the next training step of the others"
    canvas = Canvas(title, colours)
    number = seconds(ours.value)
    canvas.text(MARGIN, 68, number, size=NUMBER, bold=True, colour=colours.ours)
    beside = MARGIN + text_width(number, NUMBER, bold=True) + 8
    canvas.text(beside, 46, "from the kill of one of three nodes", size=BODY, bold=True)
    canvas.text(beside, 70, "to the next training step of the others", size=BODY, bold=True)
    conditions = (
        f"A script with the training library and {STATE_MB:.0f} MB of state, on one machine with 2 cores, gloo; "
        f"median of {len(ours.rounds)} rounds."
    )
    y = canvas.paragraph(104, conditions)
    y = _lanes(canvas, ours, y)
    y = _phases(canvas, ours, y + 50)
    return canvas.svg(_launchers(canvas, figures, y + 26))


def _lanes(canvas: Canvas, ours: Figure, top: float) -> float:
    """What the nodes do over the time; gives where the axis is."""
    took_ms = 1000 * ours.value
    scale = Scale(-BEFORE_MS, took_ms + AFTER_MS, LANES_LEFT, RIGHT)
    bottom = top + 2 * LANE
    canvas.x_axis(scale, ((at, f"{at} ms") for at in range(0, round(took_ms), 100)), top, bottom)
    for number, name in enumerate(("nodes 1, 2", "node 3")):
        y = top + LANE * number + (LANE - BAR) / 2
        canvas.text(MARGIN, y + 19, name)
        canvas.box(scale.start, y, scale.at(0) - scale.start, BAR, canvas.colours.box)
        canvas.text(scale.start + 6, y + 19, "training", colour=canvas.colours.soft)
    at_ms = 0.0
    y = top + (LANE - BAR) / 2
    for length_ms, colour in zip(lengths_ms(ours), canvas.colours.phases, strict=True):
        canvas.box(scale.at(at_ms), y, scale.at(at_ms + length_ms) - scale.at(at_ms), BAR, colour)
        at_ms += length_ms
    canvas.box(scale.at(at_ms), y, RIGHT - scale.at(at_ms), BAR, canvas.colours.box)
    canvas.text(RIGHT - 6, y + 19, "training", colour=canvas.colours.soft, anchor="end")
    canvas.path(f"M{scale.at(0):.1f} {top:.1f}V{bottom:.1f}", canvas.colours.bad, width=2.5)
    words = "killed (SIGKILL)"
    canvas.box(scale.at(0) + 6, y + LANE, text_width(words, TEXT_MIN, bold=True) + 8, BAR, canvas.colours.back)
    canvas.text(scale.at(0) + 10, y + LANE + 19, words, colour=canvas.colours.bad, bold=True)
    return bottom


def _phases(canvas: Canvas, ours: Figure, y: float) -> float:
    """How long each group of phases takes, and what happens in it."""
    for group, length_ms, colour in zip(GROUPS, whole(lengths_ms(ours)), canvas.colours.phases, strict=True):
        canvas.box(MARGIN, y - 13, 15, 15, colour, radius=2)
        canvas.text(MARGIN + 24, y, group.words)
        canvas.text(306, y, f"{length_ms} ms", bold=True, anchor="end")
        canvas.text(326, y, group.meaning, colour=canvas.colours.soft)
        y += 26
    return y


def _launchers(canvas: Canvas, figures: list[Figure], y: float) -> float:
    """The same kill under each launcher; gives the height of the picture."""
    canvas.text(MARGIN, y, "The same kill of the same script", size=BODY, bold=True)
    left = MARGIN + max(text_width(LAUNCHERS[figure.who], TEXT_MIN) for figure in figures) + 14
    longest = max(figure.value for figure in figures)
    widest = max(text_width(seconds(figure.value), BODY, bold=True) for figure in figures)
    scale = Scale(0, longest, left, RIGHT - widest - 10)
    y += 14
    for figure in figures:
        colour = canvas.colours.ours if figure.who == OURS else canvas.colours.peer
        canvas.text(MARGIN, y + 19, LAUNCHERS[figure.who])
        canvas.box(left, y, max(scale.at(figure.value) - left, 2), BAR, colour)
        canvas.text(scale.at(figure.value) + 10, y + 19, seconds(figure.value), size=BODY, bold=True)
        y += ROW
    note = (
        "With elastic-launch the script continues from the state in memory. torchrun keeps no state: the script "
        "begins at step 1."
    )
    return canvas.paragraph(y + 20, note) + 2
