"""The snapshots of a server on disk, from which it restarts. Each is written atomically.

A snapshot is a checkpoint (see `elastic.train.checkpoint.manifest`) with one component, in the directory of its server.
In its name, the number of the snapshot replaces the step::

    <folder>/server-<index>/step-0000000012.g0/state.pt    the argument of `write`, and the index of the server
                                              /meta.json

If a snapshot is damaged, the previous one is used. Snapshots of earlier versions can still be read, and newer ones
replace them: `snapshot-0000000012/`, whose meta.json has the SHA-256 of state.pt.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, manifest, replicated_part
from elastic.train.checkpoint.folder import Checkpoints

KEEP = 2
"""The number of snapshots that stay: the newest, and one in case it is damaged."""

_EARLIER = re.compile(r"snapshot-([0-9]{10})")

log = logging.getLogger(__name__)


class _EarlierMeta(msgspec.Struct, frozen=True):
    """The meta.json of an earlier version. `written_at` is wall-clock time in seconds."""

    written_at: float
    index: int
    servers: int
    sha256: str


class Snapshots:
    """The snapshots of one server in a directory that all servers share."""

    def __init__(self, folder: Path, index: int, servers: int) -> None:
        """`folder` belongs to all `servers`; this is the server with this `index`."""
        self.folder = folder / f"server-{index}"
        self._owner = [index, servers]
        self._checkpoints = Checkpoints(self.folder, keep=KEEP, rank=0, generation=0, mark="", reports=False)

    def write(self, state: dict[str, Any]) -> None:
        """Write a snapshot, sync it to disk, and remove the oldest.

        Args:
            state: Values by name that `torch.load(weights_only=True)` accepts.

        Raises:
            CheckpointError: The disk is full or read-only; the message has a fix.
        """
        with atomic_files.as_checkpoint_error("writing a snapshot", self.folder):
            number = 1 + max((number for number, _ in self._numbered()), default=0)
            staged = self._checkpoints.stage()
            try:
                parts = replicated_part.write_all(staged, {"state": {**state, "owner": self._owner}})
                self._checkpoints.publish(staged, number, parts)
            finally:
                atomic_files.drop(staged)
            for _, folder in self._numbered()[KEEP:]:  # Snapshots of an earlier version; `publish` removes the others.
                atomic_files.discard(folder)
        log.debug("snapshot %d is written", number)

    def load(self) -> tuple[dict[str, Any], float] | None:
        """Read the newest intact snapshot.

        Returns:
            Its state, and its wall-clock time in seconds. None if there is no snapshot, or the newest one belongs to
            another number of servers.

        Raises:
            CheckpointError: There are snapshots, but the disk fails to read them.
        """
        with atomic_files.as_checkpoint_error("reading a snapshot", self.folder):
            for _, folder in self._numbered():
                try:
                    state, written_at = _read(folder)
                except CheckpointError as error:
                    cause = error.__cause__
                    if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
                        raise cause from None
                    log.warning("%s is damaged: %s; using the previous snapshot", folder, error)
                    continue
                if state["owner"] == self._owner:
                    return state, written_at
                log.warning(
                    "%s belongs to server %d of %d, but this is server %d of %d: not loaded; use load_from= instead",
                    folder,
                    *state["owner"],
                    *self._owner,
                )
                return None
        return None

    def _numbered(self) -> list[tuple[int, Path]]:
        """Return every snapshot with its number, the newest first."""
        if not self.folder.is_dir():
            return []
        earlier = [(int(m[1]), path) for path in self.folder.iterdir() if (m := _EARLIER.fullmatch(path.name))]
        current = [(entry.step, entry.folder) for entry in manifest.entries(self.folder)]
        return sorted(earlier + current, reverse=True)


def _read(folder: Path) -> tuple[dict[str, Any], float]:
    """Return the state of a snapshot, and its wall-clock time. Raises CheckpointError."""
    entry = manifest.entry_of(folder)
    if entry is None:
        return _read_earlier(folder)
    meta = manifest.read_meta(entry)
    if "state" not in meta.parts:
        raise CheckpointDamaged("it has no component 'state'")
    return replicated_part.read(folder / "state.pt", meta.parts["state"], "cpu"), meta.at


def _read_earlier(folder: Path) -> tuple[dict[str, Any], float]:
    try:
        meta = msgspec.json.decode((folder / manifest.META).read_bytes(), type=_EarlierMeta)
        size = (folder / "state.pt").stat().st_size
    except (OSError, *UNREADABLE) as error:
        raise CheckpointDamaged(str(error)) from error
    state = replicated_part.read(folder / "state.pt", manifest.PartFile(size, sha256=meta.sha256), "cpu")
    return {**state, "owner": [meta.index, meta.servers]}, meta.written_at
