"""Which releases of etcd are safe."""

from __future__ import annotations

import pytest

from elastic.store.etcd_releases import SAFE, is_safe, numbers, safe_ones


@pytest.mark.parametrize("line", SAFE)
def test_a_line_is_safe_from_the_patch_of_the_table_on(line: tuple[int, int]) -> None:
    major, minor = line
    assert is_safe(f"{major}.{minor}.{SAFE[line]}")
    assert is_safe(f"{major}.{minor}.{SAFE[line] + 1}")
    assert not is_safe(f"{major}.{minor}.{SAFE[line] - 1}")


@pytest.mark.parametrize("version", ["2.3.8", "3.3.27", "3.4.23", "3.4.45", "3.4.99", "3.5.1"])
def test_lines_that_ended_before_the_fixes_are_not_safe(version: str) -> None:
    assert not is_safe(version)


@pytest.mark.parametrize("version", ["3.8.0", "3.10.0", "4.0.0"])
def test_lines_that_began_after_the_fixes_are_safe(version: str) -> None:
    assert is_safe(version)


@pytest.mark.parametrize(
    "version", ["", "newest", "3.8", "3.8.0-alpha.0", "3.6.14+dirty", "3.6.14\n", "v3.6.14", "3.6.x"]
)
def test_what_is_no_release_is_not_safe(version: str) -> None:
    assert not is_safe(version)


def test_the_numbers_of_a_version_are_compared_as_numbers() -> None:
    assert numbers("3.10.2-rc.1") == (3, 10, 2)
    assert numbers("3.4") < (3, 4, 0) < numbers("3.10.0")


def test_the_safe_releases_are_named_from_the_newest_on() -> None:
    assert safe_ones() == "3.7.1, 3.6.14, 3.5.33"
