"""Writes the files that Lightning's ModelCheckpoint asks for: each whole or absent, and by the newest generation only.

Under elastic-launch the agents claim the folder of `--checkpoint_dir` for each generation. Before a file is written,
before it gets its name and before one is removed, that claim is read. A worker of an older generation is refused. One
that is frozen between its last look and its rename, and wakes up in a newer generation, may still publish one file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from elastic._decode import UNREADABLE
from elastic._disk.replace import replace_file
from elastic.train.checkpoint import atomic_files, fence

STEP: Final = "the newest step of elastic.State"
"""What stands for the state in memory where Lightning wants a path."""
PUBLISHED: Final = "lightning.json"
"""The file in the job's folder that lists what was written, for a start without memory."""
LISTED_MAX: Final = 64
"""Files that it lists at most, the newest ones. ModelCheckpoint has removed most of the older ones."""


class Published(msgspec.Struct, frozen=True):
    """A file that training can resume from, and the global step of the last commit before it was written."""

    path: str
    committed: int


_decode = msgspec.json.Decoder(list[Published])


class FencedCheckpointIO(TorchCheckpointIO):
    """Lightning's own file format, in files that are whole or absent, fenced by generation."""

    def __init__(self, folder: str, mark: str, committed: Callable[[], int], newest: Callable[[], dict[str, Any]]):
        """`folder` is the job's, "" without elastic-launch.

        `mark` is its fence's. `committed` gives the global step of the last commit, `newest` the state in memory.
        """
        super().__init__()
        self._folder = Path(folder).absolute() if folder else None
        self._mark = mark
        self._committed = committed
        self._state = newest

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint. Rank 0 calls it.

        Raises `CheckpointFenced` if another generation owns the job's folder, and `CheckpointError` if the disk is full
        or cannot be written. What was there before stays.
        """
        self._check()
        if "://" in str(path) or storage_options is not None:
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        target = Path(path).absolute()
        with atomic_files.as_checkpoint_error(f"saving {target.name}", target.parent, "dirpath"):
            target.parent.mkdir(parents=True, exist_ok=True)
            staged = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
            try:
                with staged.open("xb") as file:
                    torch.save(checkpoint, file)
                    file.flush()
                    os.fsync(file.fileno())
                self._check()
                staged.replace(target)
                atomic_files.sync_folder(target.parent)
            finally:
                staged.unlink(missing_ok=True)
        if "optimizer_states" in checkpoint:  # Training cannot resume from weights alone.
            self._list(Published(str(target), self._committed()))

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """The state in memory for `STEP`, otherwise what the file holds."""
        if path == STEP:
            return self._state()
        loaded: dict[str, Any] = super().load_checkpoint(path, *args, **options)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file; `CheckpointFenced` if another generation owns the job's folder."""
        self._check()
        super().remove_checkpoint(path)

    def published(self) -> Published | None:
        """The newest file that is still there; None without elastic-launch. A collective has to make it common."""
        there = (file for file in self._listed() if os.path.isfile(file.path))
        return max(there, key=lambda file: file.committed, default=None)

    def _check(self) -> None:
        if self._mark and self._folder is not None:
            fence.check(self._folder, self._mark)

    def _listed(self) -> list[Published]:
        if self._folder is None:
            return []
        try:
            return _decode.decode((self._folder / PUBLISHED).read_bytes())
        except (FileNotFoundError, *UNREADABLE):
            return []

    def _list(self, new: Published) -> None:
        if self._folder is None:
            return
        others = [file for file in self._listed() if file.path != new.path]
        with atomic_files.as_checkpoint_error("listing the checkpoints", self._folder):
            replace_file(self._folder / PUBLISHED, msgspec.json.encode([*others, new][-LISTED_MAX:]))
