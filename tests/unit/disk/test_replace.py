"""Files that are replaced whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic._disk.replace import replace_file, replacing


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_file_is_replaced_whole_and_leaves_no_other(tmp_path: Path) -> None:
    for data in (b"old", b"new"):
        replace_file(tmp_path / "file", data)
        assert content(tmp_path) == {"file": data}


def test_until_the_end_of_the_block_readers_see_the_old_content(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with replacing(tmp_path / "file") as new:
        new.write_bytes(b"new")
        assert (tmp_path / "file").read_bytes() == b"old"
    assert content(tmp_path) == {"file": b"new"}


def test_an_error_leaves_the_old_content_and_no_other_file(tmp_path: Path) -> None:
    def fail_after(written: bytes) -> None:
        with replacing(tmp_path / "file") as new:
            if written:
                new.write_bytes(written)
            raise KeyboardInterrupt

    (tmp_path / "file").write_bytes(b"old")
    for part in (b"", b"half"):
        with pytest.raises(KeyboardInterrupt):
            fail_after(part)
    assert content(tmp_path) == {"file": b"old"}


def test_a_file_may_be_for_its_owner_alone_and_have_the_longest_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    replace_file(path, b"secret", 0o600)
    assert path.stat().st_mode & 0o777 == 0o600
