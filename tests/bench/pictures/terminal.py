"""The recording of the demo as an animated drawing of a terminal: docs/pictures/demo.svg.

A terminal (pyte) is given the recorded output. Each line that it shows is drawn once, below the lines before it; the
animation shows it at its moment and moves all lines up as the terminal scrolls. Where the reader prefers reduced motion
there is only the last frame, and so there is where a viewer does not know CSS.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import groupby, pairwise
from pathlib import Path
from typing import Final

import pyte
from pyte.screens import Char

from tests.bench import recording
from tests.bench.recording import Recording

PAUSE_MAX_S: Final = 1.5
"""Longer pauses are cut to this; the title bar says so."""
LAST_S: Final = 8.0
"""How long the last frame stays before the animation begins again."""
SIZE, LINE, ADVANCE = 14, 19, 0.602
"""Of the text; the widths of DejaVu Sans Mono, Menlo and most other fonts of a terminal are the same."""
PAD, BAR = 14, 32
HISTORY_LINES: Final = 10_000
BACK, TEXT, BOLD, SOFT, EDGE = "#11161d", "#ccd3dc", "#ffffff", "#8b96a5", "#3a4350"
COLOURS: Final = {
    "black": "#5c6773",
    "red": "#ff7f50",
    "green": "#5fc29d",
    "brown": "#e5a935",
    "blue": "#6db3f2",
    "magenta": "#cf8fd9",
    "cyan": "#56c8d8",
    "white": "#e8ebf0",
}
BRIGHT: Final = "bright"
FONT: Final = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass
class DrawnLine:
    """What one line of the terminal showed from a moment on; until another moment, if it changed."""

    number: int
    chars: tuple[Char, ...]
    shown_at_s: float
    hidden_at_s: float | None = None


def moments(output: recording.Recording) -> list[float]:
    """When each piece of the output is shown, with long pauses cut."""
    at_s, times = 0.0, [0.0]
    for (before, _), (after, _) in pairwise(output.output):
        at_s += min(after - before, PAUSE_MAX_S)
        times.append(round(at_s, 3))
    return times


def frames(output: Recording) -> tuple[list[DrawnLine], list[tuple[float, int]], float]:
    """All lines that are ever seen; how many have scrolled out of sight from which moment on; and the last moment."""
    screen = pyte.HistoryScreen(output.columns, output.rows, history=HISTORY_LINES, ratio=0.5)
    stream = pyte.Stream(screen)
    current: dict[int, DrawnLine] = {}
    drawn: list[DrawnLine] = []
    scrolls = [(0.0, 0)]
    at_s = 0.0
    for at_s, (_, text) in zip(moments(output), output.output, strict=True):
        stream.feed(text)
        above = len(screen.history.top)
        if above != scrolls[-1][1]:
            scrolls.append((at_s, above))
        rows = [*screen.history.top, *(screen.buffer[row] for row in range(output.rows))]
        for number, row in enumerate(rows):
            chars = _stripped(tuple(row[column] for column in range(output.columns)))
            line = current.get(number)
            if chars == (line.chars if line is not None else ()):
                continue
            if line is not None:
                line.hidden_at_s = at_s
            current[number] = DrawnLine(number, chars, at_s)
            drawn.append(current[number])
    return [line for line in drawn if line.chars], scrolls, at_s


def _stripped(chars: tuple[Char, ...]) -> tuple[Char, ...]:
    end = len(chars)
    while end and chars[end - 1].data == " ":
        end -= 1
    return chars[:end]


def draw(output: Recording) -> str:
    """The drawing."""
    lines, scrolls, ended_at_s = frames(output)
    total_s = ended_at_s + LAST_S
    width = round(output.columns * SIZE * ADVANCE) + 2 * PAD
    inner = output.rows * LINE
    height = BAR + inner + 2 * PAD
    styles = [_scroll_style(scrolls, total_s)]
    styles += [
        _line_style(name, shown, hidden, total_s) for name, (shown, hidden) in enumerate(_lifetimes(lines)) if shown
    ]
    names = {lifetime: name for name, lifetime in enumerate(_lifetimes(lines))}
    texts = [_text(line, names[line.shown_at_s, line.hidden_at_s]) for line in lines]
    title = "The demo of elastic-launch in a terminal: a node is killed, the others continue, and a node joins"
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" font-family="{FONT}" font-size="{SIZE}">',
            f"<title>{escape(title)}</title>",
            "<style>",
            f".a{{animation:{total_s:.2f}s step-end infinite}}",
            f".all{{transform:translateY({-scrolls[-1][1] * LINE}px);animation-name:scroll}}",
            *styles,
            "@media (prefers-reduced-motion:reduce){.a{animation:none}}",
            "</style>",
            f'<rect x="0.75" y="0.75" width="{width - 1.5}" height="{height - 1.5}" rx="9" fill="{BACK}" '
            f'stroke="{EDGE}" stroke-width="1.5"/>',
            *(f'<circle cx="{20 + 20 * place}" cy="{BAR / 2:g}" r="6" fill="{EDGE}"/>' for place in range(3)),
            f'<text x="{width - PAD}" y="{BAR / 2 + 5:g}" text-anchor="end" fill="{SOFT}">'
            f"pauses longer than {PAUSE_MAX_S:g} s are cut</text>",
            f'<clipPath id="inside"><rect x="0" y="{BAR + PAD}" width="{width}" height="{inner}"/></clipPath>',
            f'<g clip-path="url(#inside)"><g class="a all" fill="{TEXT}">',
            *texts,
            "</g></g>",
            "</svg>",
            "",
        ]
    )


def _lifetimes(lines: list[DrawnLine]) -> list[tuple[float, float | None]]:
    return list(dict.fromkeys((line.shown_at_s, line.hidden_at_s) for line in lines))


def _percent(at_s: float, total_s: float) -> str:
    return f"{100 * at_s / total_s:.3f}%"


def _scroll_style(scrolls: list[tuple[float, int]], total_s: float) -> str:
    steps = "".join(f"{_percent(at_s, total_s)}{{transform:translateY({-above * LINE}px)}}" for at_s, above in scrolls)
    return f"@keyframes scroll{{{steps}}}"


def _line_style(name: int, shown_at_s: float, hidden_at_s: float | None, total_s: float) -> str:
    """Lines with one lifetime. Without animation those that were replaced are hidden."""
    steps = f"0%{{visibility:hidden}}{_percent(shown_at_s, total_s)}{{visibility:visible}}"
    still = ""
    if hidden_at_s is not None:
        steps += f"{_percent(hidden_at_s, total_s)}{{visibility:hidden}}"
        still = "visibility:hidden;"
    return f"@keyframes t{name}{{{steps}}}.t{name}{{{still}animation-name:t{name}}}"


def _text(line: DrawnLine, name: int) -> str:
    y = BAR + PAD + LINE * line.number + SIZE
    parts = "".join(
        _part("".join(char.data for char in chars), colour, bold)
        for (colour, bold), chars in groupby(line.chars, lambda char: (char.fg, char.bold))
    )
    return f'<text class="a t{name}" x="{PAD}" y="{y}" xml:space="preserve">{parts}</text>'


def _part(words: str, colour: str, bold: bool) -> str:
    weight = ' font-weight="700"' if bold else ""
    plain = BOLD if bold else ""
    named = COLOURS.get(colour.removeprefix(BRIGHT), plain if colour == "default" else f"#{colour}")
    fill = f' fill="{named}"' if named else ""
    return f"<tspan{fill}{weight}>{escape(words)}</tspan>" if fill or weight else escape(words)


def drawing(folder: Path) -> str:
    """The drawing of what was recorded."""
    return draw(recording.read(folder))
