"""One sharded part as one folder, written and read by torch.distributed.checkpoint (DCP).

Tensors and plain values are loaded with `weights_only=True`. What DCP itself would unpickle freely is not left to it:
its `.metadata` goes through an unpickler that knows a handful of names, and plain values through `torch.load`.
"""

from __future__ import annotations

import io
import os
import pickle
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, manifest, replicated_part
from elastic.train.comm import byte_collectives
from elastic.train.comm.rank_errors import RankError, decode_errors, encode_error
from elastic.train.statedict.sharded import SavedTensor, Template

METADATA = ".metadata"

_KNOWN = {
    "torch.distributed.checkpoint.metadata": {
        "BytesStorageMetadata",
        "ChunkStorageMetadata",
        "Metadata",
        "MetadataIndex",
        "StorageMeta",
        "TensorProperties",
        "TensorStorageMetadata",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size"},
    "pathlib": {"PosixPath"},
    "collections": {"OrderedDict"},
}
"""All that a `.metadata` may name, besides the types of torch's numbers."""


def write(folder: Path, flat: Mapping[str, Any], group: Any) -> dict[str, manifest.PartFile]:
    """Write a part into a new folder, every rank of `group` its own shards; the files that this rank wrote.

    They are on the disk when this returns. Raises OSError where one is the cause on this rank, CheckpointError for
    what went wrong elsewhere; all ranks raise if one does.
    """
    writer = _ShardWriter(folder)
    try:
        with _explained("saving", folder):
            _call(save, dict(flat), storage_writer=writer, planner=_SavePlanner(folder.name), process_group=group)
    except CheckpointError as error:
        if writer.fs.failure is not None:
            raise writer.fs.failure from error
        raise
    atomic_files.sync_folder(folder)
    return writer.fs.written


def read(folder: Path, files: Mapping[str, manifest.PartFile], template: Template, group: Any) -> dict[str, Any]:
    """Read into what `template` makes: its tensors are filled in place. Every rank of `group` calls it.

    Each file is verified by one rank, `.metadata` by all. Raises CheckpointDamaged and CheckpointError, on all ranks.
    """
    _verify(folder, files, group)
    return _load(folder, template, process_group=group)


def read_whole(folder: Path, files: Mapping[str, manifest.PartFile]) -> dict[str, Any]:
    """Read a part in this process alone, each tensor whole, on the CPU. Raises CheckpointDamaged, CheckpointError."""
    for file, part in files.items():
        replicated_part.verify(folder / file, part)
    return _load(folder, _whole_tensors, no_dist=True)


def _whole_tensors(saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
    return {
        key: None if stored is None else torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
        for key, stored in saved.items()
    }


def _load(folder: Path, template: Template, **ranks: Any) -> dict[str, Any]:
    saved: dict[str, SavedTensor | None] = {}
    for key, stored in metadata(folder).state_dict_metadata.items():
        saved[key] = None
        if isinstance(stored, TensorStorageMetadata):
            saved[key] = SavedTensor(tuple(stored.size), stored.properties.dtype)
    state = template(saved)
    planner = _LoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _explained("loading", folder):
        _call(load, state, storage_reader=_ShardReader(folder), planner=planner, **ranks)
    return state


_NOT_DCPS = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError),
    *(MemoryError, OverflowError, RecursionError),
)
"""What the unpickler raises for what is none, and for lengths in it that no memory holds."""


def metadata(folder: Path) -> Metadata:
    """Read DCP's `.metadata`; CheckpointDamaged when it holds anything but what DCP writes there."""
    try:
        with atomic_files.as_damage(f"{folder.name}/{METADATA}"), (folder / METADATA).open("rb") as file:
            loaded = _MetadataUnpickler(file).load()
    except _NOT_DCPS as error:
        raise CheckpointDamaged(f"{folder.name}/{METADATA} is not DCP's ({error})") from error
    if not isinstance(loaded, Metadata):
        raise CheckpointDamaged(f"{folder.name}/{METADATA} is not DCP's")
    return loaded


def _verify(folder: Path, files: Mapping[str, manifest.PartFile], group: Any) -> None:
    """Verify all files, shared out over the ranks, and tell everybody what was found."""
    rank, world = byte_collectives.rank_and_size(group)
    own = None
    try:
        for index, file in enumerate(sorted(files)):
            if index % world == rank or file == METADATA:
                replicated_part.verify(folder / file, files[file])
        metadata(folder)
    except CheckpointDamaged as error:
        own = RankError(f"{folder.name}: {error}", error.transient)
    for rank_error in decode_errors(byte_collectives.gather(encode_error(own), group)):
        if rank_error is not None:
            raise CheckpointDamaged(rank_error.text, transient=rank_error.transient)


class _MetadataUnpickler(pickle.Unpickler):
    """Takes the names that DCP's metadata needs, and no other.

    DCP writes `.metadata` as a bare pickle and reads it with `pickle.load`, which runs whatever is in it. The reader of
    `torch.load(weights_only=True)`, with these names as `torch.serialization.safe_globals`, would do, but torch opens
    it only for files that `torch.save` wrote (torch 2.13).
    """

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it names {module}.{name}")


class _ChecksumFileSystem(FileSystem):
    """DCP's files: each is summed while it is written, and the reason of a failure is kept."""

    def __init__(self) -> None:
        self.written: dict[str, manifest.PartFile] = {}
        self.failure: OSError | None = None

    @contextmanager
    def create_stream(self, path: str | os.PathLike[str], mode: str) -> Iterator[Any]:
        if mode != "wb":
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        try:
            with Path(path).open("xb", buffering=replicated_part.CHUNK) as file:
                summed = replicated_part.ChecksumWriter(file)
                try:
                    yield summed
                finally:
                    self.failure = self.failure or summed.failure
            self.written[Path(path).name] = summed.part
        except OSError as error:
            self.failure = self.failure or error
            raise

    def rename(self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]) -> None:
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _ShardWriter(FileSystemWriter):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=True, thread_count=1)
        self.fs: _ChecksumFileSystem = _ChecksumFileSystem()

    def storage_meta(self) -> None:
        """Nothing: DCP would note the name of the staging folder, which is gone after the rename."""


class _ShardReader(FileSystemReader):
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return metadata(Path(self.path))


class _SavePlanner(DefaultSavePlanner):
    def __init__(self, part: str) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.part = part

    def create_local_plan(self) -> Any:
        """Refuse what could not be loaded again. What this raises DCP tells to all ranks."""
        plain = io.BytesIO()
        torch.save({key: value for key, value in self.state_dict.items() if not isinstance(value, torch.Tensor)}, plain)
        plain.seek(0)
        replicated_part.require_loadable_file(plain, self.part)
        return super().create_local_plan()


class _LoadPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _call(function: Any, *arguments: Any, **named: Any) -> None:
    """Call DCP without the warning that no process group stands, which is as we want it in a world of one."""
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    function(*arguments, **named)


@contextmanager
def _explained(doing: str, folder: Path) -> Iterator[None]:
    """Turn what DCP raises (not an Exception) into a CheckpointError with the first cause."""
    try:
        yield
    except CheckpointException as error:
        rank, failure = min(error.failures.items())
        cause = failure[0]
        why = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise CheckpointError(f"{doing} the sharded part {folder.name!r} failed on rank {rank}: {why}") from error
