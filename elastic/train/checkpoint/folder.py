"""The checkpoints in one directory, read and written by one worker: atomic, and fenced by generation."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from elastic import environment
from elastic._disk.replace import replace_file
from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, fence, manifest, replicated_part
from elastic.train.checkpoint.manifest import CheckpointCandidate

if TYPE_CHECKING:
    from elastic.train.statedict.sharded import Template

KEEP = 3
"""The number of checkpoints that stay. Two would be enough if none were ever damaged."""
RELISTS_MAX = 5
"""How often `load` lists again because newer checkpoints replaced the one that it was about to read."""
MARK_WAIT_S = 10.0
"""How long `load` waits for the claim of its generation: node rank 0 writes it while other nodes already start."""
MARK_POLL_S = (0.002, 0.05)
"""Bounds of the poll interval, which doubles each time: usually the claim appears within milliseconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One checkpoint in memory.

    Attributes:
        step: The number of steps that were trained.
        generation: The generation that wrote it; 0 without elastic-launch.
        folder: The directory of the checkpoint.
        parts: The components by name.
    """

    step: int
    generation: int
    folder: Path
    parts: Mapping[str, Any]

    def __getitem__(self, part: str) -> Any:
        """Return the component with this name. Raises `KeyError` if there is none."""
        return self.parts[part]


class Checkpoints:
    """The checkpoints in one directory, as one worker reads and writes them."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP,
        rank: int | None = None,
        generation: int | None = None,
        mark: str | None = None,
        reports: bool = True,
    ) -> None:
        """Take the arguments, and defaults from the environment that elastic-launch sets. Does not access the disk.

        Args:
            folder: The checkpoint directory. Default: ELASTIC_CHECKPOINT_DIR, or `checkpoints`.
            keep: The number of checkpoints that stay, 1 or more; a save removes older ones.
            rank: The rank of this worker; only rank 0 writes. Default: RANK, or 0.
            generation: The generation of this worker, which is part of a checkpoint's name. Default:
                ELASTIC_GENERATION, or 0.
            mark: The fencing token with which this worker may write; "" disables fencing. Default: ELASTIC_FENCE if
                `folder` is that of the launcher; other directories are not fenced, because no agent claims them.
            reports: Report the step of each checkpoint to the agent, for the restart budget.

        Raises:
            ValueError: `keep` is less than 1.
        """
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        environ = os.environ
        given = environ.get("ELASTIC_CHECKPOINT_DIR") or "checkpoints"
        self.folder = Path(folder if folder is not None else given)
        self.keep = keep
        own = environment.read(environ)
        self.rank = rank if rank is not None else max(own.rank, 0)  # A parameter server has rank -1.
        self.generation = generation if generation is not None else own.generation
        ours = self.folder.absolute() == Path(given).absolute()
        self.mark = mark if mark is not None else (environ.get("ELASTIC_FENCE") or "" if ours else "")
        self._progress_file = environ.get("ELASTIC_PROGRESS_FILE") if reports else None
        self.damaged: dict[str, CheckpointDamaged] = {}
        """Checkpoints that could not be read, with their errors."""
        self._warned: set[Path] = set()

    # Reading.

    def candidates(self) -> list[CheckpointCandidate]:
        """List the valid checkpoints. It reads only their meta.json.

        It skips a checkpoint whose meta.json is damaged, and one that an older generation wrote after a newer one had
        started, and logs a warning for each.

        Returns:
            The checkpoints, the newest first.

        Raises:
            CheckpointFenced: A newer generation than that of this worker owns the directory.
            CheckpointError: The directory cannot be read.
        """
        claim = fence.current(self.folder)
        if self.mark and claim is not None and fence.overtaken(self.mark, claim.mark):
            fence.check(self.folder, self.mark)
        with atomic_files.as_checkpoint_error("listing the checkpoints", self.folder):
            entries = manifest.entries(self.folder)
        candidates: list[CheckpointCandidate] = []
        for entry in entries:
            try:
                meta = manifest.read_meta(entry)
            except CheckpointDamaged as error:
                self._skip(entry.folder, error)
                continue
            if claim is None or claim.accepts(entry.name, meta.mark):
                candidates.append(CheckpointCandidate(entry.step, entry.generation, entry.folder, meta))
            else:
                self._warn_once(
                    entry.folder,
                    f"skipping checkpoint {entry.folder}: generation {meta.mark} wrote it after its end",
                )
        return candidates

    def forget_damage(self) -> None:
        """Forget which checkpoints are damaged, so that they are read again."""
        self.damaged.clear()

    def read(self, candidate: CheckpointCandidate, *, map_location: Any = "cpu") -> dict[str, Any]:
        """Read the replicated components of a checkpoint, and verify their checksums.

        Args:
            candidate: One of `candidates()`.
            map_location: The device of the tensors, as for `torch.load`.

        Returns:
            The components by name.

        Raises:
            CheckpointDamaged: A file is missing or its checksum is wrong; a warning is logged.
            CheckpointError: A component has objects that `torch.load(weights_only=True)` rejects.
        """
        try:
            return {
                name: replicated_part.read(candidate.folder / f"{name}.pt", part, map_location)
                for name, part in candidate.meta.parts.items()
            }
        except CheckpointDamaged as error:
            self._skip(candidate.folder, error)
            raise

    def read_sharded(
        self, candidate: CheckpointCandidate, name: str, template: Template, group: Any = None
    ) -> dict[str, Any]:
        """Read a sharded component, saved at any world size. A collective: all ranks must see the directory.

        Args:
            candidate: One of `candidates()`.
            name: The name of the component.
            template: Returns the tree to fill, given the saved tensors. Its keys select what is read; its tensors,
                including DTensors, are filled in place.
            group: A gloo process group of all ranks that call this; None: the default group.

        Returns:
            The tree that `template` returned, filled.

        Raises:
            CheckpointDamaged: A file is missing or its checksum is wrong. One rank verifies each file.
            CheckpointError: The component does not exist, or it does not fit the template. All ranks raise the same.
        """
        from elastic.train.checkpoint import sharded_part

        if name not in candidate.meta.sharded:
            raise CheckpointError(
                f"checkpoint {candidate.folder} has no sharded component {name!r}; "
                f"it has {', '.join(map(repr, candidate.meta.sharded)) or 'none'}"
            )
        try:
            return sharded_part.read(candidate.folder / name, candidate.meta.sharded[name], template, group)
        except CheckpointDamaged as error:
            self._skip(candidate.folder, error)
            raise

    def verify(self, candidate: CheckpointCandidate) -> None:
        """Verify all files of a checkpoint.

        Args:
            candidate: One of `candidates()`.

        Raises:
            CheckpointDamaged: The size or checksum of a file differs from meta.json.
        """
        for file, part in candidate.meta.files.items():
            replicated_part.verify(candidate.folder / file, part)

    def refuse_to_start_over(self) -> None:
        """Raise CheckpointDamaged if there are checkpoints, but none could be read."""
        if self.damaged:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.damaged.items())
            raise CheckpointDamaged(
                f"no checkpoint in {self.folder} can be read ({reasons}); "
                "restore one, or remove them all to start from scratch"
            )

    def await_mark(self) -> None:
        """Wait up to `MARK_WAIT_S` until this worker's generation owns the directory; returns at once without fencing.

        Raises CheckpointFenced if a newer generation owns it, and CheckpointError if the claim does not appear: the
        launcher could not write there, or (on other ranks) the directory is not that of rank 0.
        """
        if not self.mark:
            return
        deadline = time.monotonic() + MARK_WAIT_S
        pause_s, longest_s = MARK_POLL_S
        while True:
            claim = fence.current(self.folder)
            if claim is not None and claim.mark == self.mark:
                return
            if claim is not None and fence.overtaken(self.mark, claim.mark):
                fence.check(self.folder, self.mark)
            if time.monotonic() > deadline:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, longest_s)
        if claim is not None and self.mark.rpartition("/")[0] in claim.incarnations[:-1]:
            fence.check(self.folder, self.mark)  # Another job has claimed it: this message is clearer.
        owner = "no generation" if claim is None else f"generation {claim.mark}"
        if self.rank == 0:
            raise CheckpointError(
                f"{self.folder.absolute()} belongs to {owner} instead of {self.mark}: "
                "the launcher could not write there; its log says why"
            )
        raise CheckpointError(
            f"{self.folder.absolute()} on {socket.gethostname()} belongs to {owner} instead of {self.mark}, as that of "
            "rank 0 does: the directory is not shared; --checkpoint-dir must be readable on every node"
        )

    def load(self, *, map_location: Any = "cpu") -> Loaded | None:
        """Read the newest valid checkpoint of this directory; arguments and errors are those of the function `load`."""
        self.await_mark()
        for _ in range(RELISTS_MAX):
            self.forget_damage()
            candidates = self.candidates()
            for candidate in candidates:
                try:
                    parts = self.read(candidate, map_location=map_location)
                except CheckpointDamaged:
                    if not candidate.folder.exists():
                        break  # Newer checkpoints replaced it meanwhile: list again.
                else:
                    return Loaded(candidate.step, candidate.generation, candidate.folder, parts)
            else:
                self.refuse_to_start_over()
                return None
        raise CheckpointError(f"the checkpoints in {self.folder} are being replaced faster than they can be read")

    # Writing.

    def save(self, step: int, /, **parts: Any) -> Path | None:
        """Write a checkpoint into this directory; arguments, result and errors are those of the function `save`."""
        if self.rank != 0:
            return None
        check_names(step, parts)
        with atomic_files.as_checkpoint_error(f"saving step {step}", self.folder):
            staged = self.stage()
            try:
                return self.publish(staged, step, replicated_part.write_all(staged, parts))
            finally:
                atomic_files.drop(staged)

    def stage(self) -> Path:
        """Create the staging directory of a checkpoint. Raises OSError, CheckpointFenced."""
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
        """Publish the staging directory as the checkpoint of `step`, with one rename, and remove old checkpoints.

        `parts` and `sharded` describe its files, which are synced to disk. Raises OSError, CheckpointFenced.
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
            atomic_files.discard(target)  # After a crash here, the previous checkpoint remains.
        self._check_after(target)
        self.damaged.pop(target.name, None)
        self._report(step)
        self._prune()
        return target

    def _check(self) -> None:
        if self.mark:
            fence.check(self.folder, self.mark)

    def _check_after(self, target: Path) -> None:
        """Raise CheckpointFenced if a claim during the rename makes the published checkpoint invalid."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and not claim.accepts(target.name, self.mark):
            fence.check(self.folder, self.mark)

    def _report(self, step: int) -> None:
        """Report the newest committed step to the agent, for the restart budget."""
        if self._progress_file:
            try:
                replace_file(Path(self._progress_file), f"{step}\n".encode())
            except OSError as error:
                log.warning("saved step %d, but cannot report it to the agent: %s", step, error)

    def _prune(self) -> None:
        """Keep the newest `keep` valid checkpoints that are not known to be damaged; remove older and stray ones."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and claim.mark != self.mark:
            return  # Another generation has just claimed the directory, and decides what is too old.
        count = 0
        for entry in manifest.entries(self.folder):
            if count >= self.keep or _is_stray(entry, claim):
                atomic_files.discard(entry.folder)
            elif entry.name not in self.damaged:
                count += 1
        atomic_files.sweep(self.folder, (".saving-", ".removed-"))

    def _skip(self, folder: Path, error: CheckpointDamaged) -> None:
        if not folder.exists():
            return  # Newer checkpoints replaced it meanwhile.
        self.damaged[folder.name] = error
        self._warn_once(folder, f"skipping checkpoint {folder}: {error}")

    def _warn_once(self, folder: Path, line: str) -> None:
        if folder not in self._warned:
            self._warned.add(folder)
            log.warning("%s", line)


def save(step: int, /, **parts: Any) -> Path | None:
    """Write a checkpoint into the job's checkpoint directory, on rank 0; the other ranks return immediately.

    If it fails, earlier checkpoints are unchanged. A second save of the same step replaces the first.

    Args:
        step: The number of steps that were trained, 0 or more.
        **parts: The components by name: anything that `torch.load(weights_only=True)` accepts.

    Returns:
        The directory of the checkpoint, synced to disk; None on every rank except 0.

    Raises:
        CheckpointFenced: Another generation owns the directory.
        CheckpointError: It cannot be written, with a fix in the message; or a component could not be loaded.
        ValueError: The step is negative, or the name of a component is not an identifier.
    """
    return Checkpoints().save(step, **parts)


def load(*, map_location: Any = "cpu") -> Loaded | None:
    """Read the newest valid checkpoint of the job's checkpoint directory, on any rank.

    It skips damaged checkpoints, with a warning in the log, and does not read sharded components.

    Args:
        map_location: The device of the tensors, as for `torch.load`.

    Returns:
        The checkpoint in memory, None if there is none.

    Raises:
        CheckpointDamaged: There are checkpoints, but all are damaged. Training never silently starts from scratch.
        CheckpointFenced: A newer generation than that of this worker owns the directory.
        CheckpointError: The directory is not that of rank 0, so that ranks would resume from different steps; or it
            cannot be read.
    """
    return Checkpoints().load(map_location=map_location)


def check_names(step: int, parts: Iterable[str]) -> None:
    """Raise ValueError for a negative step, or a component name that is not an identifier."""
    if step < 0:
        raise ValueError(f"step is {step}; it must be 0 or more")
    if not all(map(str.isidentifier, parts)):
        raise ValueError(f"component names must be valid Python names: {', '.join(parts)}")


def _is_stray(entry: manifest.CheckpointEntry, claim: fence.FenceClaim | None) -> bool:
    """Return whether an older generation wrote a checkpoint after `claim`. False for a damaged one."""
    try:
        return claim is not None and not claim.accepts(entry.name, manifest.read_meta(entry).mark)
    except CheckpointDamaged:
        return False
