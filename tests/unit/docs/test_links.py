"""Every link between the pages leads to a page, and to a heading of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s:]+)\)")
PATH = re.compile(r"`((?:elastic|launcher|tests|deploy)/[\w./-]*\w)`")
NAMED = re.compile(r"`((?:elastic|launcher)/[\w/]+\.py)` \(((?:`\w+`(?:, )?)+)\)")


def linking() -> list[Path]:
    top = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    return [*top, *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "deploy").rglob("README.md"))]


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        same = sum(1 for one in found if re.fullmatch(re.escape(name) + r"(-\d+)?", one))
        found.add(f"{name}-{same}" if same else name)
    return found


@pytest.mark.parametrize("page", linking(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_the_pages_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), f"{page.name} points to {target}"
        assert not anchor or anchor in anchors(there), f"{page.name} points to {target}: there is no such heading"


def test_every_page_is_in_the_list_of_pages() -> None:
    listed = {target.partition("#")[0] for target in LINK.findall((DOCS / "index.md").read_text())}
    assert {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")} - {"index.md"} <= listed


@pytest.mark.parametrize("page", linking(), ids=lambda page: str(page.relative_to(ROOT)))
def test_files_and_folders_that_a_page_names_exist(page: Path) -> None:
    assert [path for path in PATH.findall(page.read_text()) if not (ROOT / path).exists()] == []


def test_the_map_names_functions_and_tables_that_their_modules_have() -> None:
    named = NAMED.findall((DOCS / "development/architecture.md").read_text())
    pairs = [(path, name) for path, names in named for name in re.findall(r"\w+", names)]
    assert len(pairs) > 30
    absent = [one for one in pairs if not re.search(rf"\b{one[1]}\b", (ROOT / one[0]).read_text())]
    assert absent == []
