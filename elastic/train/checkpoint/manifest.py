"""What lies in a checkpoint folder, and how it is named.

::

    <checkpoint_dir>/
      step-0000001234.g7/     one checkpoint: written at step 1234 by generation 7; whole or not there
        meta.json             step, generation, mark, and the size and CRC-32 of each file
        scheduler.pt          a replicated part: one file, written by torch.save
        model/                a sharded part: a folder, written by torch.distributed.checkpoint
          __0_0.distcp
          .metadata
      aside-step-…            set aside by --restore_step: no longer counts, removed by nobody but its owner
      rollback.json           what --restore_step did last (see `elastic.train.restore.restore_step`)
      fence/                  who owns the folder (see `elastic.train.checkpoint.fence`)

Names that start with a dot are being written or removed. Generation 0 means: written without elastic-launch.

The checksum tells damage from what was written; it is no proof against malice, and who can write here needs no forged
checksum. So it is CRC-32, which zlib computes three times as fast as SHA-256 (6 and 1.9 GB/s on one core, measured).
Layout 1 had SHA-256 and no sharded parts; it is still read.
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
    """One file of a checkpoint: its size and a checksum of its content, in hex. One of the two checksums is empty."""

    size: int
    sha256: str = ""
    crc32: str = ""


class CheckpointMeta(msgspec.Struct, frozen=True, kw_only=True):
    """What `meta.json` holds. `mark` is the fence's at the time, "" without one; `at` is wall clock, for people.

    `parts` are the replicated ones by name, each the file `<name>.pt`. `sharded` are the others: name, then file in the
    folder of that name. `world` is how many ranks wrote, for people.
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
        """Every file of the checkpoint but this one, by its path in the folder."""
        return {f"{name}.pt": part for name, part in self.parts.items()} | {
            f"{name}/{file}": part for name, files in self.sharded.items() for file, part in files.items()
        }


_meta = msgspec.json.Decoder(CheckpointMeta)


@dataclass(frozen=True, slots=True, order=True)
class CheckpointEntry:
    """One checkpoint by its name. Entries sort from old to new: by step, then by generation."""

    step: int
    generation: int
    folder: Path

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.name


@dataclass(frozen=True, slots=True)
class CheckpointCandidate(CheckpointEntry):
    """A checkpoint that counts and can be tried, and what it says of itself."""

    meta: CheckpointMeta


def name(step: int, generation: int) -> str:
    """Name a checkpoint."""
    return f"step-{step:010d}.g{generation}"


def entry_of(folder: Path) -> CheckpointEntry | None:
    """Read the name of one checkpoint's folder; None if it is not one."""
    match = _NAME.fullmatch(folder.name)
    return None if match is None else CheckpointEntry(int(match[1]), int(match[2]), folder)


def age(name: str) -> tuple[int, int]:
    """Step and generation of a checkpoint, by its folder's name. `ValueError` if that is not one's."""
    entry = entry_of(Path(name))
    if entry is None:
        raise ValueError(f"no checkpoint has the name {name!r}")
    return entry.step, entry.generation


def entries(folder: Path) -> list[CheckpointEntry]:
    """List the checkpoints in a folder, newest first. A folder that is not there has none."""
    try:
        paths = list(folder.iterdir())
    except FileNotFoundError:
        return []
    return sorted((entry for path in paths if (entry := entry_of(path)) is not None), reverse=True)


def read_meta(entry: CheckpointEntry) -> CheckpointMeta:
    """Read what a checkpoint says of itself; CheckpointDamaged says what is wrong with it."""
    with atomic_files.as_damage(META):
        try:
            meta = _meta.decode((entry.folder / META).read_bytes())
        except UNREADABLE as error:
            raise CheckpointDamaged(f"{META} is damaged ({error})") from error
    if meta.schema not in READABLE:
        raise CheckpointDamaged(f"it was written in layout {meta.schema}; this version reads layout {SCHEMA}")
    if not all(map(str.isidentifier, (*meta.parts, *meta.sharded))):
        raise CheckpointDamaged(f"{META} names a part that cannot be one")
    if not all(_FILE.fullmatch(file) and set(file) != {"."} for files in meta.sharded.values() for file in files):
        raise CheckpointDamaged(f"{META} names a file that cannot be one")
    if (meta.step, meta.generation) != (entry.step, entry.generation):
        raise CheckpointDamaged(f"{META} speaks of step {meta.step} of generation {meta.generation}")
    return meta


def candidate(entry: CheckpointEntry) -> CheckpointCandidate:
    """A checkpoint that a person named: the fence is not asked. Raises CheckpointDamaged."""
    return CheckpointCandidate(entry.step, entry.generation, entry.folder, read_meta(entry))


PARTS = "elastic_parts"
"""The key under which an exported file with several parts lists them. One without it is the `model` part itself."""
