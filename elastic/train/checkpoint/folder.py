"""The checkpoints in one folder, read and written by one worker: whole or not there, and fenced by generation."""

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
"""Checkpoints that stay. Two would do if none were ever damaged."""
RELISTS_MAX = 5
"""How often `load` lists again because what it was about to read was replaced by newer ones meanwhile."""
MARK_WAIT_S = 10.0
"""How long `load` waits for its generation's mark: the agent of M_id 0 writes it while other nodes already start."""
MARK_POLL_S = (0.002, 0.05)
"""Each look is twice as long after the one before, within these bounds: mostly the mark comes within milliseconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Loaded:
    """One checkpoint in memory: its step, its generation (0 without elastic-launch), its folder and its parts."""

    step: int
    generation: int
    folder: Path
    parts: Mapping[str, Any]

    def __getitem__(self, part: str) -> Any:
        """The part that was saved under this name. `KeyError` if there is none."""
        return self.parts[part]


class Checkpoints:
    """The checkpoints in one folder, as one worker sees and writes them."""

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
        """Read what is not given from the environment that elastic-launch sets. Touches no disk.

        Args:
            folder: Where the checkpoints lie; ELASTIC_CHECKPOINT_DIR, or `checkpoints`.
            keep: How many checkpoints stay, at least 1; the older ones are removed after a save.
            rank: The rank of this worker, of which only 0 writes; RANK, or 0.
            generation: The generation of this worker, part of the name of what it saves; ELASTIC_GENERATION, or 0.
            mark: What the fence must say for this worker to write; "" switches fencing off. ELASTIC_FENCE if `folder`
                is the launcher's own. A folder that only the script knows is not fenced: nobody claims it.
            reports: Whether the agent gets the step of each checkpoint, for the budget of restarts.

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
        self.rank = rank if rank is not None else max(own.rank, 0)  # A parameter server has none.
        self.generation = generation if generation is not None else own.generation
        ours = self.folder.absolute() == Path(given).absolute()
        self.mark = mark if mark is not None else (environ.get("ELASTIC_FENCE") or "" if ours else "")
        self._progress_file = environ.get("ELASTIC_PROGRESS_FILE") if reports else None
        self.damaged: dict[str, CheckpointDamaged] = {}
        """Checkpoints that could not be read, and why."""
        self._said: set[Path] = set()

    # Reading.

    def candidates(self) -> list[CheckpointCandidate]:
        """List the checkpoints that count. Nothing but their meta.json is read.

        A checkpoint whose meta.json is damaged is left out, with a line in the log that says what is wrong, and so is
        one that an older generation wrote after a newer one had begun.

        Returns:
            The checkpoints, the newest first.

        Raises:
            CheckpointFenced: This worker is itself of an older generation.
            CheckpointError: The folder cannot be read.
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
                self._say_once(
                    entry.folder,
                    f"checkpoint {entry.folder} is skipped: generation {meta.mark} wrote it when it was over",
                )
        return candidates

    def forget_damage(self) -> None:
        """Look at every checkpoint as if for the first time."""
        self.damaged.clear()

    def read(self, candidate: CheckpointCandidate, *, map_location: Any = "cpu") -> dict[str, Any]:
        """Read the replicated parts of a checkpoint, each verified while it is read.

        Args:
            candidate: One of `candidates()`.
            map_location: Where tensors go, as for `torch.load`.

        Returns:
            The parts by name.

        Raises:
            CheckpointDamaged: A file is missing or its checksum is wrong. A line in the log says so.
            CheckpointError: A part holds what `torch.load(weights_only=True)` refuses.
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
        """Read a sharded part, whatever world size wrote it. A collective: all ranks must see the folder.

        Args:
            candidate: One of `candidates()`.
            name: The part.
            template: Makes what is read into from what was saved. Its keys say what is read; its tensors, DTensors and
                others, are filled in place.
            group: A process group of gloo's with all ranks that call this; None is the default one.

        Returns:
            What `template` made, filled.

        Raises:
            CheckpointDamaged: A file is missing or its checksum is wrong. Each file is verified by one of the ranks.
            CheckpointError: There is no such part, or it does not fit the template. All ranks raise the same.
        """
        from elastic.train.checkpoint import sharded_part

        if name not in candidate.meta.sharded:
            raise CheckpointError(
                f"checkpoint {candidate.folder} has no sharded part {name!r}; "
                f"it has {', '.join(map(repr, candidate.meta.sharded)) or 'none'}"
            )
        try:
            return sharded_part.read(candidate.folder / name, candidate.meta.sharded[name], template, group)
        except CheckpointDamaged as error:
            self._skip(candidate.folder, error)
            raise

    def verify(self, candidate: CheckpointCandidate) -> None:
        """Read all files of a checkpoint once.

        Raises:
            CheckpointDamaged: A file is not what its meta.json says.
        """
        for file, part in candidate.meta.files.items():
            replicated_part.verify(candidate.folder / file, part)

    def refuse_to_start_over(self) -> None:
        """Raise CheckpointDamaged if there were checkpoints and none could be read."""
        if self.damaged:
            reasons = "; ".join(f"{name}: {why}" for name, why in self.damaged.items())
            raise CheckpointDamaged(
                f"no checkpoint in {self.folder} can be read ({reasons}); "
                "bring one back, or remove them all to start over"
            )

    def await_mark(self) -> None:
        """Wait until this worker's generation owns the folder; not at all where nothing is fenced.

        Raises CheckpointFenced when a newer generation has it, and CheckpointError when no mark of ours comes: then
        the launcher could not write there, or (on other ranks) the folder is not the one that rank 0 has.
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
            fence.check(self.folder, self.mark)  # Another job took it: that is the better word.
        stands = "no mark" if claim is None else f"the mark of generation {claim.mark}"
        if self.rank == 0:
            raise CheckpointError(
                f"{self.folder.absolute()} carries {stands} instead of {self.mark}: "
                "the launcher could not write there; its own lines say why"
            )
        raise CheckpointError(
            f"{self.folder.absolute()} on {socket.gethostname()} carries {stands} instead of {self.mark}, which stands "
            "in that of rank 0: the folder is not shared; --checkpoint_dir must lie where every node can read it"
        )

    def load(self, *, map_location: Any = "cpu") -> Loaded | None:
        """Read the newest whole checkpoint that counts, as `elastic.train.checkpoint.load` does, from this folder.

        A checkpoint that is damaged is skipped, with a line in the log that says what is wrong. Sharded parts are left
        out.
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

    # Writing.

    def save(self, step: int, /, **parts: Any) -> Path | None:
        """Write a checkpoint, as `elastic.train.checkpoint.save` does, into this folder.

        When it fails, the checkpoints that were there before stay as they are. A second save of one step replaces the
        first.
        """
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
        if self._progress_file:
            try:
                replace_file(Path(self._progress_file), f"{step}\n".encode())
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

    def _skip(self, folder: Path, error: CheckpointDamaged) -> None:
        if not folder.exists():
            return  # Newer ones replaced it meanwhile.
        self.damaged[folder.name] = error
        self._say_once(folder, f"checkpoint {folder} is skipped: {error}")

    def _say_once(self, folder: Path, line: str) -> None:
        if folder not in self._said:
            self._said.add(folder)
            log.warning("%s", line)


