"""A file that several agents append to, and its bound."""

from __future__ import annotations

from pathlib import Path

from launcher.rotation import Rotated

LINE = b"0123456789"


def both(folder: Path) -> tuple[Path, Path]:
    return folder / "launcher.log", folder / "launcher.1.log"


def test_a_full_file_becomes_the_one_before_and_two_hold_no_more_than_their_bound(tmp_path: Path) -> None:
    newest, full = both(tmp_path)
    file = Rotated(newest, full, bytes_max=30)
    for _ in range(100):
        assert file.append(LINE)
    assert len(newest.read_bytes()) + len(full.read_bytes()) <= 2 * (30 + len(LINE))
    assert full.read_bytes() == 4 * LINE


def test_of_two_agents_that_find_it_full_one_renames_it(tmp_path: Path) -> None:
    newest, full = both(tmp_path)
    files = [Rotated(newest, full, bytes_max=15) for _ in range(2)]
    for number in range(4):
        files[number % 2].append(LINE)
    assert (newest.read_bytes(), full.read_bytes()) == (2 * LINE, 2 * LINE)


def test_nothing_is_held_open_between_two_lines(tmp_path: Path) -> None:
    newest, full = both(tmp_path)
    file = Rotated(newest, full, bytes_max=30)
    file.append(LINE)
    newest.unlink()
    file.append(LINE)
    assert newest.read_bytes() == LINE
