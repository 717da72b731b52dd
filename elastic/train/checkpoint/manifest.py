"""The layout of a checkpoint directory.

::

    <checkpoint_dir>/
      step-0000001234.g7/     one checkpoint, written at step 1234 by generation 7; complete or absent
        meta.json             step, generation, fencing token, and the size and CRC-32 of each file
        scheduler.pt          a replicated component: one file, written by torch.save
        model/                a sharded component: a directory, written by torch.distributed.checkpoint
          __0_0.distcp
          .metadata
      aside-step-…            set aside by --restore-step: no longer valid, and never removed automatically
      rollback.json           the last roll back by --restore-step (see `elastic.train.restore.restore_step`)
      fence/                  the owner of the directory (see `elastic.train.checkpoint.fence`)

Names that start with a dot are being written or removed. Generation 0 means: written without elastic-launch.

The checksum detects damage. It does not protect from an attacker, who could write any checkpoint here. So it is CRC-32,
which zlib computes three times as fast as SHA-256 (6 and 1.9 GB/s on one core, measured). Layout 1 had SHA-256 and no
sharded components; it can still be read.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import CheckpointDamaged
from elastic.train.checkpoint import atomic_files

META = "meta.json"
SCHEMA = 2
READABLE = (1, 2)

_NAME = re.compile(r"step-(\d{10,19})\.g(\d{1,19})")
_FILE = re.compile(r"[A-Za-z0-9._-]{1,255}")


class PartFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One file of a checkpoint: its size in bytes and a hexadecimal checksum. One of the two checksums is empty."""

    size: int
    sha256: str = ""
    crc32: str = ""


class CheckpointMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of `meta.json`.

    `mark` is the fencing token of the writer, "" without fencing. `parts` are the replicated components by name, each
    in the file `<name>.pt`; `sharded` are the others by name, each with the files in the directory of that name.
    `world`, the number of ranks that wrote it, and `at`, the wall-clock time in seconds, are for people.
    """

    step: int
    generation: int
    mark: str
    parts: dict[str, PartFile]
    at: float
    sharded: dict[str, dict[str, PartFile]] = {}
    world: int = 1
    schema: int = SCHEMA

    @property
    def files(self) -> dict[str, PartFile]:
        """Every file of the checkpoint except meta.json, by its path in the directory."""
        return {f"{name}.pt": part for name, part in self.parts.items()} | {
            f"{name}/{file}": part for name, files in self.sharded.items() for file, part in files.items()
        }


_meta = msgspec.json.Decoder(CheckpointMeta)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointEntry:
    """The name of one checkpoint. Entries sort from old to new: by step, then by generation."""

    step: int
    generation: int
    folder: Path

    @property
    def name(self) -> str:
        """The name of the directory."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class CheckpointCandidate(CheckpointEntry):
    """A valid checkpoint with its meta.json."""

    meta: CheckpointMeta


def name(step: int, generation: int) -> str:
    """Return the name of a checkpoint."""
    return f"step-{step:010d}.g{generation}"


def entry_of(folder: Path) -> CheckpointEntry | None:
    """Parse the name of a checkpoint's directory; None if it is not one."""
    match = _NAME.fullmatch(folder.name)
    return None if match is None else CheckpointEntry(int(match[1]), int(match[2]), folder)


def age(name: str) -> tuple[int, int]:
    """Parse step and generation from the name of a checkpoint. Raises `ValueError` if it is not one."""
    entry = entry_of(Path(name))
    if entry is None:
        raise ValueError(f"{name!r} is not the name of a checkpoint")
    return entry.step, entry.generation


def entries(folder: Path) -> list[CheckpointEntry]:
    """List the checkpoints in a directory, newest first; none if the directory does not exist."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return sorted((entry for path in paths if (entry := entry_of(path)) is not None), reverse=True)


def read_meta(entry: CheckpointEntry) -> CheckpointMeta:
    """Read the meta.json of a checkpoint. Raises CheckpointDamaged."""
    with atomic_files.as_damage(META):
        try:
            meta = _meta.decode((entry.folder / META).read_bytes())
        except UNREADABLE as error:
            raise CheckpointDamaged(f"{META} is damaged ({error})") from error
    if meta.schema not in READABLE:
        raise CheckpointDamaged(f"it has layout {meta.schema}, but this version reads layout {SCHEMA}")
    if not all(map(str.isidentifier, (*meta.parts, *meta.sharded))):
        raise CheckpointDamaged(f"{META} has an invalid component name")
    if not all(_FILE.fullmatch(file) and set(file) != {"."} for files in meta.sharded.values() for file in files):
        raise CheckpointDamaged(f"{META} has an invalid file name")
    if (meta.step, meta.generation) != (entry.step, entry.generation):
        raise CheckpointDamaged(f"{META} is that of step {meta.step} of generation {meta.generation}")
    return meta


def candidate(entry: CheckpointEntry) -> CheckpointCandidate:
    """Return a checkpoint that a user named, without checking the fence. Raises CheckpointDamaged."""
    return CheckpointCandidate(entry.step, entry.generation, entry.folder, read_meta(entry))


PARTS = "elastic_parts"
"""The key of the list of components in an exported file. A file without it is the component `model` itself."""
