"""What lies in a checkpoint folder, and how it is named.

::

    <checkpoint_dir>/
      step-0000001234.g7/     one checkpoint: written at step 1234 by generation 7; whole or not there
        meta.json             step, generation, mark, and the size and SHA-256 of each part
        model.pt              one file per part, written by torch.save
        optimizer.pt
      fence/                  who owns the folder (see `elastic.train.fence`)

Names that start with a dot are being written or removed. Generation 0 means: written without elastic-launch.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from elastic.errors import CheckpointDamaged

META = "meta.json"
SCHEMA = 1

_NAME = re.compile(r"step-(\d{10,19})\.g(\d{1,19})")


class Part(msgspec.Struct, frozen=True):
    """One file of a checkpoint: its size and the SHA-256 of its content, in hex."""

    size: int
    sha256: str


class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """What `meta.json` holds. `mark` is the fence's at the time, "" without one; `at` is wall clock, for people."""

    step: int
    generation: int
    mark: str
    parts: dict[str, Part]
    at: float
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """One checkpoint by its name. Entries sort from old to new: by step, then by generation."""

    step: int
    generation: int
    folder: Path

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name


def name(step: int, generation: int) -> str:
    """Name a checkpoint."""
    return f"step-{step:010d}.g{generation}"


def entries(folder: Path) -> list[Entry]:
    """List the checkpoints in a folder, newest first. A folder that is not there has none."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    found = [
        Entry(int(match[1]), int(match[2]), path) for path in paths if (match := _NAME.fullmatch(path.name)) is not None
    ]
    return sorted(found, reverse=True)


def read_meta(entry: Entry) -> Meta:
    """Read what a checkpoint says of itself; CheckpointDamaged says what is wrong with it."""
    try:
        meta = msgspec.json.decode((entry.folder / META).read_bytes(), type=Meta)
    except OSError as error:
        raise CheckpointDamaged(f"{META} cannot be read ({error.strerror})") from error
    except msgspec.MsgspecError as error:
        raise CheckpointDamaged(f"{META} is damaged ({error})") from error
    if meta.schema != SCHEMA:
        raise CheckpointDamaged(f"it was written in layout {meta.schema}; this version reads layout {SCHEMA}")
    if not all(map(str.isidentifier, meta.parts)):
        raise CheckpointDamaged(f"{META} names a part that cannot be one")
    if (meta.step, meta.generation) != (entry.step, entry.generation):
        raise CheckpointDamaged(f"{META} speaks of step {meta.step} of generation {meta.generation}")
    return meta
