"""Where the time of a recovery goes: a bar of its phases for each scenario of which the job's events have them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench import results, scenarios
from tests.bench.pictures.groups import GROUPS, lengths_ms
from tests.bench.pictures.names import NAMES
from tests.bench.pictures.style import BODY, MARGIN, RIGHT, Canvas, Colours, Scale, seconds
from tests.bench.results import OURS, Figure

BAR, ROW = 22, 62
TICK_MS: Final = 50


def measured(folder: Path) -> list[Figure]:
    """Ours with default flags, the shortest first."""
    figures = scenarios.in_order(results.read("recovery", folder))
    return sorted(
        (figure for figure in figures if figure.who == OURS and figure.phases), key=lambda figure: figure.value
    )


def draw(folder: Path, colours: Colours) -> str:
    """The picture."""
    figures = measured(folder)
    canvas = Canvas("Where the time of a recovery goes", colours)
    y = canvas.heading(38, canvas.title)
    entries = [(colour, group.words) for group, colour in zip(GROUPS, colours.phases, strict=True)]
    y = canvas.legend(y + 4, entries, columns=2) + 6
    longest_ms = 1000 * max(figure.value for figure in figures)
    scale = Scale(0, longest_ms * 1.02, MARGIN, RIGHT)
    bottom = y + ROW * len(figures) - 6
    ticks = ((at, f"{at} ms") for at in range(0, round(longest_ms), TICK_MS))
    canvas.x_axis(scale, ticks, y, bottom)
    for figure in figures:
        canvas.box(MARGIN - 2, y, RIGHT - MARGIN + 4, 26, colours.back)
        canvas.text(MARGIN, y + 18, NAMES[figure.what])
        canvas.text(RIGHT, y + 18, seconds(figure.value), size=BODY, bold=True, anchor="end")
        at_ms = 0.0
        for length_ms, colour in zip(lengths_ms(figure), colours.phases, strict=True):
            if length_ms:
                width = scale.at(at_ms + length_ms) - scale.at(at_ms)
                canvas.box(scale.at(at_ms), y + 27, width, BAR, colour)
            at_ms += length_ms
        y += ROW
    spread_ms = max(abs(1000 * figure.value - sum(lengths_ms(figure))) for figure in figures)
    note = (
        "One machine with 2 cores, gloo, three nodes. Time from the kill, or from the last step before a planned "
        "change, to the next step. Segments are medians of each phase: they add up to the median in bold within "
        f"{spread_ms:.0f} ms. A planned change has no time to detect: training continues until stop."
    )
    return canvas.svg(canvas.paragraph(bottom + 52, note) + 2)
