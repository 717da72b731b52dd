"""Writes the files of Lightning's ModelCheckpoint: each complete or absent, and only from the newest generation.

Under elastic-launch the agents claim the directory of `--checkpoint-dir` for each generation. The claim is read before
a file is written, renamed to its final name, or removed; a worker of an older generation is refused. A worker that is
suspended between its last read and its rename, and resumes in a newer generation, can still publish one file.
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
"""The value that represents the state in memory where Lightning expects a path."""
PUBLISHED: Final = "lightning.json"
"""The file in the job's directory that lists the written files, for a start without a state in memory."""
LISTED_MAX: Final = 64
"""The largest number of files that it lists; ModelCheckpoint has removed most of the older ones."""


class Published(msgspec.Struct, frozen=True):
    """A file that training can resume from, and the global step of the last commit before it was written."""

    path: str
    committed: int


_decode = msgspec.json.Decoder(list[Published])


class FencedCheckpointIO(TorchCheckpointIO):
    """Lightning's file format, in files that are complete or absent, fenced by generation."""

    def __init__(self, folder: str, mark: str, committed: Callable[[], int], newest: Callable[[], dict[str, Any]]):
        """`directory` is the job's directory, "" without elastic-launch, and `mark` the mark of its fence.

        `committed` returns the global step of the last commit, `newest` the state in memory.
        """
        super().__init__()
        self._folder = Path(folder).absolute() if folder else None
        self._mark = mark
        self._committed = committed
        self._state = newest

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Write a checkpoint. Rank 0 calls it.

        Raises `CheckpointFenced` if another generation owns the job's directory, and `CheckpointError` if the disk is
        full or not writable. An earlier file stays intact.
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
        """Return the state in memory for `STEP`, and the content of the file for any other path."""
        if path == STEP:
            return self._state()
        loaded: dict[str, Any] = super().load_checkpoint(path, *args, **options)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file. Raises `CheckpointFenced` if another generation owns the job's directory."""
        self._check()
        super().remove_checkpoint(path)

    def published(self) -> Published | None:
        """Return the newest file that still exists; None without elastic-launch. The ranks have to agree on it."""
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
