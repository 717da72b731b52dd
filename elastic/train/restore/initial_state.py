"""The start of a run that has no checkpoint of its own: from --resume_from, or from what rank 0's script made."""

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
    """The parts and values that `path` offers, the same on all ranks. A collective.

    The lowest rank that can read it sends the whole parts to the others; sharded parts are read by all. A module that
    was saved whole may be sharded now. Raises `CheckpointError` on all ranks, `RestoreUnrecoverable` if there is
    nothing at the path or nothing of use.
    """
    damaged: dict[str, CheckpointDamaged] = {}
    while True:
        given, folder = _whole(place, checkpoints, parts, path, damaged)
        try:
            return given | (_read_sharded(place, checkpoints, parts, folder) if folder else {})
        except CheckpointDamaged as error:  # The same on all ranks: the one before is tried.
            damaged[folder] = error


def _whole(
    place: Topology,
    checkpoints: Checkpoints,
    parts: Mapping[str, StatePart],
    path: str,
    damaged: Mapping[str, CheckpointDamaged],
) -> tuple[dict[str, Any], str]:
    """The whole parts and values, the same on all ranks, and the folder of the checkpoint; "" for a plain file.

    A collective. `damaged` are folders whose shards cannot be read, each with the reason.
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
    """What rank 0 has in these whole parts, for the other ranks; nothing for rank 0 itself. A collective."""
    taken = {name: part.take() for name, part in parts.items()}
    for name, one in taken.items():  # On every rank, so that none waits for one that cannot read what it gets.
        replicated_part.require_loadable(tree.unsafe(tree.pack(one)[0]), name)
    mine = taken if place.rank == 0 else None
    given = broadcast_trees(mine, [rank == 0 for rank in range(place.world_size)], place.group)
    return {} if mine is not None else given


def _read(
    checkpoints: Checkpoints, parts: Mapping[str, StatePart], path: str, damaged: Mapping[str, CheckpointDamaged]
) -> tuple[dict[str, Any], CheckpointCandidate | None]:
    """The whole parts of the newest checkpoint that can be read, or of a plain file."""
    source = resume_from(path)
    damage: CheckpointDamaged | None = None
    for candidate in source.candidates:
        if why := damaged.get(str(candidate.folder)):
            damage = damage or why
            continue
        for name in candidate.meta.sharded:
            if name in parts and not parts[name].sharded:
                raise CheckpointError(
                    f"--resume_from {path}: {name} was saved in shards and is whole now; make a plain file of it with "
                    "elastic.export, and start from that"
                )
        try:
            return checkpoints.read(candidate, map_location="cpu"), candidate
        except CheckpointDamaged as error:
            damage = damage or error
    if damage is not None:
        raise CheckpointDamaged(f"--resume_from {path}: {damage}", transient=damage.transient) from damage
    return dict(source.trees), None


def _read_sharded(
    place: Topology, checkpoints: Checkpoints, parts: Mapping[str, StatePart], folder: str
) -> dict[str, dict[str, Any]]:
    """The sharded parts of one checkpoint. `CheckpointError` on all ranks if it has some and a rank does not see it."""
    try:
        candidate = resume_from(folder).candidates[0]
        own = b"sharded" if candidate.meta.sharded else b"whole"
    except CheckpointError:
        own = b""
    replies = byte_collectives.gather(own, place.group)
    if b"sharded" in replies and b"" in replies:
        raise CheckpointError(
            f"--resume_from {folder} has sharded parts and is not seen by rank {replies.index(b'')}; it must lie where "
            "every node can read it"
        )
    if any(reply != b"sharded" for reply in replies):
        return {}
    return {
        name: checkpoints.read_sharded(candidate, name, cast("ShardedPart", part).template, place.group)
        for name, part in parts.items()
        if part.sharded and name in candidate.meta.sharded
    }


NOT_TORCHS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    struct.error,
)
"""What torch.load lets through of a file that is of another kind: it takes any bytes for a pickle of old times."""


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """What `--resume_from` offers: checkpoints to be tried from first to last, or the trees of a plain file."""

    candidates: tuple[CheckpointCandidate, ...] = ()
    trees: Mapping[str, Any] = field(default_factory=dict)


def resume_from(path: str | os.PathLike[str]) -> ResumeSource:
    """Look at what `--resume_from` names.

    That is one checkpoint (`step-….gN`), a folder of them (the newest first), or a file that `elastic.export` or
    `torch.save` of a module's state dict wrote, which is read here. Of a checkpoint nothing but meta.json is read.
    Raises CheckpointError, one line, when there is nothing of the kind.
    """
    place = Path(path)
    if not place.exists():
        raise CheckpointError(f"--resume_from {place}: there is nothing at that path")
    try:
        if not place.is_dir():
            return ResumeSource(trees=_trees(place))
        candidates = _candidates(place)
    except CheckpointError as error:
        raise CheckpointError(f"--resume_from {place}: {error}", transient=error.transient) from error
    except OSError as error:
        transient = atomic_files.is_transient(error)
        raise CheckpointError(f"--resume_from {place}: {error}", transient=transient) from error
    if not candidates:
        raise CheckpointError(f"--resume_from {place}: there is no checkpoint in that folder")
    return ResumeSource(candidates)


def _candidates(place: Path) -> tuple[CheckpointCandidate, ...]:
    entry = manifest.entry_of(place.absolute())
    if entry is not None:
        return (manifest.candidate(entry),)
    if (place / manifest.META).exists():
        raise CheckpointError(f"a checkpoint is named like {manifest.name(1234, 7)}, and this one was renamed")
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
            "it is not a file that torch.load(weights_only=True) takes: not of torch.save, or with more in it than "
            "tensors and plain values; write it anew with torch.save(model.state_dict(), ...)"
        ) from error
    except NOT_TORCHS as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointDamaged(f"it is not a file that torch.load(weights_only=True) takes: {why}") from error
    if isinstance(tree, dict) and PARTS in tree:
        return {name: tree[name] for name in tree[PARTS]}
    return {"model": tree}
