"""Draws docs/*.png from the figures in docs/bench.

    python -m tests.bench.charts [--results docs/bench] [--to docs]

Needs matplotlib: pip install -e '.[bench]'. What was not measured is not drawn.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib as mpl

from tests.bench import results, scenarios
from tests.bench.results import OURS, Figure

mpl.use("Agg")
from matplotlib import pyplot as plt  # It reads the backend when it is imported.
from matplotlib.axes import Axes

MINE, PEER, GOAL = "#1f77b4", "#b0b0b0", "#d62728"
DPI = 120
WIDTH, ROW, MARGIN = 8.0, 0.38, 1.3
"""Inches: of a chart, of each bar, and for title and axis."""


def draw(path: Path, title: str, unit: str, bars: Sequence[Figure], *, log: bool = False) -> None:
    """Horizontal bars, ours in colour, each with its number; a goal is a red mark."""
    _, axes = plt.subplots(figsize=(WIDTH, MARGIN + ROW * len(bars)))
    values = [one.value for one in bars]
    axes.barh(range(len(bars)), values, color=[MINE if one.who.startswith(OURS) else PEER for one in bars])
    for row, one in enumerate(bars):
        axes.annotate(f" {one.value:.3g} {unit}", (one.value, row), va="center", fontsize=9)
        if one.goal is not None:
            axes.plot([one.goal, one.goal], [row - 0.4, row + 0.4], color=GOAL)
    axes.set_yticks(range(len(bars)), [_label(one) for one in bars])
    axes.margins(y=0.01)
    axes.invert_yaxis()
    if log:
        axes.set_xscale("log")
        axes.set_xlim(left=min(values) / 5)  # All bars begin at one place; it must not be the end of the shortest.
    axes.set_xlim(right=max(values) * (3 if log else 1.25))
    _finish(axes, title, unit)
    _save(path)


def phases(path: Path, bars: Sequence[Figure]) -> None:
    """Each recovery as one bar of its phases, in milliseconds."""
    _, axes = plt.subplots(figsize=(WIDTH, MARGIN + ROW * len(bars) + 0.6))
    longest_first = sorted(bars, key=lambda one: -len(one.phases))  # It has all of them, in their order.
    names = list(dict.fromkeys(name for one in longest_first for name in one.phases))
    left = [0.0] * len(bars)
    for name in names:
        widths = [one.phases.get(name, 0.0) for one in bars]
        axes.barh(range(len(bars)), widths, left=left, label=name)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(bars)), [_label(one) for one in bars])
    axes.invert_yaxis()
    axes.legend(ncols=4, fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.25))
    _finish(axes, "Where the time of a recovery goes", "ms")
    _save(path)


def _label(one: Figure) -> str:
    return one.what if one.who == OURS else f"{one.what}: {one.who}"


def _finish(axes: Axes, title: str, unit: str) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(unit)
    axes.spines[["top", "right"]].set_visible(False)


def _save(path: Path) -> None:
    plt.savefig(path, dpi=DPI, bbox_inches="tight", metadata={"Software": None})
    plt.close()
    print(path)


def charts(measured: Path) -> dict[str, Callable[[Path], None]]:
    """What can be drawn of what was measured, by file name."""
    found: dict[str, Callable[[Path], None]] = {}
    recovery = scenarios.in_order(results.read("recovery", measured))
    if recovery:
        title = "From the event to the survivors' first step (red: the goal)"
        found["recovery"] = lambda path: draw(path, title, "s", recovery, log=True)
    if known := [one for one in recovery if one.phases]:
        found["phases"] = lambda path: phases(path, known)
    if start := results.read("start", measured):
        found["start"] = lambda path: draw(path, "From the command to the first step", "s", start)
    idle = [one for one in results.read("idle", measured) if one.unit == "MB"]
    if idle:
        found["idle"] = lambda path: draw(path, "Memory of an idle node (red: the goal)", "MB", idle)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    parser.add_argument("--to", type=Path, default=results.FOLDER.parent)
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for name, chart in charts(args.results).items():
        chart(args.to / f"{name}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
