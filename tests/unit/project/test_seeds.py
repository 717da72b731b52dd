"""docs/development/requirements.md: each row of the seed documents, its use here, and a test or page that shows it."""

from __future__ import annotations

import ast
import re
import shlex
from functools import cache
from pathlib import Path

import pytest

from launcher.config import argv
from tests.support.seed_rows import DOCS, ROOT, rows

PAGES = (DOCS / "development/requirements.md", DOCS / "guides/faq.md")
SEEDS = {"A": range(1, 43), "B": range(1, 17), "C": range(1, 25), "D": range(16)}
"""The rows of each seed document: paddle.distributed.launch, Fluid's quick start, Paddle's questions, OneFlow."""
ROWS = [f"{seed}{number}" for seed, numbers in SEEDS.items() for number in numbers]

TEST = re.compile(r"`(tests/[\w/]+\.py(?:::\w+)+)`")
LINK = re.compile(r"\[[^]]+\]\(([^)]+)\)")


@cache
def named_in(path: Path) -> frozenset[str]:
    """The tests of a file as pytest names them: functions, stories among them, and methods of classes."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        for holder, inside in ((f"{node.name}::", node.body) if isinstance(node, ast.ClassDef) else ("", [node]),):
            found |= {
                f"{holder}{one.name}"
                for one in inside
                if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name.startswith("test")
            }
    return frozenset(found)


def missing_tests(text: str) -> list[str]:
    """The tests that a text names and that do not exist."""
    named = [name.partition("::") for name in TEST.findall(text)]
    return [
        f"{path}::{name}" for path, _, name in named if not (ROOT / path).is_file() or name not in named_in(ROOT / path)
    ]


def test_every_row_is_there_once_in_its_order() -> None:
    assert [row.id for row in rows()] == ROWS


def test_every_row_has_a_name_a_use_and_something_that_shows_it() -> None:
    for row in rows():
        assert row.named, row.id
        assert row.here, row.id
        assert TEST.search(row.shown) or LINK.search(row.shown), row.id


def test_nothing_else_stands_in_the_column_that_shows() -> None:
    """A test that is written in another way would not be looked up."""
    for row in rows():
        rest = [part for part in row.shown.split(", ") if not TEST.fullmatch(part) and not LINK.fullmatch(part)]
        assert not rest, (row.id, rest)


def test_every_test_that_is_named_exists() -> None:
    assert missing_tests((DOCS / "development/requirements.md").read_text()) == []


def test_a_test_that_does_not_exist_is_found() -> None:
    """Functions, stories, methods and parametrised tests are known; anything else is not."""
    here = "tests/process/job/test_devices.py"
    known = [
        f"{here}::test_local_nodes_share_the_named_cards",
        "tests/unit/config/test_config.py::test_np_is_a_number_or_a_range",
        "tests/unit/logs/test_logger.py::TestEndpoints::test_the_file_is_exactly_the_documented_one",
    ]
    assert missing_tests(", ".join(f"`{name}`" for name in known)) == []
    unknown = [
        f"{here}::test_that_nobody_wrote",
        f"{here}::four_cards",
        "tests/unit/test_none.py::test_local_nodes_share_the_named_cards",
        "tests/unit/logs/test_logger.py::test_the_file_is_exactly_the_documented_one",
    ]
    assert missing_tests(", ".join(f"`{name}`" for name in unknown)) == unknown


def test_a_row_whose_answer_is_a_page_links_a_heading_of_it() -> None:
    for row in rows():
        if not TEST.search(row.shown):
            assert any("#" in target for target in LINK.findall(row.shown)), row.id


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_can_be_read(page: Path) -> None:
    text = page.read_text().replace("\\\n", " ")
    inline = re.findall(r"`elastic-launch ([^`]+)`", text)
    blocks = re.findall(r"^    .*elastic-launch ([^`\n]+)$", text, re.MULTILINE)
    commands = [shlex.split(line) for line in (*inline, *blocks) if "…" not in line and "an etcd" not in line]
    assert len(commands) >= 5
    for words in commands:
        line = argv.split_argv(words)
        assert line.asks or line.script in {"train.py", "elastic.examples.ps_regression", "elastic.examples.digits"}
