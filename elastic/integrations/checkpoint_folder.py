"""A directory in which a framework keeps its checkpoints: each one complete or absent, and fenced by generation.

The framework writes into a staging directory, which is renamed once all files are on the disk. Under elastic-launch
rank 0 of each generation claims the directory (`elastic.train.checkpoint.fence`), and checkpoints that an older
generation publishes later are ignored. All methods are collectives.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

import msgspec

from elastic import environment
from elastic._decode import UNREADABLE
from elastic.errors import CheckpointError
from elastic.train import report
from elastic.train.checkpoint import atomic_files, fence
from elastic.train.comm import byte_collectives
from elastic.train.comm.rank_errors import RankError, decode_errors, encode_error, raise_first
from elastic.train.process_group.topology import Topology, host

META: Final = "elastic.json"
"""The file that marks a checkpoint as published by this module."""
CLAIMS: Final = ".elastic"
"""The directory of the claims. `--checkpoint-dir` may be the same directory, and has its claims elsewhere."""

Result = TypeVar("Result")


class FrameworkCheckpoint(NamedTuple):
    """One checkpoint of a framework: the number of trained steps, and its directory."""

    step: int
    folder: Path


class _Meta(msgspec.Struct, frozen=True, order=True):
    """The content of `META`: the step, and the fence's mark when it was published, "" without a fence."""

    step: int
    mark: str


_decode_meta = msgspec.json.Decoder(_Meta).decode
_decode_newest = msgspec.json.Decoder(tuple[int, str] | None).decode


class CheckpointFolder:
    """The checkpoints of a framework in one directory, as one rank sees and writes them.

    Args:
        folder: The directory of the framework's checkpoints. Every node must be able to read and write it.
        place: The rank and world size. Every rank creates this object at the same point of the script.
        setting: The name of the user's setting for the directory, for error messages: "output_dir".

    Raises:
        CheckpointError: The directory is not writable, or belongs to a later generation; raised on all ranks.
    """

    def __init__(self, folder: str | os.PathLike[str], place: Topology, *, setting: str) -> None:
        self.folder = Path(folder).absolute()
        self._place = place
        self._setting = setting
        own = environment.read(os.environ)
        self._generation = own.generation
        self._mark = os.environ.get("ELASTIC_FENCE") or ""
        self._together("claiming the directory of checkpoints", self._claim)

    def newest(self) -> FrameworkCheckpoint | None:
        """Find the newest valid checkpoint that this module published; the same on all ranks."""
        found = self._together("listing the checkpoints", self._newest)
        message = byte_collectives.broadcast(
            msgspec.json.encode(found) if self._place.rank == 0 else None, 0, self._place.group
        )
        newest = _decode_newest(message)
        return None if newest is None else FrameworkCheckpoint(newest[0], self.folder / newest[1])

    def save(self, name: str, step: int, write: Callable[[Path], None]) -> Path:
        """Let every rank write its files of a checkpoint, and publish them.

        Args:
            name: The name of the checkpoint's directory. An existing one is replaced.
            step: The number of trained steps.
            write: Writes into the staging directory that it is passed; it has that name and is the same on every rank.

        Returns:
            The checkpoint's directory.

        Raises:
            CheckpointError: It could not be written; raised on all ranks. Earlier checkpoints stay intact.
        """
        doing = f"saving {name}"
        staged_name = self._together(doing, lambda: self._stage(name))
        message = byte_collectives.broadcast(
            staged_name.encode() if self._place.rank == 0 and staged_name is not None else None, 0, self._place.group
        )
        parent = self.folder / message.decode()
        staged = parent / name
        try:
            self._require_shared(staged)
            self._together(doing, lambda: write(staged), everywhere=True)
            self._together(doing, lambda: self._publish(staged, step))
        finally:
            if self._place.rank == 0:
                atomic_files.drop(parent)
        return self.folder / name

    def _claim(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self._mark:
            return
        if former := fence.claim(self.folder / CLAIMS, self._mark, self._marks):
            report.log_to_agent(
                f"{self.folder} belonged to another job ({former}); give each job its own {self._setting}",
                warn=True,
            )

    def _marks(self) -> Iterator[tuple[str, str | None]]:
        newest_first = sorted(_checkpoints(self.folder), reverse=True)
        return ((name, meta.mark) for _, name, meta in newest_first)

    def _newest(self) -> tuple[int, str] | None:
        claim = fence.current(self.folder / CLAIMS)
        counting = (
            (step, name)
            for step, name, meta in _checkpoints(self.folder)
            if claim is None or claim.accepts(name, meta.mark)
        )
        return max(counting, default=None)

    def _stage(self, name: str) -> str:
        self._check()
        atomic_files.sweep(self.folder, (".saving-", ".removed-"))
        parent = atomic_files.staging(self.folder, f".saving-g{self._generation}-")
        (parent / name).mkdir()
        return parent.name

    def _require_shared(self, staged: Path) -> None:
        """Raise `CheckpointError` on all ranks if one of them does not see the directory that rank 0 created."""
        sees = b"" if staged.is_dir() else f"{host()}:{self.folder}".encode()
        unseeing = sorted({message.decode() for message in byte_collectives.gather(sees, self._place.group) if message})
        if unseeing:
            raise CheckpointError(
                f"{self.folder} is not shared: what rank 0 writes there is not visible in {', '.join(unseeing)}; use "
                f"an {self._setting} that every node can read and write"
            )

    def _publish(self, staged: Path, step: int) -> None:
        (staged / META).unlink(missing_ok=True)
        atomic_files.write(staged / META, msgspec.json.encode(_Meta(step, self._mark)))
        _sync_all(staged)
        self._check()
        target = self.folder / staged.name
        while not atomic_files.publish(staged, target):
            atomic_files.discard(target)

    def _check(self) -> None:
        if self._mark:
            fence.check(self.folder / CLAIMS, self._mark, self._setting)

    def _together(self, doing: str, work: Callable[[], Result], *, everywhere: bool = False) -> Result | None:
        """Run an action on rank 0, or on every rank; if it fails on one, the same error is raised on all of them."""
        error, result = None, None
        try:
            if everywhere or self._place.rank == 0:
                with atomic_files.as_checkpoint_error(doing, self.folder, self._setting):
                    result = work()
        except CheckpointError as failure:
            error = RankError.of(failure)
        except Exception as failure:  # noqa: BLE001  # All ranks raise it.
            error = RankError(f"{doing} failed on rank {self._place.rank}: {type(failure).__name__}: {failure}", True)
        raise_first(decode_errors(byte_collectives.gather(encode_error(error), self._place.group)))
        return result


def _checkpoints(folder: Path) -> Iterator[tuple[int, str, _Meta]]:
    """Return the published checkpoints of a directory: step, name and metadata."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return
    for path in paths:
        if path.name.startswith("."):
            continue
        try:
            meta = _decode_meta((path / META).read_bytes())
        except (OSError, *UNREADABLE):
            continue  # Not published by this module.
        yield meta.step, path.name, meta


def _sync_all(folder: Path) -> None:
    """Wait until the disk has every file below a directory."""
    for parent, _, files in os.walk(folder):
        for name in files:
            handle = os.open(Path(parent, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        atomic_files.sync_folder(Path(parent))
