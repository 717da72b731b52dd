"""`--restore-step`: rolls back to an earlier step.

Rank 0 renames the newer checkpoints, so that they are no longer valid. It removes nothing: a checkpoint that you rename
back is valid again. Then it writes a record of the rollback to the directory. A restart of the same run reads the
record and does not roll back again, although it still has `--restore-step`, and ignores in-memory checkpoints from
before the rollback.
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from elastic._decode import UNREADABLE
from elastic._disk.replace import replace_file
from elastic._text import counted
from elastic.errors import CheckpointDamaged, CheckpointError, RestoreUnrecoverable
from elastic.train.checkpoint import atomic_files, manifest
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.restore.choose_checkpoint import DamagedCheckpoint

RECORD = "rollback.json"
ASIDE = "aside-"
STEPS_NAMED_MAX = 12
"""The number of steps that an error lists."""

log = logging.getLogger(__name__)


class RollbackRecord(msgspec.Struct, frozen=True):
    """The last rollback of a directory: its run, step and generation.

    In-memory checkpoints of generations before `generation` are not valid. `aside` are the new names of the newer
    checkpoints.
    """

    run: str
    step: int
    generation: int
    aside: tuple[str, ...]
    at: float


_record = msgspec.json.Decoder(RollbackRecord)


def run_mark(environ: Mapping[str, str] | None = None) -> str:
    """Return an ID of this run, which is the same after a restart.

    Under elastic-launch it is the job's incarnation and run, under torchrun the run ID; "" in plain Python, where each
    start is a separate run.
    """
    known = os.environ if environ is None else environ
    if incarnation := (known.get("ELASTIC_FENCE") or "").rpartition("/")[0]:
        return f"{incarnation}/{known.get('ELASTIC_RUN') or 1}"
    run_id = known.get("TORCHELASTIC_RUN_ID") or ""
    return f"torchrun:{run_id}" if run_id and run_id != "none" else ""


def rolled_back(folder: Path) -> RollbackRecord | None:
    """Read the record of the last rollback; None if there was none. Raises CheckpointError if it is damaged."""
    with atomic_files.as_checkpoint_error("reading the record of the last rollback", folder):
        try:
            return _record.decode((folder / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise CheckpointError(f"{folder / RECORD} is damaged ({error}); remove it to roll back again") from error


def names_aside(record: RollbackRecord) -> frozenset[str]:
    """Return the original names of the checkpoints that were set aside; other records of them are not valid either.

    Names identify them, not steps: a run that rolled back reaches the same steps again, in a later generation.
    """
    return frozenset(".".join(name.removeprefix(ASIDE).split(".")[:2]) for name in record.aside)  # Drop the count.


def rollback(checkpoints: Checkpoints, step: int, run: str) -> RollbackRecord:
    """Make the checkpoint of `step` the newest one, on rank 0 alone, before any rank lists the directory.

    `run` is the result of `run_mark`. If this run has already rolled back to this step, it does nothing, and logs a
    warning if there are newer checkpoints. It verifies the checkpoint before it renames anything. After a crash in
    between, the next start repeats the rollback. Raises RestoreUnrecoverable, with the available steps, if the step has
    no intact checkpoint, and CheckpointError if the directory cannot be read or written.
    """
    known = rolled_back(checkpoints.folder)
    if known is not None and run and (known.run, known.step) == (run, step):
        if any(entry.step > step for entry in manifest.entries(checkpoints.folder)):
            log.warning(
                "--restore-step %d: this run of the job rolled back to it in generation %d, and resumes from its "
                "newest checkpoint; remove %s to roll back again",
                step,
                known.generation,
                checkpoints.folder / RECORD,
            )
        return known
    checkpoints.await_mark()
    _check(checkpoints, step)
    newer = [entry for entry in manifest.entries(checkpoints.folder) if entry.step > step]
    with atomic_files.as_checkpoint_error(f"rolling back to step {step}", checkpoints.folder):
        aside = tuple(_set_aside(entry.folder) for entry in newer)
        record = RollbackRecord(run, step, checkpoints.generation, aside, time.time())
        replace_file(checkpoints.folder / RECORD, msgspec.json.format(msgspec.json.encode(record)))
        atomic_files.sync_folder(checkpoints.folder)
    log.warning(
        "rolling back to step %d: set aside %s in %s, as %s*",
        step,
        counted(len(aside), "newer checkpoint"),
        checkpoints.folder,
        ASIDE,
    )
    return record


def _check(checkpoints: Checkpoints, step: int) -> None:
    """Raise RestoreUnrecoverable or CheckpointError unless the step has an intact checkpoint."""
    candidates = checkpoints.candidates()
    damaged = [DamagedCheckpoint(name, str(error)) for name, error in checkpoints.damaged.items()]
    transient = any(error.transient for error in checkpoints.damaged.values())
    for candidate in candidates:
        if candidate.step == step:
            try:
                checkpoints.verify(candidate)
            except CheckpointDamaged as error:
                damaged.append(DamagedCheckpoint(candidate.folder.name, str(error)))
                transient |= error.transient
            else:
                return
    damage = next(
        (
            f"{checkpoint.name} is damaged ({checkpoint.why}); "
            for checkpoint in damaged
            if manifest.age(checkpoint.name)[0] == step
        ),
        "",
    )
    steps = sorted({candidate.step for candidate in candidates} - {step}, reverse=True)
    named = ", ".join(map(str, steps[:STEPS_NAMED_MAX])) + (" and older ones" if len(steps) > STEPS_NAMED_MAX else "")
    available = f"has steps {named}" if steps else f"has no {'other ' if damage else ''}checkpoint"
    raise (CheckpointError if transient else RestoreUnrecoverable)(
        f"--restore-step {step}: {damage or 'there is no such checkpoint; '}{checkpoints.folder} {available}"
    )


def _set_aside(folder: Path) -> str:
    """Rename a checkpoint so that it is not valid, and return its new name."""
    for count in itertools.count(1):
        target = folder.with_name(f"{ASIDE}{folder.name}" + (f".{count}" if count > 1 else ""))
        if atomic_files.publish(folder, target):
            return target.name
    raise AssertionError  # The count never ends.
