"""How long a job takes from the command to its first step, for one node and for three."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.bench import results
from tests.bench.against import TORCHRUN
from tests.bench.pictures.style import BODY, MARGIN, RIGHT, TEXT_MIN, Canvas, Colours, Scale, seconds, text_width
from tests.bench.results import OURS

BAR, ROW = 26, 36
SIZES: Final = {"command to first step, one node": "1 node", "command to first step, 3 nodes": "3 nodes"}
WHO: Final = (OURS, TORCHRUN)


def draw(folder: Path, colours: Colours) -> str:
    """The picture."""
    figures = {(figure.what, figure.who): figure for figure in results.read("start", folder)}
    canvas = Canvas("From the command to the first training step", colours)
    y = canvas.heading(38, canvas.title) + 4
    left = MARGIN + max(text_width(who, TEXT_MIN) for who in WHO) + 14
    longest = max(max(figure.rounds) for figure in figures.values())
    scale = Scale(0, longest, left, RIGHT - 86)
    top = y - 12
    bottom = y + len(SIZES) * (30 + len(WHO) * ROW) - 10
    canvas.x_axis(scale, ((at, f"{at} s") for at in range(0, int(longest) + 1, 2)), top, bottom)
    for what, words in SIZES.items():
        canvas.text(MARGIN, y, words, size=BODY, bold=True)
        y += 12
        for who in WHO:
            figure = figures[what, who]
            colour = colours.ours if who == OURS else colours.peer
            canvas.text(MARGIN, y + 19, who)
            canvas.box(left, y, scale.at(figure.value) - left, BAR, colour, pale=True)
            canvas.whisker(scale.at(min(figure.rounds)), scale.at(max(figure.rounds)), y + BAR / 2, colours.text)
            canvas.text(RIGHT, y + 19, seconds(figure.value), size=BODY, bold=True, anchor="end")
            y += ROW
        y += 18
    count = min(len(figure.rounds) for figure in figures.values())
    note = (
        f"Bars are medians of {count} rounds, lines reach from the smallest to the largest round. One machine with "
        "2 cores, gloo, one worker on each node; the script imports only torch."
    )
    return canvas.svg(canvas.paragraph(bottom + 52, note) + 2)
