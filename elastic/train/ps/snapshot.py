"""What a server keeps on disk so that it can come back: the newest snapshots, each whole or not there.

    <folder>/server-<index>/snapshot-0000000012/state.pt    all values, of what `torch.load(weights_only=True)` takes
                                               /meta.json   when, of how many servers, and the checksum of state.pt

A snapshot that is damaged is passed over for the one before it.
"""

from __future__ import annotations

import hashlib
import io
import logging
import pickle
import re
from pathlib import Path
from typing import Any

import msgspec
import torch

from elastic._decode import UNREADABLE
from elastic.errors import CheckpointDamaged
from elastic.train.checkpoint import atomic_files

KEEP = 2
"""Snapshots that stay: the newest, and one for when that is damaged."""

_NAME = re.compile(r"snapshot-([0-9]{10})")
_STAGED = ".saving-"

log = logging.getLogger(__name__)


class SnapshotMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot says about itself. `written_at` is a wall clock's time."""

    written_at: float
    index: int
    servers: int
    sha256: str


class Snapshots:
    """The snapshots of one server in a folder that all servers share."""

    def __init__(self, folder: Path, index: int, servers: int) -> None:
        """Touches no disk."""
        self.folder = folder / f"server-{index}"
        self._index = index
        self._servers = servers

    def write(self, state: dict[str, Any], now: float) -> Path:
        """Write a snapshot, and remove the oldest. CheckpointError says what mends a full or read-only disk."""
        with atomic_files.as_checkpoint_error("writing a snapshot", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            data = io.BytesIO()
            torch.save(state, data)
            raw = data.getvalue()
            meta = SnapshotMeta(
                written_at=now, index=self._index, servers=self._servers, sha256=hashlib.sha256(raw).hexdigest()
            )
            staged = atomic_files.staging(self.folder, _STAGED)
            try:
                atomic_files.write(staged / "state.pt", raw)
                atomic_files.write(staged / "meta.json", msgspec.json.encode(meta))
                number = max(self._numbers(), default=0) + 1
                while not atomic_files.publish(staged, target := self._path(number)):
                    number += 1
            finally:
                atomic_files.drop(staged)
            for old in sorted(self._numbers())[:-KEEP]:
                atomic_files.discard(self._path(old))
            atomic_files.sweep(self.folder, (_STAGED, ".removed-"), now)
        log.debug("%s is written", target.name.replace("-", " "))
        return target

    def load(self) -> tuple[dict[str, Any], SnapshotMeta] | None:
        """The newest snapshot that is whole; None if there is none, or it is of another number of servers."""
        with atomic_files.as_checkpoint_error("reading a snapshot", self.folder):
            for number in sorted(self._numbers(), reverse=True):
                try:
                    state, meta = self._read(self._path(number))
                except CheckpointDamaged as error:
                    log.warning("%s; the one before it is taken", error)
                    continue
                if (meta.servers, meta.index) != (self._servers, self._index):
                    log.warning(
                        "%s is of server %d of %d, this is server %d of %d: it is not loaded; use load_from= instead",
                        self._path(number),
                        meta.index,
                        meta.servers,
                        self._index,
                        self._servers,
                    )
                    return None
                return state, meta
        return None

    def _path(self, number: int) -> Path:
        return self.folder / f"snapshot-{number:010}"

    def _numbers(self) -> list[int]:
        if not self.folder.is_dir():
            return []
        return [int(found[1]) for path in self.folder.iterdir() if (found := _NAME.fullmatch(path.name))]

    @staticmethod
    def _read(path: Path) -> tuple[dict[str, Any], SnapshotMeta]:
        try:
            meta = msgspec.json.decode((path / "meta.json").read_bytes(), type=SnapshotMeta)
            raw = (path / "state.pt").read_bytes()
        except (FileNotFoundError, *UNREADABLE) as error:
            raise CheckpointDamaged(f"{path} is damaged: {error}") from error
        if hashlib.sha256(raw).hexdigest() != meta.sha256:
            raise CheckpointDamaged(f"{path} is damaged: the checksum of state.pt is wrong")
        try:
            state = torch.load(io.BytesIO(raw), weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
            raise CheckpointDamaged(f"{path} is damaged: {str(error).partition(chr(10))[0]}") from error
        if not isinstance(state, dict):
            raise CheckpointDamaged(f"{path} is damaged: state.pt has no names")
        return state, meta
