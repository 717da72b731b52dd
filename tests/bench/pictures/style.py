"""The one style of the pictures: colours of a light and a dark page, sizes, and the elements of a drawing.

A drawing is `WIDTH` units wide, so that on a phone of half that width its text is half as large as `TEXT_MIN`. The
widths of texts are those of DejaVu Sans, which is wider than the fonts that most readers have: what fits here fits
there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from html import escape
from typing import Final, Literal

WIDTH: Final = 720
MARGIN: Final = 24
RIGHT: Final = WIDTH - MARGIN
TEXT_MIN: Final = 16
"""The size of notes and labels; no text is smaller."""
BODY, TITLE, NUMBER = 17, 21, 54
"""Sizes of headings within a drawing, of its title, and of the one number of a drawing."""
LINE: Final = 1.4
"""The distance between lines of text, as a multiple of their size."""
FONT: Final = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"

Anchor = Literal["start", "middle", "end"]

ADVANCES: Final = {
    "'ijl": 0.28,
    "IJ .,·": 0.32,
    ":;/|()-ftr": 0.41,
    "–sz": 0.52,
    "cLkFvxy": 0.6,
    "PaoTYebdghnpquES0123456789": 0.64,
    "KAVBRXZC": 0.7,
    "UHNDG&OQ": 0.79,
    "w−×<>=+": 0.84,
    "Mm%W": 0.99,
}
"""Widths of characters in a size of 1; of others that of the widest."""
WIDTHS: Final = {character: width for characters, width in ADVANCES.items() for character in characters}
BOLD_FACTOR: Final = 1.12
ASCENT, DESCENT = 0.8, 0.22
"""How far a text reaches above and below its base line, in a size of 1."""


@dataclass(frozen=True)
class Colours:
    """Of one page, after Okabe and Ito, as the page of `elastic-ctl ui` has them."""

    back: str
    text: str
    soft: str
    line: str
    box: str
    ours: str
    peer: str
    bad: str
    phases: tuple[str, ...]
    """Those of the groups of phases; they differ in lightness, too."""


LIGHT: Final = Colours(
    back="#ffffff",
    text="#171b22",
    soft="#566070",
    line="#d5dae1",
    box="#eef0f4",
    ours="#0059a8",
    peer="#a06400",
    bad="#b83b00",
    phases=("#b5400d", "#e69f00", "#87468f", "#56b4e9", "#d8c920", "#00795a"),
)
DARK: Final = Colours(
    back="#0d1117",
    text="#e8ebf0",
    soft="#9aa5b4",
    line="#2f3743",
    box="#1d222b",
    ours="#6db3f2",
    peer="#e5a935",
    bad="#ff7f50",
    phases=("#c8561f", "#e69f00", "#a465ad", "#56b4e9", "#f0e442", "#1f9b78"),
)
THEMES: Final = {"light": LIGHT, "dark": DARK}


class Mark(StrEnum):
    """The shape of a point; together with its colour it names a series."""

    CIRCLE = "circle"
    RING = "ring"
    SQUARE = "square"
    DIAMOND = "diamond"
    UP = "up"
    DOWN = "down"


SHAPES: Final = {
    Mark.SQUARE: "M-5.5 -5.5h11v11h-11z",
    Mark.DIAMOND: "M0 -7.5L7.5 0L0 7.5L-7.5 0z",
    Mark.UP: "M0 -7L7 5.5H-7z",
    Mark.DOWN: "M0 7L7 -5.5H-7z",
}


def text_width(words: str, size: float, *, bold: bool = False) -> float:
    """How wide a text is at most."""
    width = sum(WIDTHS.get(character, 1.0) for character in words) * size
    return width * BOLD_FACTOR if bold else width


def wrapped(words: str, size: float, width: float) -> list[str]:
    """Lines of words that are no wider than `width`."""
    lines = [""]
    for word in words.split():
        longer = f"{lines[-1]} {word}".strip()
        if text_width(longer, size) > width and lines[-1]:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines


def seconds(value: float) -> str:
    """A figure as the tables have it."""
    return f"{value:.3g} s".replace("-", "−")


@dataclass(frozen=True)
class Scale:
    """Where values are along an axis: `low` at `start`, `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def at(self, value: float) -> float:
        """The place of a value."""
        low, high, value = map(math.log10, (self.low, self.high, value)) if self.log else (self.low, self.high, value)
        return self.start + (value - low) / (high - low) * (self.end - self.start)


class Canvas:
    """A drawing of elements from top to bottom; `height` is known at its end."""

    def __init__(self, title: str, colours: Colours) -> None:
        self.title = title
        self.colours = colours
        self.elements: list[str] = []

    def text(
        self,
        x: float,
        y: float,
        words: str,
        *,
        colour: str = "",
        size: float = TEXT_MIN,
        bold: bool = False,
        anchor: Anchor = "start",
    ) -> None:
        """Words on a base line."""
        weight = ' font-weight="600"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor != "start" else ""
        self.elements.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour or self.colours.text}" font-size="{size:g}"{weight}{place}>'
            f"{escape(words)}</text>"
        )

    def paragraph(self, y: float, words: str, *, colour: str = "", size: float = TEXT_MIN, x: float = MARGIN) -> float:
        """Words in as many lines as they need; gives the base line of the next one."""
        for line in wrapped(words, size, RIGHT - x):
            self.text(x, y, line, colour=colour or self.colours.soft, size=size)
            y += size * LINE
        return y

    def heading(self, y: float, words: str) -> float:
        """The title, in as many lines as it needs; gives the base line of what follows."""
        for line in wrapped(words, TITLE * BOLD_FACTOR, RIGHT - MARGIN):
            self.text(MARGIN, y, line, size=TITLE, bold=True)
            y += TITLE * LINE
        return y

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        *,
        edge: str = "",
        radius: float = 0,
        pale: bool = False,
    ) -> None:
        """A rectangle, pale where something is drawn on it."""
        stroke = f' stroke="{edge}" stroke-width="1.5"' if edge else ""
        corner = f' rx="{radius:g}"' if radius else ""
        opacity = ' fill-opacity="0.5"' if pale else ""
        self.elements.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"'
            f"{opacity}{stroke}{corner}/>"
        )

    def path(
        self, steps: str, colour: str, *, width: float = 1.5, dashes: str = "", begin: bool = False, end: bool = False
    ) -> None:
        """A line, with arrow heads where asked for."""
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        heads = (' marker-start="url(#head)"' if begin else "") + (' marker-end="url(#head)"' if end else "")
        self.elements.append(
            f'<path d="{steps}" fill="none" stroke="{colour}" stroke-width="{width:g}"{dashed}{heads}/>'
        )

    def mark(self, x: float, y: float, mark: Mark, colour: str) -> None:
        """A point of a series."""
        if mark in (Mark.CIRCLE, Mark.RING):
            fill = colour if mark is Mark.CIRCLE else self.colours.back
            self.elements.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'
            )
        else:
            self.elements.append(
                f'<path d="{SHAPES[mark]}" transform="translate({x:.1f} {y:.1f})" fill="{colour}" '
                f'stroke="{self.colours.back}" stroke-width="1"/>'
            )

    def whisker(self, low: float, high: float, across: float, colour: str, *, upright: bool = False) -> None:
        """A line from the smallest to the largest round, with its ends marked."""
        if upright:
            steps = f"M{across - 4:.1f} {low:.1f}h8m-4 0V{high:.1f}m-4 0h8"
        else:
            steps = f"M{low:.1f} {across - 4:.1f}v8m0 -4H{high:.1f}m0 -4v8"
        self.path(steps, colour, width=2)

    def x_axis(self, scale: Scale, ticks: Iterable[tuple[float, str]], top: float, bottom: float) -> None:
        """Upright lines through the drawing, each with its value and unit below."""
        for value, words in ticks:
            x = scale.at(value)
            self.path(f"M{x:.1f} {top:.1f}V{bottom:.1f}", self.colours.line, width=1)
            half = text_width(words, TEXT_MIN) / 2
            centre = min(max(x, MARGIN + half), RIGHT - half)
            self.text(centre, bottom + 20, words, colour=self.colours.soft, anchor="middle")

    def legend(self, y: float, entries: Sequence[tuple[str, str]], columns: int) -> float:
        """Squares of colour with their words, column by column; gives the base line of what follows."""
        rows = math.ceil(len(entries) / columns)
        for place, (colour, words) in enumerate(entries):
            x = MARGIN + (RIGHT - MARGIN) / columns * (place // rows)
            at = y + 24 * (place % rows)
            self.box(x, at - 12, 14, 14, colour, radius=2)
            self.text(x + 22, at, words)
        return y + 24 * rows

    def svg(self, height: float) -> str:
        """The whole drawing, so many units high."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" width="{WIDTH}" '
            f'height="{height:.0f}" role="img" font-family="{FONT}">'
        )
        arrow = (
            '<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" '
            f'orient="auto-start-reverse"><path d="M0 0L10 5L0 10z" fill="{self.colours.soft}"/></marker></defs>'
        )
        back = f'<rect width="{WIDTH}" height="{height:.0f}" rx="8" fill="{self.colours.back}"/>'
        needed = [arrow] if any("url(#head)" in element for element in self.elements) else []
        return "\n".join([head, f"<title>{escape(self.title)}</title>", *needed, back, *self.elements, "</svg>", ""])
