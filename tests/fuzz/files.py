"""What lies in a checkpoint folder and in the memory tier: it is read, or it is damaged, and nothing else happens."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import msgspec
import torch
from torch.distributed.checkpoint.state_dict_saver import save

from elastic.errors import CheckpointError
from elastic.train.checkpoint import fence, manifest, sharded_part
from elastic.train.checkpoint.manifest import META, CheckpointEntry, CheckpointMeta, PartFile
from elastic.train.memory import slot as slot_module
from elastic.train.memory.slot import LeafSpec, Slot, SlotHead, SlotLayout
from elastic.train.restore import restore_step
from elastic.train.statedict import tree
from tests.fuzz.target import Target, scratch

FOLDER = scratch("files")
SLOT_BYTES = 1 << 16
METADATA_BYTES = 1 << 30
"""What reading a `.metadata` may take: a few bytes of a pickle can ask for 64 GB."""


def folder(name: str) -> Path:
    path = FOLDER / name
    path.mkdir(exist_ok=True)
    return path


def meta(data: bytes) -> None:
    """The meta.json of a checkpoint."""
    at = folder(manifest.name(7, 2))
    (at / META).write_bytes(data)
    entry = CheckpointEntry(7, 2, at)
    with contextlib.suppress(CheckpointError):
        found = manifest.read_meta(entry)
        for name in found.files:
            assert (at / name).resolve().is_relative_to(at.resolve()), name


def fenced(data: bytes) -> None:
    """The mark of a folder, and then a claim on it."""
    at = folder("fenced")
    marks = at / "fence"
    shutil.rmtree(marks, ignore_errors=True)
    marks.mkdir()
    with contextlib.suppress(CheckpointError):
        fence.claim(at, "i1/1")
        for path in marks.iterdir():
            (path / fence.CLAIM).write_bytes(data)
    for look in (lambda: fence.current(at), lambda: fence.claim(at, "i1/2"), lambda: fence.check(at, "i1/2")):
        with contextlib.suppress(CheckpointError):
            look()


def rolled(data: bytes) -> None:
    """What --restore-step did last."""
    at = folder("rolled")
    (at / restore_step.RECORD).write_bytes(data)
    with contextlib.suppress(CheckpointError):
        record = restore_step.rolled_back(at)
        if record is not None:
            restore_step.names_aside(record)


def dcp(data: bytes) -> None:
    """The `.metadata` of a sharded part, which torch would unpickle freely."""
    at = folder("sharded")
    (at / sharded_part.METADATA).write_bytes(data)
    with contextlib.suppress(CheckpointError), memory_limit(METADATA_BYTES):
        sharded_part.metadata(at)


@contextlib.contextmanager
def memory_limit(more_bytes: int) -> Iterator[None]:
    """Let this process take so much more memory, and get a MemoryError for the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def slot(data: bytes) -> None:
    """A slot of the memory tier: what is odd in any way is not there. Its checksum fits, as an adversary's would."""
    fd = os.memfd_create("fuzz")
    try:
        os.ftruncate(fd, SLOT_BYTES)
        head, rest = data[:64], data[64:][: SLOT_BYTES - slot_module.DATA_AT]
        if len(head) == slot_module._HEADER.size:
            fields = list(slot_module._HEADER.unpack(head))
            start, end = fields[2], fields[2] + fields[3]
            fields[4] = zlib.crc32(rest[start:end]) if end < SLOT_BYTES else 0
            head = slot_module._HEADER.pack(*fields)
        os.pwrite(fd, head, 0)
        os.pwrite(fd, rest, slot_module.DATA_AT)
        content = Slot(fd, SLOT_BYTES).read()
        if content is not None:
            assert len(content.meta.leaves) == len(content.tensors)
    finally:
        os.close(fd)


def good_slot() -> bytes:
    fd = os.memfd_create("fuzz")
    try:
        os.ftruncate(fd, SLOT_BYTES)
        one = Slot(fd, SLOT_BYTES)
        plan = SlotLayout([LeafSpec("", torch.float32, (4, 4)), LeafSpec("w", torch.int64, (8,))])
        head = SlotHead(mark="i1/2", step=7, count=1, rank=0, world=2, local_world=1, replicated=True, sharded=False)
        meta = plan.meta(head, tree.pack({"a": [1, 2.5, "x"]})[0])
        sizes = one.write(plan, meta, [torch.ones(4, 4), torch.arange(8)])
        raw = os.pread(fd, SLOT_BYTES, 0)
        return raw[:64] + raw[slot_module.DATA_AT : slot_module.DATA_AT + sizes.data + sizes.meta]
    finally:
        os.close(fd)


def good_metadata() -> bytes:
    at = FOLDER / "made"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # That there is no process group is meant so.
        save({"w": torch.ones(4), "n": 3}, checkpoint_id=at, no_dist=True)
    return (at / ".metadata").read_bytes()


META_GOOD = CheckpointMeta(
    step=7,
    generation=2,
    mark="i1/2",
    parts={"model": PartFile(10, crc32="00000000"), "old": PartFile(3, sha256="0" * 64)},
    at=1e9,
    sharded={"big": {"__0_0.distcp": PartFile(1, crc32="00000000"), ".metadata": PartFile(2, crc32="00000000")}},
)
RECORD_GOOD = b'{"run":"i1/1","step":7,"generation":2,"aside":["aside-step-0000000009.g2"],"at":1e9}'
CLAIM_GOOD = b'{"mark":"i1/1","accepted":["step-0000000009.g2"],"incarnations":["i0","i1"]}'
TARGETS = (
    Target("checkpoint meta", meta, (msgspec.json.encode(META_GOOD),)),
    Target("fence", fenced, (CLAIM_GOOD,)),
    Target("rollback", rolled, (RECORD_GOOD,)),
    Target("dcp metadata", dcp, (good_metadata(),)),
    Target("memory slot", slot, (good_slot(),)),
)
