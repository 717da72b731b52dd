"""Exports a checkpoint to one plain file for inference: `torch.load(file, weights_only=True)`.

    python -m elastic.train.export checkpoints model.pt

It works for sharded state too, and needs no process group.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elastic._disk.replace import replacing
from elastic.errors import CheckpointDamaged, CheckpointError, ElasticError
from elastic.train.checkpoint import atomic_files, manifest, replicated_part
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.checkpoint.manifest import PARTS, CheckpointCandidate

log = logging.getLogger(__name__)


def export(checkpoint: str | os.PathLike[str], file: str | os.PathLike[str], parts: Sequence[str] = ("model",)) -> Path:
    """Export components of a checkpoint to one file for `torch.load(file, weights_only=True)`, atomically.

    Sharded tensors are assembled on the CPU and must fit into the memory of this machine. No process group is needed.

    Args:
        checkpoint: The directory of one checkpoint, or a directory of checkpoints, for the newest one that can be read.
        file: The file to write; an existing file is replaced. Its directory is created if it does not exist.
        parts: The names of the components. With one name the file holds the tree of that component: for `model` its
            state dict. With several names it holds a dict of the trees by name, and their list under "elastic_parts".

    Returns:
        The path of the file.

    Raises:
        CheckpointError: A component does not exist, no checkpoint can be read, or the file cannot be written.
        CheckpointDamaged: `checkpoint` names one checkpoint, and it is damaged.
        ValueError: `parts` is empty.
    """
    if not parts:
        raise ValueError("name at least one component")
    trees = _read(Path(checkpoint), tuple(dict.fromkeys(parts)))
    target = Path(file)
    content = {**trees, PARTS: list(trees)} if len(trees) > 1 else next(iter(trees.values()))
    with atomic_files.as_checkpoint_error(f"exporting to {target.name}", target.absolute().parent, "file"):
        target.parent.mkdir(parents=True, exist_ok=True)
        _write(target, content)
    return target


def _read(place: Path, names: Sequence[str]) -> dict[str, Any]:
    checkpoints = Checkpoints(place.parent if manifest.entry_of(place) else place, mark="")
    for candidate in _candidates(checkpoints, place):
        missing = [n for n in names if n not in candidate.meta.parts and n not in candidate.meta.sharded]
        if missing:
            there = ", ".join([*candidate.meta.parts, *candidate.meta.sharded]) or "none"
            raise CheckpointError(f"{candidate.folder} has no component {', '.join(missing)}; it has {there}")
        try:
            return {name: _part(candidate, name) for name in names}
        except CheckpointDamaged as error:
            if manifest.entry_of(place):
                raise CheckpointDamaged(f"{place} is damaged: {error}") from error
            log.warning("skipping checkpoint %s: %s", candidate.folder, error)
    raise CheckpointError(f"no checkpoint in {place} can be read")


def _candidates(checkpoints: Checkpoints, place: Path) -> list[CheckpointCandidate]:
    entry = manifest.entry_of(place)
    return checkpoints.candidates() if entry is None else [manifest.candidate(entry)]


def _part(candidate: CheckpointCandidate, name: str) -> Any:
    if name in candidate.meta.parts:
        return replicated_part.read(candidate.folder / f"{name}.pt", candidate.meta.parts[name], "cpu")
    from elastic.train.checkpoint import sharded_part

    return sharded_part.read_whole(candidate.folder / name, candidate.meta.sharded[name])


def _write(target: Path, content: Any) -> None:
    with replacing(target) as new:
        replicated_part.save_file(new, content)
    atomic_files.sync_folder(target.absolute().parent)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m elastic.train.export`.

    Args:
        arguments: The command line after the name of the module; None: that of this process.

    Returns:
        The exit code: 0, or that of the printed error.
    """
    parser = argparse.ArgumentParser("python -m elastic.train.export", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkpoint", help="a checkpoint (step-….gN), or a directory of them, for the newest one")
    parser.add_argument("file", help="the file to write; an existing file is replaced")
    parser.add_argument("--part", action="append", help="a component to export; may be repeated (default: model)")
    given = parser.parse_args(arguments)
    try:
        export(given.checkpoint, given.file, given.part or ("model",))
    except ElasticError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0
