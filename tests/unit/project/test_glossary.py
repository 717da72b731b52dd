"""The glossary lint finds retired words, and in prose only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.lint.glossary import GLOSSARY, main, uses
from tests.lint.prose import of_markdown, of_project, of_python

WORDS = {word.name: word for word in GLOSSARY}


def in_page(name: str, source: str) -> list[int]:
    """Return the lines of a Markdown text on which a word is used."""
    return [use.line for use in uses(WORDS[name], of_markdown("page.md", source))]


def in_module(name: str, source: str) -> list[int]:
    """Return the lines of a Python text on which a word is used."""
    return [use.line for use in uses(WORDS[name], of_python("module.py", source))]


def test_paragraphs_headings_lists_tables_and_captions_count() -> None:
    source = (
        "# A card\n\nOne Card,\ntwo cards.\n\n| cards |\n|---|\n| a card |\n\n"
        "- a [card](card.md)\n\n![a card](card.png)\n"
    )
    assert in_page("card", source) == [1, 3, 4, 6, 8, 10, 12]


def test_code_links_and_names_in_a_page_do_not_count() -> None:
    source = (
        "A `card`, --isolate-gpus, --card, N_card, ELASTIC_CARD, card.py and [a link](card).\n\n"
        "    one card\n\n```console\ncard\n```\n\n<!-- card -->\n"
    )
    assert in_page("card", source) == []


def test_comments_docstrings_and_messages_of_a_module_count() -> None:
    source = (
        '"""A card.\n\nA second card."""\n\nx = 1  # a card\n# no\n# card\n'
        'raise E(f"{x} cards")\nhelp("an " "old card")\n'
    )
    assert sorted(in_module("card", source)) == [1, 3, 5, 7, 8, 9]


def test_identifiers_and_stored_values_of_a_module_do_not_count() -> None:
    source = (
        'card = {"card": cards["one_card"]}\nx = "a/card"\n# see card.py and `card`\nsay("use --card and `card`")\n'
    )
    assert in_module("card", source) == []


def test_strings_within_the_values_of_an_f_string_count_once() -> None:
    assert in_module("card", "x = f\"a {f('no card')} here\"\n") == [1]


def test_a_phrase_is_found_across_a_line_break() -> None:
    assert in_page("goes on", "the job goes\non\n") == [1]
    assert in_module("goes on", "# the job goes\n# on\n") == [1]
    assert in_module("goes on", "x = 1  # the job goes\ny = 2  # on\n") == []


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mend", "This mends it."),
        ("so many", "So often may it ask."),
        ("stands", "What stands there"),
        ("is due", "96 % are due"),
        ("who", "Who connects is asked."),
        ("who", "It ends. Who comes later waits."),
        ("sign", "at most 129 signs"),
        ("node loss", "after the loss of a node"),
        ("told", "It is told."),
        ("folder", "A folder of files"),
    ],
)
def test_a_use_is_found(name: str, text: str) -> None:
    assert in_page(name, text) == [1]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mend", "We recommend and amend it."),
        ("so many", "It runs so long as etcd is up, so much that it shows."),
        ("stands", "M stands for the node; a stand-by node; it stands by."),
        ("is due", "This is due to an outage."),
        ("who", "Who can reach etcd? Users who can write there."),
        ("sign", "the first sign of a failure; etcd signs it"),
        ("node loss", "the loss of training, step and loss"),
        ("card", "a discarded cardinal"),
        ("folder", "folder: The directory; pass folder=path"),
    ],
)
def test_a_legitimate_use_is_not_found(name: str, text: str) -> None:
    assert in_page(name, text) == []


def test_names_are_unique_and_plain() -> None:
    assert len(WORDS) == len(GLOSSARY)
    assert all(re.fullmatch(r"[a-z][a-z ]+", name) for name in WORDS)


def test_each_use_is_a_line_with_its_place_and_the_words_to_write_instead(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text("A GPU.\n")
    assert (main(tmp_path), capsys.readouterr().err) == (0, "")
    page.write_text("A card,\nno card.\n")
    assert main(tmp_path) == 1
    assert capsys.readouterr().err.splitlines() == [
        "README.md:1: card (write: GPU; for a network card: NIC): A card, no card.",
        "README.md:2: card (write: GPU; for a network card: NIC): A card, no card.",
    ]


def test_pages_and_product_modules_are_read_and_no_tests(tmp_path: Path) -> None:
    for name in ("README.md", "docs/a/b.md", "deploy/c/README.md", "deploy/c/other.md", "elastic/x.py", "tests/y.py"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("# some words\n")
    assert {passage.path for passage in of_project(tmp_path)} == {
        "README.md", "deploy/c/README.md", "docs/a/b.md", "elastic/x.py",
    }  # fmt: skip
