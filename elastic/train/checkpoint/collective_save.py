"""One checkpoint in one folder: by rank 0 alone, or by all ranks together.

All ranks together go like this, over a process group of their own, so that they meet nobody else's messages:

1. Rank 0 makes the staging folder and tells its name; every rank looks for it. So a folder that is not shared is found
   before anything is written.
2. Every rank writes its files; rank 0 the replicated parts besides.
3. Every rank says which files it wrote, with their sums, or what went wrong. Rank 0 checks that it sees them all,
   writes meta.json, publishes by one rename, and says how it went.

A rank that fails says so in step 3 instead of leaving: so all learn of it, and nobody waits.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch.distributed as dist

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import atomic_files, manifest, sharded_part, shared_folder
from elastic.train.checkpoint.folder import Checkpoints, check_names, write
from elastic.train.comm import byte_collectives

Trees = Mapping[str, Any]

log = logging.getLogger(__name__)


def save_replicated(checkpoints: Checkpoints, step: int, trees: Trees, also: Any) -> Path:
    """Write a checkpoint of replicated parts, on rank 0; its folder."""
    with atomic_files.as_checkpoint_error(f"saving step {step}", checkpoints.folder):
        staged = checkpoints.stage()
        try:
            return checkpoints.publish(staged, step, _write_all(staged, _with(trees, also)))
        finally:
            _clear(staged)


def _with(trees: Trees, also: Any) -> Trees:
    further = also() if callable(also) else also or {}
    check_names(0, further)
    return {**trees, **further}


def _write_all(staged: Path, trees: Trees) -> dict[str, manifest.PartFile]:
    return {name: write(staged, name, tree) for name, tree in trees.items()}


class _SaveOffer(msgspec.Struct, frozen=True):
    """What rank 0 says before a save (the staging folder's name) and after it (the checkpoint's), or why there is none.

    `folder` is the checkpoint folder on `host`.
    """

    name: str
    host: str
    folder: str
    error: str = ""
    fenced: bool = False


class _SaveReport(msgspec.Struct, frozen=True):
    """What a rank says of the staging folder, and of what it wrote there: part, then file.

    `first` tells an error of this rank's own disk from one that it only heard of.
    """

    host: str
    folder: str
    sees: bool = False
    files: dict[str, dict[str, manifest.PartFile]] = {}
    error: str = ""
    first: bool = False


class CollectiveSave:
    """One save by all ranks."""

    def __init__(self, checkpoints: Checkpoints, group: Any, step: int) -> None:
        alone = sharded_part.is_single_process(group)
        self.rank = 0 if alone else dist.get_rank(group)
        self.world = 1 if alone else dist.get_world_size(group)
        self.group = group
        self.checkpoints = checkpoints
        self.step = step
        self.host = socket.gethostname()
        self.doing = f"saving step {step}"

    def save(self, replicated: Trees, parts: Mapping[str, Trees], also: Any) -> Path:
        """Save; the checkpoint's folder as this rank names it. Raises CheckpointError, on all ranks if on one."""
        staged: Path | None = None
        try:
            offer = self._offer(self._stage)
            staged = self.checkpoints.folder / offer.name
            unseeing = [report for report in self._gather(self._report(sees=staged.is_dir())) if not report.sees]
            if unseeing:
                others = [(report.host, report.folder) for report in unseeing]
                raise CheckpointError(shared_folder.not_shared(offer.host, Path(offer.folder), others))
            reports = self._gather(self._write(staged, replicated, parts, also))
            errors = sorted((report for report in reports if report.error), key=lambda report: not report.first)
            if errors:
                raise CheckpointError(errors[0].error)
            return self.checkpoints.folder / self._offer(lambda: self._publish(staged, reports)).name
        finally:
            if staged is not None and self.rank == 0:
                _clear(staged)

    def _stage(self) -> Path:
        return self.checkpoints.stage()

    def _write(self, staged: Path, replicated: Trees, parts: Mapping[str, Trees], also: Any) -> _SaveReport:
        error, first, files = "", False, {}
        try:
            with atomic_files.as_checkpoint_error(self.doing, self.checkpoints.folder):
                for name, flat in parts.items():
                    files[name] = sharded_part.write(staged / name, flat, self.group)
                if self.rank == 0:
                    files[""] = _write_all(staged, _with(replicated, also))
        except CheckpointError as problem:
            error, first = str(problem), isinstance(problem.__cause__, OSError)
        except Exception as problem:  # noqa: BLE001  # All ranks are told, and raise it.
            error = f"{self.doing} failed on rank {self.rank}: {type(problem).__name__}: {problem}"
        return self._report(files=files, error=error, first=first)

    def _publish(self, staged: Path, reports: list[_SaveReport]) -> Path:
        """Check that the files of all ranks are here, and publish."""
        parts: dict[str, dict[str, manifest.PartFile]] = {}
        for report in reports:
            for name, files in report.files.items():
                if not name:
                    continue
                missing = [file for file, part in files.items() if not _is_there(staged / name / file, part)]
                if missing:
                    other = [(report.host, report.folder)]
                    raise CheckpointError(
                        shared_folder.not_shared(self.host, self.checkpoints.folder.absolute(), other)
                    )
                parts.setdefault(name, {}).update(files)
        for name in parts:
            atomic_files.sync_folder(staged / name)
        return self.checkpoints.publish(staged, self.step, reports[0].files[""], parts, self.world)

    def _offer(self, make: Callable[[], Path]) -> _SaveOffer:
        """Rank 0 makes something and all learn its name, or raise why it could not be made."""
        said = None
        if self.rank == 0:
            name, error, fenced = "", "", False
            try:
                with atomic_files.as_checkpoint_error(self.doing, self.checkpoints.folder):
                    name = make().name
            except CheckpointError as problem:
                error, fenced = str(problem), isinstance(problem, CheckpointFenced)
            except Exception as problem:  # noqa: BLE001  # The others wait for a word.
                error = f"{self.doing} failed: {type(problem).__name__}: {problem}"
            said = _SaveOffer(name, self.host, str(self.checkpoints.folder.absolute()), error, fenced)
        offer = said if self.world == 1 else self._broadcast_offer(said)
        assert offer is not None
        if offer.error:
            raise (CheckpointFenced if offer.fenced else CheckpointError)(offer.error)
        return offer

    def _broadcast_offer(self, said: _SaveOffer | None) -> _SaveOffer:
        first = dist.get_global_rank(self.group, 0) if self.group is not None else 0
        data = None if said is None else msgspec.json.encode(said)
        return msgspec.json.decode(byte_collectives.broadcast(data, first, self.group), type=_SaveOffer)

    def _report(self, **known: Any) -> _SaveReport:
        return _SaveReport(self.host, str(self.checkpoints.folder.absolute()), **known)

    def _gather(self, report: _SaveReport) -> list[_SaveReport]:
        if self.world == 1:
            return [report]
        said = byte_collectives.gather(msgspec.json.encode(report), self.group)
        return [msgspec.json.decode(one, type=_SaveReport) for one in said]


def _is_there(path: Path, part: manifest.PartFile) -> bool:
    try:
        return path.stat().st_size == part.size
    except OSError:
        return False


def _clear(staged: Path) -> None:
    """Remove a staging folder if it can be; otherwise a later save sweeps it."""
    try:
        atomic_files.drop(staged)
    except OSError as error:
        log.warning("%s cannot be removed now: %s", staged, error)
