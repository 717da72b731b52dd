"""Save and load checkpoints that are whole or not there, and fenced by generation.

::

    from elastic.train import checkpoint

    loaded = checkpoint.load()                       # every rank; None when there is nothing yet
    if loaded is not None:
        model.load_state_dict(loaded["model"])
        step = loaded.step
    ...
    checkpoint.save(step, model=model.state_dict(), optimizer=optimizer.state_dict())   # every rank; rank 0 writes

Under elastic-launch the folder is the one that `--checkpoint_dir` names, and a worker of an older world can no longer
write there (see `elastic.train.fence`). Under torchrun and plain python it is `ELASTIC_CHECKPOINT_DIR` or
`checkpoints`, and nothing is fenced. Neither call is a collective. Ranks that load before any rank has saved load the
same checkpoint, if they all see the same folder.

A part is anything that `torch.load(weights_only=True)` takes: tensors, numbers, text, and lists and dicts of them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import pickle
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train import durable, fence, layout

KEEP = 3
"""Checkpoints that stay. Two would do if none were ever damaged."""
MARK_WAIT_S = 10.0
"""How long `load` waits for its generation's mark: the agent of M_id 0 writes it while other nodes already start."""
MARK_POLL_S = 0.05
RELISTS_MAX = 5
"""How often `load` lists again because what it was about to read was replaced by newer ones meanwhile."""
_CHUNK = 1 << 20

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


class Checkpoints:
    """The checkpoints in one folder, as one worker sees them.

    Everything has a default from the environment that elastic-launch sets. `mark` is what the fence must say for this
    worker to write; None takes ELASTIC_FENCE if `folder` is the launcher's own, "" switches fencing off. A folder that
    only the script knows is not fenced: nobody claims it.
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
        self.rank = rank if rank is not None else int(environ.get("RANK") or 0)
        self.generation = generation if generation is not None else int(environ.get("ELASTIC_GENERATION") or 0)
        ours = self.folder.absolute() == Path(given).absolute()
        self.mark = mark if mark is not None else (environ.get("ELASTIC_FENCE") or "" if ours else "")
        reported = progress_file if progress_file is not None else environ.get("ELASTIC_PROGRESS_FILE") or None
        self.progress_file = Path(reported) if reported is not None else None
        self._damaged: set[str] = set()

    def save(self, step: int, /, **parts: Any) -> Path | None:
        """Write a checkpoint of `step`; its folder once the disk has it, None on every rank but 0.

        Raises CheckpointFenced when another generation owns the folder, CheckpointError with the mend when the disk is
        full or read-only. The checkpoints that were there before stay as they are. A second save of one step replaces
        the first.
        """
        if self.rank != 0:
            return None
        if step < 0:
            raise ValueError(f"a step is 0 or more, not {step}")
        if not all(map(str.isidentifier, parts)):
            raise ValueError(f"parts are named as Python names are, not {', '.join(parts)}")
        with durable.explained(f"saving step {step}", self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._check()
            staged = durable.staging(self.folder, f".saving-g{self.generation}-")
            try:
                self._write(staged, step, parts)
                self._check()
                target = self.folder / layout.name(step, self.generation)
                while not durable.publish(staged, target):
                    durable.discard(target)  # If we die right here, the checkpoint before this one serves.
                self._check_after(target)
            finally:
                durable.drop(staged)
            self._damaged.discard(target.name)
            self._report(step)
            self._prune()
        return target

    def load(self, *, map_location: Any = "cpu") -> Loaded | None:
        """Read the newest whole checkpoint that counts; None when there is none at all.

        One that is damaged is skipped with a line that says what is wrong. If all are, CheckpointDamaged is raised:
        training never starts over in silence. CheckpointFenced: this worker is of an old world. CheckpointError: the
        folder is not the one that the node of rank 0 uses, so that ranks would go on from different steps.
        """
        claim = self._await_mark() if self.mark else fence.current(self.folder)
        for _ in range(RELISTS_MAX):
            with durable.explained("listing the checkpoints", self.folder):
                found = layout.entries(self.folder)
            loaded = self._newest(found, claim, map_location)
            if loaded is not None or not any(not entry.folder.exists() for entry in found):
                return loaded
        raise CheckpointError(f"the checkpoints in {self.folder} are replaced faster than they can be read")

    def _newest(self, found: list[layout.Entry], claim: fence.Claim | None, map_location: Any) -> Loaded | None:
        reasons: list[str] = []
        for entry in found:
            try:
                meta = layout.read_meta(entry)
                if claim is not None and not claim.counts(entry.name, meta.mark):
                    log.warning(
                        "checkpoint %s is skipped: generation %s wrote it when it was over", entry.folder, meta.mark
                    )
                    continue
                parts = {name: _read(entry, name, part, map_location) for name, part in meta.parts.items()}
            except CheckpointDamaged as error:
                if not entry.folder.exists():
                    return None  # Newer ones replaced it meanwhile; the caller lists again.
                self._damaged.add(entry.name)
                reasons.append(f"{entry.name}: {error}")
                log.warning("checkpoint %s is skipped: %s", entry.folder, error)
                continue
            return Loaded(entry.step, entry.generation, entry.folder, parts)
        if reasons:
            raise CheckpointDamaged(
                f"no checkpoint in {self.folder} can be read ({'; '.join(reasons)}); "
                "bring one back, or remove them all to start over"
            )
        return None

    def _write(self, staged: Path, step: int, parts: Mapping[str, Any]) -> None:
        written = {name: _write_part(staged / f"{name}.pt", part) for name, part in parts.items()}
        meta = layout.Meta(step=step, generation=self.generation, mark=self.mark, parts=written, at=time.time())
        durable.write(staged / layout.META, msgspec.json.format(msgspec.json.encode(meta)))

    def _check(self) -> None:
        if self.mark:
            fence.check(self.folder, self.mark)

    def _check_after(self, target: Path) -> None:
        """Tell whether what was just published counts, if the folder was claimed in that moment."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and not claim.counts(target.name, self.mark):
            fence.check(self.folder, self.mark)

    def _await_mark(self) -> fence.Claim:
        deadline = time.monotonic() + MARK_WAIT_S
        while True:
            claim = fence.current(self.folder)
            if claim is not None and claim.mark == self.mark:
                return claim
            if claim is not None and fence.overtaken(self.mark, claim.mark):
                fence.check(self.folder, self.mark)
            if time.monotonic() > deadline:
                break
            time.sleep(MARK_POLL_S)
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

    def _report(self, step: int) -> None:
        """Tell the agent the newest committed step, for the budget of restarts."""
        if self.progress_file is not None:
            try:
                durable.replace(self.progress_file, f"{step}\n".encode())
            except OSError as error:
                log.warning("step %d is saved, but the agent is not told: %s", step, error)

    def _prune(self) -> None:
        """Keep the newest `keep` that count and are not known to be damaged; remove what is older, and strays."""
        claim = fence.current(self.folder) if self.mark else None
        if claim is not None and claim.mark != self.mark:
            return  # The folder was claimed in this moment. What is too old is for its new owner to judge.
        kept = 0
        for entry in layout.entries(self.folder):
            if kept >= self.keep or _is_stray(entry, claim):
                durable.discard(entry.folder)
            elif entry.name not in self._damaged:
                kept += 1
        durable.sweep(self.folder, (".saving-", ".removed-"))


