"""One checkpoint in one directory, written by all ranks together.

They exchange messages over a separate process group:

1. Rank 0 creates the staging directory and broadcasts its name; every rank checks that it sees the directory. This
   detects a directory that is not shared before anything is written.
2. Every rank writes its files; rank 0 also writes the replicated components.
3. Every rank reports its files with their checksums, or its error. Rank 0 checks that it sees all files, writes
   meta.json, publishes the checkpoint with one rename, and reports the result.

A rank that fails reports its error in step 3 instead of leaving, so that all ranks raise it and none waits.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from elastic.errors import CheckpointError, CheckpointFenced
from elastic.train.checkpoint import atomic_files, manifest, replicated_part, sharded_part, shared_folder
from elastic.train.checkpoint.folder import Checkpoints, check_names
from elastic.train.comm import byte_collectives

Trees = Mapping[str, Any]
Files = dict[str, manifest.PartFile]


class _SaveReport(msgspec.Struct, frozen=True):
    """The report of a rank about its part in a step of the save.

    `folder` is the checkpoint directory on `host`; `name` is the directory that rank 0 created in it; `sees`: the rank
    sees the staging directory; `files` are those that it wrote there, the replicated components under "". `first`: the
    error is one of this rank's disk, not one that another rank reported.
    """

    host: str
    folder: str
    name: str = ""
    sees: bool = False
    files: dict[str, Files] = {}
    error: str = ""
    first: bool = False
    fenced: bool = False


_decoder = msgspec.json.Decoder(_SaveReport)


class CollectiveSave:
    """One save by all ranks."""

    def __init__(self, checkpoints: Checkpoints, group: Any, step: int) -> None:
        self.rank, self.world = byte_collectives.rank_and_size(group)
        self.group = group
        self.checkpoints = checkpoints
        self.step = step
        self.doing = f"saving step {step}"

    def save(self, replicated: Callable[[], Trees], parts: Mapping[str, Trees]) -> Path:
        """Save, and return the checkpoint's directory. If one rank raises CheckpointError, all ranks raise it.

        `replicated` returns the replicated components, on rank 0; `parts` are the sharded ones.
        """
        staged: Path | None = None
        try:
            offer = self._together(lambda: self._on_rank_0(self.checkpoints.stage))[0]
            staged = self.checkpoints.folder / offer.name
            looks = self._together(lambda: {"sees": staged.is_dir()})
            if unseeing := [(report.host, report.folder) for report in looks if not report.sees]:
                raise CheckpointError(shared_folder.not_shared(offer.host, Path(offer.folder), unseeing))
            reports = self._together(lambda: {"files": self._write(staged, replicated, parts)})
            published = self._together(lambda: self._on_rank_0(lambda: self._publish(staged, reports)))
            return self.checkpoints.folder / published[0].name
        finally:
            if staged is not None and self.rank == 0:
                atomic_files.drop(staged)

    def _on_rank_0(self, make: Callable[[], Path]) -> dict[str, Any]:
        return {"name": make().name} if self.rank == 0 else {}

    def _write(self, staged: Path, replicated: Callable[[], Trees], parts: Mapping[str, Trees]) -> dict[str, Files]:
        files = {name: sharded_part.write(staged / name, flat, self.group) for name, flat in parts.items()}
        if self.rank == 0:
            trees = replicated()
            check_names(self.step, trees)
            files[""] = replicated_part.write_all(staged, trees)
        return files

    def _publish(self, staged: Path, reports: list[_SaveReport]) -> Path:
        """Check that rank 0 sees the files of all ranks, and publish."""
        parts: dict[str, Files] = {}
        for report in reports:
            for name, files in report.files.items():
                if not name:
                    continue
                if not all(_is_complete(staged / name / file, part) for file, part in files.items()):
                    other = [(report.host, report.folder)]
                    raise CheckpointError(shared_folder.not_shared(reports[0].host, Path(reports[0].folder), other))
                parts.setdefault(name, {}).update(files)
        for name in parts:
            atomic_files.sync_folder(staged / name)
        return self.checkpoints.publish(staged, self.step, reports[0].files[""], parts, self.world)

    def _together(self, work: Callable[[], Mapping[str, Any]]) -> list[_SaveReport]:
        """Do this rank's part of a step, and gather the reports of all ranks. Raises the same error on all of them."""
        result: Mapping[str, Any]
        try:
            with atomic_files.as_checkpoint_error(self.doing, self.checkpoints.folder):
                result = work()
        except CheckpointError as error:
            fenced, first = isinstance(error, CheckpointFenced), isinstance(error.__cause__, OSError)
            result = {"error": str(error), "fenced": fenced, "first": first}
        except Exception as error:  # noqa: BLE001  # All ranks raise it.
            result = {"error": f"{self.doing} failed on rank {self.rank}: {type(error).__name__}: {error}"}
        report = _SaveReport(socket.gethostname(), str(self.checkpoints.folder.absolute()), **result)
        messages = byte_collectives.gather(msgspec.json.encode(report), self.group)
        reports = [_decoder.decode(message) for message in messages]
        failures = sorted((report for report in reports if report.error), key=lambda report: not report.first)
        if failures:
            raise (CheckpointFenced if failures[0].fenced else CheckpointError)(failures[0].error)
        return reports


def _is_complete(path: Path, part: manifest.PartFile) -> bool:
    try:
        return path.stat().st_size == part.size
    except OSError:
        return False
