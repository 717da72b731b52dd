"""The checkpoints in one folder, as one worker sees and reads them."""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic import environment
from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, fence, manifest

if TYPE_CHECKING:
    from elastic.train.statedict.sharded import Template

KEEP = 3
"""Checkpoints that stay. Two would do if none were ever damaged."""
MARK_WAIT_S = 10.0
"""How long `load` waits for its generation's mark: the agent of M_id 0 writes it while other nodes already start."""
MARK_POLL_S = (0.002, 0.05)
"""Each look is twice as long after the one before, within these bounds: mostly the mark comes within milliseconds."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointCandidate:
    """A checkpoint that counts and can be tried."""

    entry: manifest.CheckpointEntry
    meta: manifest.CheckpointMeta

    @property
    def step(self) -> int:
        """The step it was written at."""
        return self.entry.step

    @property
    def generation(self) -> int:
        """The generation that wrote it."""
        return self.entry.generation

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.entry.folder


class CheckpointReader:
    """The checkpoints in one folder, as one worker sees them.

    Everything has a default from the environment that elastic-launch sets. `mark` is what the fence must say for this
    worker to write; None takes ELASTIC_FENCE if `folder` is the launcher's own, "" switches fencing off. A folder that
    only the script knows is not fenced: nobody claims it. A `progress_file` of "" reports nothing to the agent.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        keep: int = KEEP,
        rank: int | None = None,
        generation: int | None = None,
        mark: str | None = None,
        progress_file: str | os.PathLike[str] | None = None,
    ) -> None:
        """Read what is not given from the environment. Touches no disk."""
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
        reported = progress_file if progress_file is not None else environ.get("ELASTIC_PROGRESS_FILE")
        self.progress_file = Path(reported) if reported else None
        self.damaged: dict[str, CheckpointDamaged] = {}
        """Checkpoints that could not be read, and why."""
        self._said: set[Path] = set()

    def candidates(self) -> list[CheckpointCandidate]:
        """List the checkpoints that count, newest first. Nothing but their meta.json is read.

        One whose meta.json is damaged is left out, with a line that says what is wrong, and so is one that an older
        world wrote when it was over. Raises CheckpointFenced when this worker is itself of an old world.
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
                if entry.folder.exists():  # Otherwise newer ones replaced it meanwhile.
                    self._skip(entry.folder, error)
                continue
            if claim is None or claim.accepts(entry.name, meta.mark):
                candidates.append(CheckpointCandidate(entry, meta))
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

        Raises CheckpointDamaged, with the line for people already said, and CheckpointError for a part that
        `torch.load(weights_only=True)` refuses.
        """
        from elastic.train.checkpoint import replicated_part

        try:
            return {
                name: replicated_part.read(candidate.folder / f"{name}.pt", part, map_location)
                for name, part in candidate.meta.parts.items()
            }
        except CheckpointDamaged as error:
            if candidate.folder.exists():
                self._skip(candidate.folder, error)
            raise

    def read_sharded(
        self, candidate: CheckpointCandidate, name: str, template: Template, group: Any = None
    ) -> dict[str, Any]:
        """Read a sharded part, whatever world size wrote it, into what `template` makes for it.

        Every rank of `group`, one of gloo's, calls it, and all see the folder. Tensors are filled in place, DTensors
        and others; the keys of the template say what is read. Each file is verified before, by one of the ranks. Raises
        CheckpointDamaged, and CheckpointError when the part does not fit the template; on all ranks alike.
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
            if candidate.folder.exists():
                self._skip(candidate.folder, error)
            raise

    def verify(self, candidate: CheckpointCandidate) -> None:
        """Read all files of a checkpoint once; CheckpointDamaged when one is not what its meta.json says."""
        from elastic.train.checkpoint import replicated_part

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

    def await_mark(self) -> fence.FenceClaim | None:
        """Wait until this worker's generation owns the folder; at once None where nothing is fenced.

        Raises CheckpointFenced when a newer generation has it, and CheckpointError when no mark of ours comes: then
        the launcher could not write there, or (on other ranks) the folder is not the one that rank 0 has.
        """
        if not self.mark:
            return None
        deadline = time.monotonic() + MARK_WAIT_S
        pause_s, longest_s = MARK_POLL_S
        while True:
            claim = fence.current(self.folder)
            if claim is not None and claim.mark == self.mark:
                return claim
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

    def _skip(self, folder: Path, error: CheckpointDamaged) -> None:
        self.damaged[folder.name] = error
        self._say_once(folder, f"checkpoint {folder} is skipped: {error}")

    def _say_once(self, folder: Path, line: str) -> None:
        if folder not in self._said:
            self._said.add(folder)
            log.warning("%s", line)
