"""What a crash of the machine cannot take: everything is on the disk before it gets the name by which it is found."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.train.checkpoint import Checkpoints, fence
from elastic.train.checkpoint.async_saver import AsyncSaver
from elastic.train.restore.restore_step import RECORD, rollback

What = int | frozenset[str]


class Disk:
    """What the disk has for certain: of each file its size when it was last synced, of each folder its names."""

    def __init__(self) -> None:
        self.has: dict[Path, What] = {}
        self.named: list[Path] = []
        self.lost: list[Path] = []
        """What was not on the disk when the folder above it got its name."""
        self._sync, self._rename = os.fsync, os.rename

    def fsync(self, handle: int) -> None:
        self._sync(handle)
        path = Path(os.readlink(f"/proc/self/fd/{handle}"))
        self.has[path] = now(path)

    def rename(self, source: Any, target: Any, **where: Any) -> None:
        staged = Path(source)
        if not Path(target).name.startswith("."):
            self.lost += [path for path in (staged, *staged.rglob("*")) if self.has.get(path) != now(path)]
            self.named.append(Path(target))
        self._rename(source, target, **where)
        if staged in self.has:  # A file; torch gives one its name in this way.
            self.has[Path(target)] = self.has.pop(staged)


def now(path: Path) -> What:
    info = path.stat()
    return frozenset(os.listdir(path)) if stat.S_ISDIR(info.st_mode) else info.st_size


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(os, "fsync", made.fsync)
    monkeypatch.setattr(os, "rename", made.rename)
    return made


def save(folder: Path, way: str, mark: str = "") -> None:
    checkpoints = Checkpoints(folder, rank=0, generation=7, mark=mark)
    weights = {"w": torch.ones(1000)}
    if way == "plain":
        checkpoints.save(5, model=weights, values={"step": 5})
        return
    saver = AsyncSaver(checkpoints)
    saver.start(5, *([{"model": weights}] if way == "background" else [{"values": {"step": 5}}, {"model": weights}]))
    saver.wait()


@pytest.mark.parametrize("way", ["plain", "background", "sharded"])
def test_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_its_name_before_the_save_is_over(
    tmp_path: Path, disk: Disk, way: str
) -> None:
    save(tmp_path, way)
    assert disk.named == [tmp_path / "step-0000000005.g7"]
    assert disk.lost == []
    names = disk.has[tmp_path]
    assert isinstance(names, frozenset)
    assert "step-0000000005.g7" in names


def test_so_is_a_claim_of_the_folder(tmp_path: Path, disk: Disk) -> None:
    fence.claim(tmp_path, "abc/7")
    assert disk.named == [tmp_path / "fence" / "0000000001"]
    assert disk.lost == []
    names = disk.has[tmp_path / "fence"]
    assert isinstance(names, frozenset)
    assert "0000000001" in names


def test_so_are_the_new_names_of_what_restore_step_sets_aside(tmp_path: Path, disk: Disk) -> None:
    for step in (5, 6):
        Checkpoints(tmp_path, rank=0, generation=7, mark="").save(step, values=step)
    rollback(Checkpoints(tmp_path, rank=0, generation=8, mark=""), 5, "abc")
    names = disk.has[tmp_path]
    assert isinstance(names, frozenset)
    assert names == {"step-0000000005.g7", "aside-step-0000000006.g7", RECORD}
