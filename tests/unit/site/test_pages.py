"""How a page of the repository becomes a page of the documentation site."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.site.pages import TOP_PAGES, copy, repo_url, rewritten, site_places

REPOSITORY = "https://example.org/o/r"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    docs = ("docs/index.md", "docs/guides/a.md", "docs/pictures/p.svg", "docs/bench/x.json")
    others = (
        "deploy/README.md",
        "deploy/cloud/README.md",
        "deploy/x.yaml",
        "CONTRIBUTING.md",
        "README.md",
        "elastic/a.py",
    )
    for name in (*docs, *others):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "mkdocs.yml").write_text(f"site_name: x\nrepo_url: {REPOSITORY}\n")
    return tmp_path


@pytest.mark.parametrize(
    ("link", "becomes"),
    [
        ("../index.md#top", "../index.md#top"),
        ("#here", "#here"),
        ("https://pytorch.org/x", "https://pytorch.org/x"),
        ("../pictures/p.svg", "../pictures/p.svg"),
        ("../../deploy/README.md", "../deploy/README.md"),
        ("../../deploy/cloud/", "../deploy/cloud/README.md"),
        ("../../CONTRIBUTING.md#set-up", "../development/contributing.md#set-up"),
        ("../../README.md", f"{REPOSITORY}/blob/main/README.md"),
        ("../../elastic/a.py", f"{REPOSITORY}/blob/main/elastic/a.py"),
        ("../bench", f"{REPOSITORY}/tree/main/docs/bench"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site_or_to_the_repository(root: Path, link: str, becomes: str) -> None:
    page = root / "docs/guides/a.md"
    assert rewritten(f"see [it]({link}).", page, site_places(root), REPOSITORY, root) == f"see [it]({becomes})."


def test_code_blocks_stay_as_they_are(root: Path) -> None:
    text = "```python\na[0](../../elastic/a.py)\n```\n"
    assert rewritten(text, root / "docs/guides/a.md", site_places(root), REPOSITORY, root) == text


def test_a_picture_becomes_an_image_for_each_mode(root: Path) -> None:
    text = (
        '<picture>\n  <source media="(prefers-color-scheme: dark)" srcset="pictures/p.svg">\n'
        '  <img alt="A picture" src="pictures/p.svg">\n</picture>'
    )
    made = rewritten(text, root / "docs/index.md", site_places(root), REPOSITORY, root)
    assert made == "![A picture](pictures/p.svg#only-light)\n![A picture](pictures/p.svg#only-dark)"


def test_the_copy_has_every_page_and_the_other_files_of_docs_and_nothing_of_an_earlier_copy(root: Path) -> None:
    out = root / "build/docs"
    (out / "old").mkdir(parents=True)
    copy(root, out)
    made = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert made == {
        *("index.md", "guides/a.md", "pictures/p.svg", "bench/x.json"),
        *("deploy/README.md", "deploy/cloud/README.md", TOP_PAGES["CONTRIBUTING.md"]),
    }


def test_a_config_without_a_repository_is_an_error() -> None:
    with pytest.raises(ValueError, match="no line `repo_url: ADDRESS`"):
        repo_url("site_name: x\n")
