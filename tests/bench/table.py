"""The tables of figures in README.md and docs/concepts/benchmarks.md, made of docs/bench.

    python -m tests.bench.table [--write] [--results docs/bench]

Without `--write` they are printed. With it the blocks between their marks in these pages are replaced.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.bench import results, scenarios
from tests.bench.nodes import ROOT
from tests.bench.results import Figure

FIGURES, SCENARIOS, SUMMARY = "figures", "recovery time by scenario", "recovery time"
PAGES = {"README.md": (SUMMARY,), "docs/concepts/benchmarks.md": (SCENARIOS, FIGURES)}
"""The tables of each page."""
BENCHMARKS = ("recovery", "integrations", "learning", "start", "scale", "idle")
HEAD = "| what | who | median | goal | rounds | measure it |\n|---|---|---|---|---|---|\n"


def row(one: Figure) -> str:
    """One line of the table of all figures."""
    ratio = not one.unit
    median = _part(one.value) if ratio else f"{one.value:.3g} {one.unit}"
    goal = ""
    if one.goal is not None:
        kept = "kept" if one.kept else "**not reached**"
        goal = f"{_part(one.goal) if ratio else f'{one.goal:.3g}'}: {kept}"
    rounds = "" if ratio else " ".join(f"{value:.3g}" for value in one.rounds)
    return f"| {one.what} | {one.who} | {median} | {goal} | {rounds} | `{one.environment}{one.command}` |\n"


def table(measured: Iterable[Figure]) -> str:
    """All figures, one line each."""
    return HEAD + "".join(map(row, measured))


def tables(folder: Path = results.FOLDER) -> dict[str, str]:
    """All tables, by name."""
    measured = {name: results.read(name, folder) for name in BENCHMARKS}
    return {
        SCENARIOS: scenarios.table(measured["recovery"]),
        SUMMARY: scenarios.summary(measured["recovery"]),
        FIGURES: table(one for figures in measured.values() for one in figures),
    }


def marks(name: str) -> tuple[str, str]:
    """The lines before and after a table in a page."""
    return f"<!-- {name}: python -m tests.bench.table --write -->", f"<!-- end of {name} -->"


def written(text: str, name: str, new: str) -> str:
    """`text` with the table of this name replaced."""
    first, last = marks(name)
    before, begin, rest = text.partition(first)
    _, end, after = rest.partition(last)
    if not begin or not end:
        raise ValueError(f"the marks {first} and {last} are not both there")
    return f"{before}{first}\n{new}{last}{after}"


def page(name: str, made: dict[str, str], root: Path = ROOT) -> str:
    """The text of a page with its tables as they were made."""
    text = (root / name).read_text()
    for table_name in PAGES[name]:
        text = written(text, table_name, made[table_name])
    return text


def _part(value: float) -> str:
    return f"1/{1 / value:.0f}" if value < 1 else f"{value:.2g} times"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--results", type=Path, default=results.FOLDER)
    args = parser.parse_args()
    made = tables(args.results)
    if not args.write:
        print(*made.values(), sep="\n", end="")
        return 0
    for name in PAGES:
        (ROOT / name).write_text(page(name, made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
