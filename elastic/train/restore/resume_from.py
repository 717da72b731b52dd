"""Starting from a state that another run left: `--resume_from`.

It serves only where the own folder has no checkpoint that counts, so that a restart goes on from its own.
"""

from __future__ import annotations

import os
import pickle
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from elastic.errors import CheckpointDamaged, CheckpointError, ConfigError
from elastic.train.checkpoint import manifest
from elastic.train.checkpoint.folder import Candidate, Checkpoints
from elastic.train.checkpoint.manifest import PARTS

NOT_TORCHS: Final = (
    *(ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, RuntimeError, TypeError, ValueError),
    struct.error,
)
"""What torch.load lets through of a file that is of another kind: it takes any bytes for a pickle of old times."""


@dataclass(frozen=True, slots=True)
class Warm:
    """What `--resume_from` offers: checkpoints to be tried from first to last, or the trees of a plain file."""

    path: Path
    candidates: tuple[Candidate, ...] = ()
    trees: Mapping[str, Any] = field(default_factory=dict)


def resume_from(path: str | os.PathLike[str], *, map_location: Any = "cpu") -> Warm:
    """Look at what `--resume_from` names.

    That is one checkpoint (`step-….gN`), a folder of them (the newest first), or a file that `elastic.export` or
    `torch.save` of a module's state dict wrote, which is read here. Of a checkpoint nothing but meta.json is read.
    Raises ConfigError, one line, when there is nothing of the kind.
    """
    place = Path(path)
    if not place.exists():
        raise ConfigError(f"--resume_from {place}: there is nothing at that path")
    try:
        if not place.is_dir():
            return Warm(place, trees=_trees(place, map_location))
        candidates = _candidates(place)
    except (CheckpointError, OSError) as error:
        raise ConfigError(f"--resume_from {place}: {error}") from error
    if not candidates:
        raise ConfigError(f"--resume_from {place}: there is no checkpoint in that folder")
    return Warm(place, candidates)


def _candidates(place: Path) -> tuple[Candidate, ...]:
    entry = manifest.entry_of(place.absolute())
    if entry is not None:
        return (Candidate(entry, manifest.read_meta(entry)),)
    if (place / manifest.META).exists():
        raise CheckpointError(f"a checkpoint is named like {manifest.name(1234, 7)}, and this one was renamed")
    reader = Checkpoints(place, mark="")
    found = tuple(reader.candidates())
    if not found:
        reader.refuse_to_start_over()
    return found


def _trees(file: Path, map_location: Any) -> Mapping[str, Any]:
    import torch

    try:
        tree = torch.load(file, map_location=map_location, weights_only=True)
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
