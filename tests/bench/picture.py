"""Draws the picture of a recovery at the top of README.md, for a light page and for a dark one.

    python -m tests.bench.picture [--results docs/bench] [--to docs]

The upper half is one measured run (docs/bench/recorded.json), the lower one the medians of `tests.bench.recovery`. The
drawing is a pure function of these files, and a test compares it with what stands in docs/.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Final

from tests.bench import against, jobs, recorded, results, torchft_jobs
from tests.bench.recorded import Recorded
from tests.bench.results import OURS, Figure

WIDTH: Final = 960
LEFT, RIGHT = 150, 24
LANE, TICK, TOP = 46, 26, 84
ROW = 30
FROM_MS, TO_MS = -200.0, 500.0
"""What the upper half shows; a slower recovery makes it longer."""
FONT: Final = "font-family=\"system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif\""

PARTS: Final = {
    "detect": ("detect",),
    "agree": ("decide", "publish", "barrier"),
    "stop": ("stop",),
    "start": ("spawn", "script", "group"),
    "restore": ("restore",),
    "first step": ("step",),
}
"""The phases of docs/recovery.md, put together as far as a picture shows them."""
LAUNCHERS: Final = {
    **{who: who for who in (OURS, jobs.TUNED, jobs.DEFAULTS, jobs.ELASTIC_ETCD, torchft_jobs.DEFAULTS)},
    torchft_jobs.TUNED: f"torchft, {torchft_jobs.TUNED_S:g} s",
}
"""The bars of the lower half: who is measured, and what the bar is called. The script imports nothing to learn."""


@dataclass(frozen=True)
class Colours:
    """Of one page. Those of the parts differ in lightness, too, for people who do not see their hue."""

    text: str
    soft: str
    line: str
    before: str
    after: str
    lost: str
    peer: str
    parts: tuple[str, ...]


LIGHT: Final = Colours(
    text="#1f2328",
    soft="#59636e",
    line="#d1d9e0",
    before="#8c959f",
    after="#0b6bcb",
    lost="#c4320a",
    peer="#afb8c1",
    parts=("#7a3e00", "#b35900", "#e08a00", "#f2c14e", "#5aa9e6", "#0b6bcb"),
)
DARK: Final = Colours(
    text="#e6edf3",
    soft="#9198a1",
    line="#3d444d",
    before="#848d97",
    after="#58a6ff",
    lost="#ff7b54",
    peer="#59636e",
    parts=("#8a5a2b", "#c77700", "#f0a020", "#ffdd80", "#2f6fb3", "#58a6ff"),
)
PAGES: Final = {"recovery-light.svg": LIGHT, "recovery-dark.svg": DARK}


class Picture:
    """The lines of one drawing, from top to bottom."""

    def __init__(self, run: Recorded, figures: Sequence[Figure], silent: Figure, colours: Colours) -> None:
        self.run = run
        self.figures = figures
        self.silent = silent
        self.colours = colours
        self.until_ms = max(TO_MS, run.took_ms + 200.0)
        self.lines: list[str] = []

    def x(self, at_ms: float) -> float:
        """The place of a moment."""
        return LEFT + (at_ms - FROM_MS) / (self.until_ms - FROM_MS) * (WIDTH - LEFT - RIGHT)

    def text(self, x: float, y: float, words: str, *, colour: str = "", size: int = 13, rest: str = "") -> None:
        """Words, from their left end unless `rest` says otherwise."""
        colour = colour or self.colours.text
        self.lines.append(
            f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}" {rest}>{escape(words)}</text>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        """A filled rectangle."""
        self.lines.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>')

    def ticks(self, moments: Iterable[float], y: float, colour: str) -> None:
        """One mark for each step."""
        path = "".join(f"M{self.x(at):.1f} {y:.1f}v{TICK}" for at in moments if FROM_MS <= at <= self.until_ms)
        if path:
            self.lines.append(f'<path d="{path}" stroke="{colour}" stroke-width="2"/>')

    def upright(self, at_ms: float, top: float, bottom: float, colour: str) -> None:
        """A line through all lanes."""
        x = self.x(at_ms)
        self.lines.append(
            f'<path d="M{x:.1f} {top:.1f}V{bottom:.1f}" stroke="{colour}" stroke-width="1.5" stroke-dasharray="4 3"/>'
        )

    def draw(self) -> str:
        """The whole drawing."""
        self.text(LEFT, 26, self.headline(), size=17, rest='font-weight="600"')
        state = f"{recorded.STATE_MB:g} MB of state"
        words = f"one machine, a script with the library and {state}; each mark is a training step"
        self.text(LEFT, 46, words, colour=self.colours.soft)
        bottom = self.lanes(TOP)
        bottom = self.parts(bottom)
        bottom = self.bars(bottom + 34)
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {bottom:.0f}" width="{WIDTH}" '
            f'height="{bottom:.0f}" role="img" {FONT}>'
        )
        return "\n".join([head, f"<title>{escape(self.headline())}</title>", *self.lines, "</svg>", ""])

    def headline(self) -> str:
        """What there is to see, in a sentence."""
        return f"One of three nodes is killed: the others train on after {self.run.took_ms / 1000:.2f} s"

    def lanes(self, top: float) -> float:
        """The nodes; gives where they end."""
        bottom = top + LANE * len(self.run.lanes)
        self.upright(0, top - 18, bottom, self.colours.lost)
        self.text(self.x(0) - 6, top - 8, "SIGKILL", colour=self.colours.lost, rest='text-anchor="end"')
        self.upright(self.run.took_ms, top - 18, bottom, self.colours.after)
        words = f"step {self.run.steps[1]}, in a world of 2"
        self.text(self.x(self.run.took_ms) + 6, top - 8, words, colour=self.colours.after)
        for number, lane in enumerate(self.run.lanes):
            y = top + LANE * number + (LANE - TICK) / 2
            self.text(LEFT - 14, y + TICK - 8, f"node {number + 1}", rest='text-anchor="end"')
            self.ticks(lane.before, y, self.colours.before)
            self.ticks(lane.after, y, self.colours.after)
            if not lane.after:
                self.text(self.x(0) + 8, y + TICK - 8, "gone: agent and worker", colour=self.colours.lost)
        for at_ms in range(round(FROM_MS), round(self.until_ms) + 1, 100):
            words = f"{at_ms} ms" if at_ms else "0"
            self.text(self.x(at_ms), bottom + 16, words, colour=self.colours.soft, size=11, rest='text-anchor="middle"')
        return bottom + 22

    def parts(self, top: float) -> float:
        """Where the time went; gives where that ends."""
        lengths = {part: sum(self.run.phases.get(name, 0.0) for name in names) for part, names in PARTS.items()}
        at_ms = self.run.took_ms - sum(lengths.values())
        self.text(LEFT - 14, top + 22, "where it went", rest='text-anchor="end"')
        x = float(LEFT)
        for (part, length_ms), colour in zip(lengths.items(), self.colours.parts, strict=True):
            if length_ms < 0.5:
                continue
            self.box(self.x(at_ms), top + 8, self.x(at_ms + length_ms) - self.x(at_ms), 18, colour)
            at_ms += length_ms
            words = f"{part} {length_ms:.0f} ms"
            self.box(x, top + 36, 10, 10, colour)
            self.text(x + 15, top + 46, words, size=12)
            x += 40 + 6.6 * len(words)
        return top + 52

    def bars(self, top: float) -> float:
        """The same kill under each launcher, to one scale, and a silent host; gives where that ends."""
        words = (
            "SIGKILL of a node, a script without state that imports only torch, one machine: medians, kill to next step"
        )
        self.text(LEFT, top + 4, words, colour=self.colours.soft)
        longest = max(figure.value for figure in self.figures)
        room = WIDTH - LEFT - RIGHT - 70
        for number, figure in enumerate(self.figures):
            y = top + 14 + ROW * number
            ours = figure.who == OURS
            self.text(LEFT - 14, y + 17, LAUNCHERS[figure.who], size=12, rest='text-anchor="end"')
            width = max(figure.value / longest * room, 2)
            self.box(LEFT, y + 3, width, 18, self.colours.after if ours else self.colours.peer)
            words = f"{figure.value:.2f} s" if ours else f"{figure.value:.1f} s"
            self.text(LEFT + width + 8, y + 17, words, rest='font-weight="600"')
        bottom = top + 24 + ROW * len(self.figures)
        default = f"{self.silent.value:.1f} s by default"
        words = f"elastic-launch, a host that goes silent (power failure, lost network): {default}"
        self.text(LEFT, bottom + 8, words, colour=self.colours.soft)
        return bottom + 24


def drawings(folder: Path = results.FOLDER) -> dict[str, str]:
    """Both pictures, by file name."""
    run = recorded.read(folder)
    measured = results.read("recovery", folder)
    figures = [one for one in measured if one.what == against.KILL and one.who in LAUNCHERS]
    silent = next(one for one in measured if (one.what, one.who) == (against.SILENT, OURS))
    return {name: Picture(run, figures, silent, colours).draw() for name, colours in PAGES.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    parser.add_argument("--to", type=Path, default=results.FOLDER.parent)
    args = parser.parse_args()
    for name, drawing in drawings(args.results).items():
        (args.to / name).write_text(drawing)
        print(args.to / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
