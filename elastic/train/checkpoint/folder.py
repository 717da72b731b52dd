"""The checkpoints in one folder, read and written: whole or not there, and fenced by generation."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from elastic._disk.replace import replace_file
from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, fence, manifest
from elastic.train.checkpoint.reader import CheckpointCandidate as CheckpointCandidate
from elastic.train.checkpoint.reader import CheckpointReader

RELISTS_MAX = 5
"""How often `load` lists again because what it was about to read was replaced by newer ones meanwhile."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One checkpoint in memory. Its parts are on the CPU unless `load` was told otherwise."""

    step: int
    generation: int
    folder: Path
    parts: Mapping[str, Any]

    def __getitem__(self, part: str) -> Any:
        """Return one part by the name it was saved under."""
        return self.parts[part]


class Checkpoints(CheckpointReader):
    """The checkpoints in one folder, to be read (see `CheckpointReader`) and written."""

    def save(self, step: int, /, **parts: Any) -> Path | None:
        """Write a checkpoint of `step`; its folder once the disk has it, None on every rank but 0.

        Raises CheckpointFenced when another generation owns the folder, CheckpointError with the mend when the disk is
        full or read-only. The checkpoints that were there before stay as they are. A second save of one step replaces
        the first.
        """
        if self.rank != 0:
            return None
        check_names(step, parts)
        with atomic_files.as_checkpoint_error(f"saving step {step}", self.folder):
            staged = self.stage()
            try:
                return self.publish(staged, step, {name: write(staged, name, part) for name, part in parts.items()})
            finally:
                atomic_files.drop(staged)

    def stage(self) -> Path:
        """Make the folder in which a checkpoint is written before it is published. Raises OSError, CheckpointFenced."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._check()
        return atomic_files.staging(self.folder, f".saving-g{self.generation}-")

    def publish(
        self,
        staged: Path,
        step: int,
        parts: Mapping[str, manifest.PartFile],
        sharded: Mapping[str, Mapping[str, manifest.PartFile]] | None = None,
        world: int = 1,
    ) -> Path:
        """Make what lies in `staged` the checkpoint of `step`, in one rename, and remove what is too old.

        Its files are as `parts` and `sharded` say, and on the disk. Raises OSError, CheckpointFenced.
        """
        meta = manifest.CheckpointMeta(
            step=step,
            generation=self.generation,
            mark=self.mark,
            parts=dict(parts),
            sharded={name: dict(files) for name, files in (sharded or {}).items()},
            world=world,
            at=time.time(),
        )
        atomic_files.write(staged / manifest.META, msgspec.json.format(msgspec.json.encode(meta)))
        self._check()
        target = self.folder / manifest.name(step, self.generation)
        while not atomic_files.publish(staged, target):
            atomic_files.discard(target)  # If we die right here, the checkpoint before this one serves.
        self._check_after(target)
        self.damaged.pop(target.name, None)
        self._report(step)
        self._prune()
        return target

    def load(self, *, map_location: Any = "cpu") -> Loaded | None:
        """Read the replicated parts of the newest whole checkpoint that counts; None when there is none at all.

        One that is damaged is skipped with a line that says what is wrong. If all are, CheckpointDamaged is raised:
        training never starts over in silence. CheckpointFenced: this worker is of an old world. CheckpointError: the
        folder is not the one that the node of rank 0 uses, so that ranks would go on from different steps.
        """
        self.await_mark()
        for _ in range(RELISTS_MAX):
            self.forget_damage()
            candidates = self.candidates()
            for candidate in candidates:
                try:
                    parts = self.read(candidate, map_location=map_location)
                except CheckpointDamaged:
                    if not candidate.folder.exists():
                        break  # Newer ones replaced it meanwhile: list again.
                else:
                    return Loaded(candidate.step, candidate.generation, candidate.folder, parts)
            else:
                self.refuse_to_start_over()
                return None
        raise CheckpointError(f"the checkpoints in {self.folder} are replaced faster than they can be read")

    def _check(self) -> None:
        if self.mark:
            fence.check(self.folder, self.mark)

    def _check_after(self, target: Path) -> None:
        """Tell whether what was just published counts, if the folder was claimed in that moment."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and not claim.accepts(target.name, self.mark):
            fence.check(self.folder, self.mark)

    def _report(self, step: int) -> None:
        """Tell the agent the newest committed step, for the budget of restarts."""
        if self.progress_file is not None:
            try:
                replace_file(self.progress_file, f"{step}\n".encode())
            except OSError as error:
                log.warning("step %d is saved, but the agent is not told: %s", step, error)

    def _prune(self) -> None:
        """Keep the newest `keep` that count and are not known to be damaged; remove what is older, and strays."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and claim.mark != self.mark:
            return  # The folder was claimed in this moment. What is too old is for its new owner to judge.
        count = 0
        for entry in manifest.entries(self.folder):
            if count >= self.keep or _is_stray(entry, claim):
                atomic_files.discard(entry.folder)
            elif entry.name not in self.damaged:
                count += 1
        atomic_files.sweep(self.folder, (".saving-", ".removed-"))


def save(step: int, /, **parts: Any) -> Path | None:
    """Write a checkpoint into the launcher's folder, on rank 0; the other ranks return None at once."""
    return Checkpoints().save(step, **parts)


def load(*, map_location: Any = "cpu") -> Loaded | None:
    """Read the newest whole checkpoint of the launcher's folder; None when there is none."""
    return Checkpoints().load(map_location=map_location)


def check_names(step: int, parts: Iterable[str]) -> None:
    """Raise ValueError unless a step and the names of its parts can be saved."""
    if step < 0:
        raise ValueError(f"a step is 0 or more, not {step}")
    if not all(map(str.isidentifier, parts)):
        raise ValueError(f"parts are named as Python names are, not {', '.join(parts)}")


def write(staged: Path, name: str, tree: Any) -> manifest.PartFile:
    """Write one replicated part into a staged folder. Raises OSError; CheckpointError if it would not be loaded."""
    from elastic.train.checkpoint import replicated_part

    return replicated_part.write(staged / f"{name}.pt", tree)


def _is_stray(entry: manifest.CheckpointEntry, claim: fence.FenceClaim | None) -> bool:
    """Tell whether a checkpoint was written by an older world after `claim`. A damaged one is not told from others."""
    try:
        return claim is not None and not claim.accepts(entry.name, manifest.read_meta(entry).mark)
    except CheckpointDamaged:
        return False
