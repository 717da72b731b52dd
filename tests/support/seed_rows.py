"""The rows of docs/development/requirements.md."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HEAD = ["row", "seed document", "elastic-launch", "tested by"]


class Row(NamedTuple):
    """One line of the tables."""

    id: str
    named: str
    here: str
    shown: str


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


@cache
def rows() -> tuple[Row, ...]:
    lines = [
        cells(line) for line in (DOCS / "development/requirements.md").read_text().splitlines() if line.startswith("|")
    ]
    assert all(len(line) == len(HEAD) for line in lines), [line for line in lines if len(line) != len(HEAD)]
    return tuple(Row(*line) for line in lines if line != HEAD and set(line) != {"---"})


def by_id() -> dict[str, Row]:
    return {row.id: row for row in rows()}