def save(step: int, /, **parts: Any) -> Path | None:
    """Write a checkpoint into the launcher's folder, on rank 0; the other ranks return at once.

    Args:
        step: The number of steps that were trained, 0 or more.
        **parts: What is saved, by name: anything that `torch.load(weights_only=True)` takes.

    When it fails, the checkpoints that were there before stay as they are. A second save of one step replaces the
    first.

    Returns:
        The checkpoint's folder once the disk has it, None on every rank but 0.

    Raises:
        CheckpointFenced: Another generation owns the folder.
        CheckpointError: It cannot be written; the text has the fix. Or a part would not be loaded again.
        ValueError: The step is negative, or a part's name is not an identifier.
    """
    return Checkpoints().save(step, **parts)


def load(*, map_location: Any = "cpu") -> Loaded | None:
    """Read the newest whole checkpoint of the launcher's folder, on any rank.

    Args:
        map_location: Where tensors go, as for `torch.load`.

    Returns:
        The checkpoint in memory, None when there is none.

    Raises:
        CheckpointDamaged: There are checkpoints and all are damaged. Training never starts over in silence.
        CheckpointFenced: This worker is of an older generation.
        CheckpointError: The folder is not the one that rank 0 uses, so that ranks would go on from different steps;
            or it cannot be read.
    """
    return Checkpoints().load(map_location=map_location)


def check_names(step: int, parts: Iterable[str]) -> None:
    """Raise ValueError unless a step and the names of its parts can be saved."""
    if step < 0:
        raise ValueError(f"a step is 0 or more, not {step}")
    if not all(map(str.isidentifier, parts)):
        raise ValueError(f"parts are named as Python names are, not {', '.join(parts)}")


def _is_stray(entry: manifest.CheckpointEntry, claim: fence.FenceClaim | None) -> bool:
    """Tell whether a checkpoint was written by an older world after `claim`. A damaged one is not told from others."""
    try:
        return claim is not None and not claim.accepts(entry.name, manifest.read_meta(entry).mark)
    except CheckpointDamaged:
        return False
