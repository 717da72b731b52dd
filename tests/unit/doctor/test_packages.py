"""Other packages named `elastic` or `launcher`: which are found, and what the doctor reports."""

from __future__ import annotations

from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from launcher.doctor.packages import OtherPackage, other_packages, packages_check
from launcher.system.checks import CheckLevel, lines

OURS = Path("/venv/lib/python3.12/site-packages")
APPS = Path("/srv/apps")
LATER = Path("/opt/later")
PATH = (APPS, OURS, LATER)


def distribution(folder: Path, name: str = "elastic", **files: str) -> PathDistribution:
    """A distribution of version 0.9 whose metadata has these files, without a suffix in their names."""
    info = folder / f"{name}-0.9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.9\n")
    for file, text in files.items():
        (info / {"top_level": "top_level.txt"}.get(file, file)).write_text(text)
    return PathDistribution(info)


# What the doctor reports


def test_no_other_package_is_one_line_with_the_folder_of_ours() -> None:
    assert lines(packages_check(OURS, [], PATH)) == [
        f"ok    packages: elastic and launcher are those of elastic-launch, in {OURS}"
    ]


def test_a_distribution_in_the_folder_of_ours_fails_with_both_commands_that_repair_it() -> None:
    assert lines(packages_check(OURS, [OtherPackage("elastic", OURS, "elastic", "0.9")], PATH)) == [
        f"fail  packages: the distribution elastic 0.9 also installs a package elastic, in {OURS}, over that of "
        "elastic-launch; pip uninstall elastic and pip install --force-reinstall elastic-launch, or install "
        "elastic-launch in a separate environment"
    ]


def test_a_distribution_in_a_later_folder_warns_with_its_name() -> None:
    assert lines(packages_check(OURS, [OtherPackage("launcher", LATER, "launcher", "2.1")], PATH)) == [
        f"warn  packages: the distribution launcher 2.1 also installs a package launcher, in {LATER}; "
        "pip uninstall launcher, or install elastic-launch in a separate environment"
    ]


def test_a_package_that_no_distribution_installed_is_named_with_its_folder() -> None:
    assert lines(packages_check(OURS, [OtherPackage("elastic", APPS)], PATH)) == [
        f"fail  packages: {APPS} has another package elastic, which shadows that of elastic-launch; "
        f"rename {APPS}/elastic, or remove {APPS} from PYTHONPATH"
    ]


@pytest.mark.parametrize(
    ("folder", "level"),
    [(OURS, CheckLevel.FAIL), (APPS, CheckLevel.FAIL), (LATER, CheckLevel.WARN), (Path("/not/on"), CheckLevel.WARN)],
)
def test_what_python_imports_in_place_of_ours_fails(folder: Path, level: CheckLevel) -> None:
    assert packages_check(OURS, [OtherPackage("elastic", folder, "elastic", "0.9")], PATH).level is level


def test_several_are_one_check() -> None:
    others = [OtherPackage("elastic", LATER, "elastic", "0.9"), OtherPackage("launcher", LATER, "launcher", "2.1")]
    check = packages_check(OURS, others, PATH)
    assert ("elastic 0.9" in check.text, "launcher 2.1" in check.text, check.details) == (True, True, ())


def test_a_checkout_is_not_to_be_renamed() -> None:
    assert lines(packages_check(OURS, [OtherPackage("elastic", LATER, checkout=True)], PATH)) == [
        f"warn  packages: {LATER} is a checkout of elastic-launch: scripts that start there import its elastic; "
        "start them from another directory, or install the checkout with pip install -e"
    ]


# Which packages are found


@pytest.mark.parametrize(
    "files",
    [
        {"top_level": "elastic\n"},
        {"RECORD": "elastic/__init__.py,,\nelastic-0.9.dist-info/METADATA,,\n"},
        {"RECORD": "elastic.py,,\n", "top_level": "elastic\n"},
    ],
)
def test_a_distribution_lists_its_packages_in_its_record_or_in_top_level(tmp_path: Path, files: dict[str, str]) -> None:
    for file in ("elastic/__init__.py", "elastic.py"):  # Python 3.12 and later list no file that is not there.
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).touch()
    others = other_packages([distribution(tmp_path, **files)], PATH, APPS, OURS)
    assert others == [OtherPackage("elastic", tmp_path, "elastic", "0.9")]


def test_our_own_distribution_and_those_of_other_packages_are_not_found(tmp_path: Path) -> None:
    ours = distribution(tmp_path, "elastic_launch", top_level="elastic\nlauncher\n")
    other = distribution(tmp_path, "elasticsearch", top_level="elasticsearch\n", RECORD="bin/elastic.pth,,\n")
    assert other_packages([ours, other], PATH, APPS, OURS) == []


def test_damaged_metadata_is_skipped(tmp_path: Path) -> None:
    nameless = distribution(tmp_path, top_level="elastic\n")
    (tmp_path / "elastic-0.9.dist-info" / "METADATA").write_bytes(b"")
    unreadable = distribution(tmp_path, "launcher", top_level="launcher\n")
    (tmp_path / "launcher-0.9.dist-info" / "METADATA").write_bytes(b"Name: launcher\xff\n")
    assert other_packages([nameless, unreadable], PATH, APPS, OURS) == []


def test_a_folder_that_comes_before_ours_shadows_it_and_a_later_one_does_not(tmp_path: Path) -> None:
    first, own, later = (tmp_path / name for name in ("first", "own", "later"))
    for folder in (first, own, later):
        (folder / "elastic").mkdir(parents=True)
        (folder / "elastic" / "__init__.py").touch()
    assert other_packages([], (first, own, later), own, own) == [OtherPackage("elastic", first)]


def test_a_module_in_the_working_folder_shadows_ours_in_a_script_there(tmp_path: Path) -> None:
    (tmp_path / "elastic.py").touch()
    (tmp_path / "launcher.py").touch()  # Scripts do not import ours.
    assert other_packages([], PATH, tmp_path, OURS) == [OtherPackage("elastic", tmp_path)]


def test_a_folder_of_a_distribution_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "elastic.py").touch()
    others = other_packages([distribution(tmp_path, top_level="elastic")], (tmp_path, OURS), APPS, OURS)
    assert others == [OtherPackage("elastic", tmp_path, "elastic", "0.9")]


@pytest.mark.parametrize(("project", "checkout"), [("elastic-launch", True), ("elastic", False)])
def test_a_checkout_is_recognized_by_its_pyproject(tmp_path: Path, project: str, checkout: bool) -> None:
    (tmp_path / "elastic.py").touch()
    (tmp_path / "pyproject.toml").write_text(f'[project]\nname = "{project}"\n')
    assert other_packages([], PATH, tmp_path, OURS) == [OtherPackage("elastic", tmp_path, checkout=checkout)]
