"""What the files of a release say about the project: one version, one address, deprecated names that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Final

import yaml

from launcher import __version__
from launcher.config.flags import FLAGS
from launcher.config.setting import option

ROOT: Final = Path(__file__).parents[3]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY: Final = PROJECT["urls"]["Repository"]
WITH_ADDRESS: Final = (
    *("README.md", "CHANGELOG.md", "CITATION.cff", "mkdocs.yml", "docs/getting-started/install.md"),
    *(".github/ISSUE_TEMPLATE/config.yml", "pyproject.toml"),
)


def test_the_version_is_that_of_the_module_alone() -> None:
    assert "version" in PROJECT["dynamic"]
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == __version__
    assert re.search(rf"^## \[{re.escape(__version__)}\]|0\.1\.0\. It has:$", (ROOT / "CHANGELOG.md").read_text(), re.M)


def test_every_file_names_the_same_repository() -> None:
    for name in WITH_ADDRESS:
        named = set(re.findall(r"https://github\.com/[\w-]+/elastic-launch", (ROOT / name).read_text()))
        assert named == {REPOSITORY}, name


def test_every_old_name_is_in_the_changelog_with_the_new_one() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    for flag in FLAGS:
        if flag.old_name:
            assert f"| `{option(flag.old_name)}` | `{flag.option}` |" in text
        for old in flag.old_variables:
            if not old.startswith("ELASTIC_ELASTIC_"):
                assert f"`{old}`" in text
                assert f"`{flag.variables[0]}`" in text


def test_the_classifiers_allow_no_python_that_the_metadata_refuses() -> None:
    lowest, _, below = PROJECT["requires-python"].removeprefix(">=").partition(",<")
    minors = [line.rpartition(" ")[2] for line in PROJECT["classifiers"] if "Python :: 3." in line]
    assert (minors[0], f"3.{int(minors[-1][2:]) + 1}") == (lowest, below)
