"""Copies the documentation into build/docs, where `mkdocs.yml` reads it.

    python -m tests.site.pages

The pages in docs/ are written to be read in the repository, too, so they link to files outside docs/. In the copy, the
READMEs of deploy/ and some pages of the top folder are pages of the site, a link to any other file of the repository
leads to `repo_url` of mkdocs.yml, and a `<picture>` becomes one image for light and one for dark mode.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
OUT: Final = ROOT / "build" / "docs"
TOP_PAGES: Final[Mapping[str, str]] = {
    "CONTRIBUTING.md": "development/contributing.md",
    "CHANGELOG.md": "development/changelog.md",
    "SECURITY.md": "development/security-policy.md",
}
"""Pages of the top folder, and their places in the site."""

_LINK: Final = re.compile(r"(?<=\]\()([^)\s]+)(?=\))")
_FENCE: Final = re.compile(r"^(```.*?^```[^\n]*$)", re.MULTILINE | re.DOTALL)
_PICTURE: Final = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img (?=[^>]*alt="(?P<alt>[^"]*)")[^>]*src="(?P<light>[^"]+)"[^>]*>\s*</picture>',
    re.DOTALL,
)


def repo_url(config: str) -> str:
    """Return the address of the repository from the text of mkdocs.yml."""
    address = re.search(r"^repo_url: (\S+)$", config, re.MULTILINE)
    if not address:
        raise ValueError("mkdocs.yml has no line `repo_url: ADDRESS`")
    return address[1]


def site_places(root: Path = ROOT) -> dict[Path, str]:
    """Return every page of the site by its file: its path in the site."""
    docs = root / "docs"
    places = {page: page.relative_to(docs).as_posix() for page in sorted(docs.rglob("*.md"))}
    deploy = {page: page.relative_to(root).as_posix() for page in sorted((root / "deploy").rglob("README.md"))}
    top = {root / name: place for name, place in TOP_PAGES.items() if (root / name).exists()}
    return places | deploy | top


def rewritten(text: str, page: Path, places: Mapping[Path, str], repository: str, root: Path = ROOT) -> str:
    """Return the text of a page for the site; code blocks stay as they are."""
    parts = _FENCE.split(text)
    return "".join(part if part.startswith("```") else _prose(part, page, places, repository, root) for part in parts)


def _prose(text: str, page: Path, places: Mapping[Path, str], repository: str, root: Path) -> str:
    text = _PICTURE.sub(
        lambda found: f"![{found['alt']}]({found['light']}#only-light)\n![{found['alt']}]({found['dark']}#only-dark)",
        text,
    )
    return _LINK.sub(lambda found: _target(found[1], page, places, repository, root), text)


def _target(link: str, page: Path, places: Mapping[Path, str], repository: str, root: Path) -> str:
    file, mark, anchor = link.partition("#")
    if not file or re.match(r"[a-z]+:", file):
        return link
    there = Path(os.path.normpath(page.parent / file))
    if there.is_dir() and there / "README.md" in places:
        there /= "README.md"
    docs = root / "docs"
    if there in places or (there.is_relative_to(docs) and there.is_file()):
        place = places.get(there) or there.relative_to(docs).as_posix()
        return os.path.relpath(place, Path(places[page]).parent) + mark + anchor
    kind = "tree" if there.is_dir() else "blob"
    return f"{repository}/{kind}/main/{there.relative_to(root).as_posix()}{mark}{anchor}"


def copy(root: Path = ROOT, out: Path = OUT) -> None:
    """Write every page, and all other files of docs/, below `out`, which is emptied first."""
    repository = repo_url((root / "mkdocs.yml").read_text())
    places = site_places(root)
    shutil.rmtree(out, ignore_errors=True)
    shutil.copytree(root / "docs", out, ignore=shutil.ignore_patterns("*.md"))
    for page, place in places.items():
        target = out / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewritten(page.read_text(), page, places, repository, root))


def main() -> int:
    """Copy the pages."""
    copy()
    return 0


if __name__ == "__main__":
    sys.exit(main())
