"""Going back to an earlier step on demand: `--restore_step`.

Rank 0 renames the newer checkpoints, so that they no longer count; nothing is removed, and renamed back they count
again. Then it notes in the folder what it did. A restart of the same run finds the note and does not go back a second
time, though it is still told `--restore_step`; and copies of the state in memory from before are known to be too new.
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
"""How many steps an error lists."""

log = logging.getLogger(__name__)


class RollbackRecord(msgspec.Struct, frozen=True):
    """The last rollback of a folder: of which run, to which step, and by which generation.

    What generations before `generation` hold in memory does not count. `aside` are the new names of what was newer.
    """

    run: str
    step: int
    generation: int
    aside: tuple[str, ...]
    at: float


_record = msgspec.json.Decoder(RollbackRecord)


def run_mark(environ: Mapping[str, str] | None = None) -> str:
    """Name this run, so that its restarts are told from another run.

    It is the job's incarnation and run under elastic-launch, the run id under torchrun; "" in plain python, where each
    start is a run of its own.
    """
    known = os.environ if environ is None else environ
    if incarnation := (known.get("ELASTIC_FENCE") or "").rpartition("/")[0]:
        return f"{incarnation}/{known.get('ELASTIC_RUN') or 1}"
    run_id = known.get("TORCHELASTIC_RUN_ID") or ""
    return f"torchrun:{run_id}" if run_id and run_id != "none" else ""


def rolled_back(folder: Path) -> RollbackRecord | None:
    """Read what the last rollback noted; None if there was none. Raises CheckpointError when it is damaged."""
    with atomic_files.as_checkpoint_error("reading what was rolled back", folder):
        try:
            return _record.decode((folder / RECORD).read_bytes())
        except FileNotFoundError:
            return None
        except UNREADABLE as error:
            raise CheckpointError(f"{folder / RECORD} is damaged ({error}); remove it to go back once more") from error


def names_aside(record: RollbackRecord) -> frozenset[str]:
    """The folders that were set aside, by their names before: what is known of them elsewhere does not count either.

    Names and not steps: a run that went back comes to the same steps again, in a later generation.
    """
    return frozenset(".".join(name.removeprefix(ASIDE).split(".")[:2]) for name in record.aside)  # Then a count.


def rollback(checkpoints: Checkpoints, step: int, run: str) -> RollbackRecord:
    """Make the checkpoint of `step` the newest one; on rank 0 alone, before anybody lists the folder.

    `run` is what `run_mark` says. If this run has gone back to this step already, nothing happens, and a line says so
    if there are newer checkpoints. The checkpoint is read through before anything is renamed. A crash in between
    leaves a folder on which the rollback is done again. Raises RestoreUnrecoverable, with the steps there are, when
    that one has no whole checkpoint, and CheckpointError when the folder cannot be read or written.
    """
    known = rolled_back(checkpoints.folder)
    if known is not None and run and (known.run, known.step) == (run, step):
        if any(entry.step > step for entry in manifest.entries(checkpoints.folder)):
            log.warning(
                "--restore_step %d: this run of the job went back to it in generation %d, and goes on from its newest "
                "checkpoint; remove %s to go back once more",
                step,
                known.generation,
                checkpoints.folder / RECORD,
            )
        return known
    checkpoints.await_mark()
    _check(checkpoints, step)
    newer = [entry for entry in manifest.entries(checkpoints.folder) if entry.step > step]
    with atomic_files.as_checkpoint_error(f"going back to step {step}", checkpoints.folder):
        aside = tuple(_set_aside(entry.folder) for entry in newer)
        record = RollbackRecord(run, step, checkpoints.generation, aside, time.time())
        replace_file(checkpoints.folder / RECORD, msgspec.json.format(msgspec.json.encode(record)))
        atomic_files.sync_folder(checkpoints.folder)
    log.warning(
        "going back to step %d: %s in %s set aside, as %s*",
        step,
        counted(len(aside), "newer checkpoint"),
        checkpoints.folder,
        ASIDE,
    )
    return record


def _check(checkpoints: Checkpoints, step: int) -> None:
    """Return if a step has a whole checkpoint."""
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
    there = f"there are steps {named}" if steps else "there is none"
    raise (CheckpointError if transient else RestoreUnrecoverable)(
        f"--restore_step {step}: {damage or 'there is no such checkpoint; '}in {checkpoints.folder} {there}"
    )


def _set_aside(folder: Path) -> str:
    """Rename a checkpoint so that it does not count; its new name."""
    for count in itertools.count(1):
        target = folder.with_name(f"{ASIDE}{folder.name}" + (f".{count}" if count > 1 else ""))
        if atomic_files.publish(folder, target):
            return target.name
    raise AssertionError  # The count never ends.
