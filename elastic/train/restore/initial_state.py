"""The start of a run without a checkpoint: from --resume-from, or from the initial state of rank 0."""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, manifest, replicated_part
from elastic.train.checkpoint.folder import Checkpoints
from elastic.train.checkpoint.manifest import PARTS, CheckpointCandidate
from elastic.train.comm import byte_collectives
from elastic.train.comm.broadcast_tree import broadcast_trees
from elastic.train.comm.rank_errors import RankError, decode_errors, encode_error, raise_first
from elastic.train.process_group.topology import Topology
from elastic.train.statedict import tree
from elastic.train.statedict.parts import ShardedPart, StatePart


def load_resume_source(
    place: Topology, checkpoints: Checkpoints, parts: Mapping[str, StatePart], path: str
) -> dict[str, Any]:
    """Return the components and values of the checkpoint or file at `path`, the same on all ranks; a collective.

    The lowest rank that can read it sends the replicated components to the others; all ranks read the sharded ones. A
    module that was saved unsharded may be sharded now. Raises `CheckpointError` on all ranks, and its subclass
    `RestoreUnrecoverable` if there is nothing usable at the path.
    """
    damaged: dict[str, CheckpointDamaged] = {}
    while True:
        given, folder = _whole(place, checkpoints, parts, path, damaged)
        try:
            return given | (_read_sharded(place, checkpoints, parts, folder) if folder else {})
        except CheckpointDamaged as error:  # The same on all ranks: try the previous checkpoint.
            damaged[folder] = error


def _whole(
    place: Topology,
    checkpoints: Checkpoints,
    parts: Mapping[str, StatePart],
    path: str,
    damaged: Mapping[str, CheckpointDamaged],
) -> tuple[dict[str, Any], str]:
    """Return the replicated components and values, and the directory of the checkpoint, "" for a plain file.

    A collective; the same on all ranks. `damaged` are directories whose shards cannot be read, each with its error.
    """
    trees: dict[str, Any] | None = None
    folder, own = "", None
    try:
        trees, candidate = _read(checkpoints, parts, path, damaged)
        folder = str(candidate.folder) if candidate is not None else ""
    except CheckpointError as error:
        own = RankError.of(error)
    errors = decode_errors(byte_collectives.gather(encode_error(own), place.group))
    if all(errors):
        raise_first(errors)
    first = errors.index(None)
    if not place.alone:
        holders = [rank == first for rank in range(place.world_size)]
        trees = broadcast_trees(trees if place.rank == first else None, holders, place.group)
        folder = byte_collectives.broadcast(
            folder.encode() if place.rank == first else None, first, place.group
        ).decode()
    given = dict(trees or {})
    given.pop("rng", None)
    return given, folder


def broadcast_from_rank_0(place: Topology, parts: Mapping[str, StatePart]) -> dict[str, Any]:
    """Return these replicated components of rank 0, for the other ranks; {} on rank 0. A collective."""
    taken = {name: part.take() for name, part in parts.items()}
    for name, state in taken.items():  # On every rank, so that none waits for a rank that cannot load the broadcast.
        replicated_part.require_loadable(tree.unsafe(tree.pack(state)[0]), name)
    own = taken if place.rank == 0 else None
    given = broadcast_trees(own, [rank == 0 for rank in range(place.world_size)], place.group)
    return {} if own is not None else given


def _read(
    checkpoints: Checkpoints, parts: Mapping[str, StatePart], path: str, damaged: Mapping[str, CheckpointDamaged]
) -> tuple[dict[str, Any], CheckpointCandidate | None]:
    """Return the replicated components of the newest checkpoint that can be read, or of a plain file."""
    source = resume_from(path)
    damage: CheckpointDamaged | None = None
    for candidate in source.candidates:
        if why := damaged.get(str(candidate.folder)):
            damage = damage or why
            continue
        for name in candidate.meta.sharded:
            if name in parts and not parts[name].sharded:
                raise CheckpointError(
                    f"--resume-from {path}: {name} was saved sharded, but is not sharded now; export it to a plain "
                    "file with elastic.export, and start from that file"
                )
        try:
            return checkpoints.read(candidate, map_location="cpu"), candidate
        except CheckpointDamaged as error:
            damage = damage or error
    if damage is not None:
        raise CheckpointDamaged(f"--resume-from {path}: {damage}", transient=damage.transient) from damage
    return dict(source.trees), None