def save(step: int, /, **parts: Any) -> Path | None:
    """Write a checkpoint into the launcher's folder, on rank 0; the other ranks return None at once."""
    return Checkpoints().save(step, **parts)


def load(*, map_location: Any = "cpu") -> Loaded | None:
    """Read the newest whole checkpoint of the launcher's folder; None when there is none."""
    return Checkpoints().load(map_location=map_location)


def _is_stray(entry: layout.Entry, claim: fence.Claim | None) -> bool:
    """Tell whether a checkpoint was written by an older world after `claim`. A damaged one is not told from others."""
    try:
        return claim is not None and not claim.counts(entry.name, layout.read_meta(entry).mark)
    except CheckpointDamaged:
        return False


class _Hashed:
    """A file for torch.save that hashes what passes and remembers why a write failed (torch only says that it did)."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self._size = 0
        self.failure: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            written = self._file.write(data)
        except OSError as error:
            self.failure = error
            raise
        self._digest.update(data)
        self._size += written
        return written

    def flush(self) -> None:
        self._file.flush()

    def part(self) -> layout.Part:
        return layout.Part(self._size, self._digest.hexdigest())


def _write_part(path: Path, value: Any) -> layout.Part:
    import torch

    with path.open("xb", buffering=_CHUNK) as file:
        hashed = _Hashed(file)
        try:
            torch.save(value, cast("IO[bytes]", hashed))
        except RuntimeError as error:
            if hashed.failure is None:
                raise
            raise hashed.failure from error
        file.flush()
        os.fsync(file.fileno())
    unsafe = sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    if unsafe:
        raise CheckpointError(
            f"part {path.stem!r} holds {', '.join(unsafe)}, which would not be loaded again; "
            "save tensors, numbers, text, lists and dicts, or name it to torch.serialization.add_safe_globals"
        )
    return hashed.part()


def _read(entry: layout.Entry, name: str, part: layout.Part, map_location: Any) -> Any:
    import torch

    path = entry.folder / f"{name}.pt"
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size != part.size:
                raise CheckpointDamaged(f"{path.name} has {size} bytes instead of {part.size}")
            if hashlib.file_digest(file, "sha256").hexdigest() != part.sha256:
                raise CheckpointDamaged(f"the checksum of {path.name} is wrong")
            file.seek(0)
            return torch.load(file, map_location=map_location, weights_only=True)
    except OSError as error:
        raise CheckpointDamaged(f"{path.name} cannot be read ({error.strerror})") from error
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} holds more than tensors, numbers, text, lists and dicts, and is not loaded for safety: {error}"
        ) from error
