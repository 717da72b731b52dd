"""The table of figures in docs/measured.md, made of docs/bench.

    python -m tests.bench.table [--write] [--results docs/bench]

Without `--write` it is printed. With it the block between the two marks in that page is replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.bench import results
from tests.bench.nodes import ROOT
from tests.bench.results import ENVIRONMENT, Figure

BEGIN = "<!-- figures: python -m tests.bench.table --write -->"
END = "<!-- end of figures -->"
BENCHMARKS = ("recovery", "start", "scale", "idle")
HEAD = "| what | who | median | goal | rounds | measure it |\n|---|---|---|---|---|---|\n"


def row(one: Figure) -> str:
    """One line of the table."""
    ratio = not one.unit
    median = _part(one.value) if ratio else f"{one.value:.3g} {one.unit}"
    goal = ""
    if one.goal is not None:
        kept = "kept" if one.kept else "**not reached**"
        goal = f"{_part(one.goal) if ratio else f'{one.goal:.3g}'}: {kept}"
    rounds = "" if ratio else " ".join(f"{value:.3g}" for value in one.rounds)
    return f"| {one.what} | {one.who} | {median} | {goal} | {rounds} | `{ENVIRONMENT}{one.command}` |\n"


def table(measured: Iterable[Figure]) -> str:
    """All lines."""
    return HEAD + "".join(map(row, measured))


def written(text: str, new: str) -> str:
    """`text` with the block between the marks replaced."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the marks {BEGIN} and {END} are not both there")
    return f"{before}{BEGIN}\n{new}{END}{after}"


def _part(value: float) -> str:
    return f"1/{1 / value:.0f}" if value < 1 else f"{value:.2g} times"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    new = table(one for name in BENCHMARKS for one in results.read(name, args.results))
    if not args.write:
        print(new, end="")
        return 0
    page = ROOT / "docs" / "measured.md"
    page.write_text(written(page.read_text(), new))
    return 0


if __name__ == "__main__":
    sys.exit(main())