def _read_sharded(
    place: Topology, checkpoints: Checkpoints, parts: Mapping[str, StatePart], folder: str
) -> dict[str, dict[str, Any]]:
    """Return the sharded components of a checkpoint. All ranks raise `CheckpointError` if one cannot see them."""
    try:
        candidate = resume_from(folder).candidates[0]
        own = b"sharded" if candidate.meta.sharded else b"whole"
    except CheckpointError:
        own = b""
    replies = byte_collectives.gather(own, place.group)
    if b"sharded" in replies and b"" in replies:
        raise CheckpointError(
            f"--resume-from {folder} has sharded components, but rank {replies.index(b'')} cannot see it; it must be "
            "readable on every node"
        )
    if any(reply != b"sharded" for reply in replies):
        return {}
    return {
        name: checkpoints.read_sharded(candidate, name, cast("ShardedPart", part).template, place.group)
        for name, part in parts.items()
        if part.sharded and name in candidate.meta.sharded
    }


OTHER_FILE_ERRORS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    struct.error,
)
"""Errors of torch.load for a file of another format, which it reads as a legacy pickle."""


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """The source of `--resume-from`: checkpoints to try from first to last, or the trees of a plain file."""

    candidates: tuple[CheckpointCandidate, ...] = ()
    trees: Mapping[str, Any] = field(default_factory=dict)


def resume_from(path: str | os.PathLike[str]) -> ResumeSource:
    """Open the path of `--resume-from`.

    The path is one checkpoint (`step-….gN`), a directory of checkpoints (the newest first), or a file that
    `elastic.export`, or `torch.save` with the state dict of a module, has written, which is read here. Of a checkpoint
    only meta.json is read. Raises CheckpointError, with one line, if the path is none of these.
    """
    place = Path(path)
    if not place.exists():
        raise CheckpointError(f"--resume-from {place}: the path does not exist")
    try:
        if not place.is_dir():
            return ResumeSource(trees=_trees(place))
        candidates = _candidates(place)
    except CheckpointError as error:
        raise CheckpointError(f"--resume-from {place}: {error}", transient=error.transient) from error
    except OSError as error:
        transient = atomic_files.is_transient(error)
        raise CheckpointError(f"--resume-from {place}: {error}", transient=transient) from error
    if not candidates:
        raise CheckpointError(f"--resume-from {place}: there is no checkpoint in that directory")
    return ResumeSource(candidates)


def _candidates(place: Path) -> tuple[CheckpointCandidate, ...]:
    entry = manifest.entry_of(place.absolute())
    if entry is not None:
        return (manifest.candidate(entry),)
    if (place / manifest.META).exists():
        raise CheckpointError(f"checkpoints have names like {manifest.name(1234, 7)}, but this one was renamed")
    reader = Checkpoints(place, mark="")
    candidates = tuple(reader.candidates())
    if not candidates:
        reader.refuse_to_start_over()
    return candidates


def _trees(file: Path) -> Mapping[str, Any]:
    import torch

    try:
        tree = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise CheckpointDamaged(
            "torch.load(weights_only=True) cannot load it: torch.save did not write it, or it contains more than "
            "tensors and plain values; write it again with torch.save(model.state_dict(), ...)"
        ) from error
    except OTHER_FILE_ERRORS as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"torch.load(weights_only=True) cannot load it: {why}") from error
    if isinstance(tree, dict) and PARTS in tree:
        return {name: tree[name] for name in tree[PARTS]}
    return {"model": tree}
