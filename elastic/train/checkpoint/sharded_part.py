"""One sharded component as one directory, written and read by torch.distributed.checkpoint (DCP).

Nothing is unpickled without restrictions: tensors and plain values are loaded by `torch.load(weights_only=True)`, and
the `.metadata` of DCP by an unpickler that accepts only the names in `_KNOWN`.
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
from elastic.train import torch_internals
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
"""All names that a `.metadata` may refer to, in addition to torch's dtypes."""


def write(folder: Path, flat: Mapping[str, Any], group: Any) -> dict[str, manifest.PartFile]:
    """Write a component to a new directory, every rank of `group` its shards, and return the files of this rank.

    The files are synced to disk. Raises OSError for an error of this rank's disk, CheckpointError for another error; if
    one rank raises, all do.
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
    """Fill the tree that `template` returns, its tensors in place; a collective of `group`.

    One rank verifies each file, and all verify `.metadata`. Raises CheckpointDamaged and CheckpointError, on all ranks.
    """
    _verify(folder, files, group)
    return _load(folder, template, process_group=group)


def read_whole(folder: Path, files: Mapping[str, manifest.PartFile]) -> dict[str, Any]:
    """Read a component in this process alone, with full tensors on the CPU. Raises like `read`."""
    for file, part in files.items():
        replicated_part.verify(folder / file, part)
    return _load(folder, _whole_tensors, **torch_internals.load_alone())


def _whole_tensors(saved: Mapping[str, SavedTensor | None]) -> dict[str, Any]:
    return {
        key: None if stored is None else torch.empty(stored.shape, dtype=stored.dtype, device="cpu")
        for key, stored in saved.items()
    }


def _load(folder: Path, template: Template, *, function: Any = load, **ranks: Any) -> dict[str, Any]:
    saved: dict[str, SavedTensor | None] = {}
    for key, stored in metadata(folder).state_dict_metadata.items():
        saved[key] = None
        if isinstance(stored, TensorStorageMetadata):
            saved[key] = SavedTensor(tuple(stored.size), stored.properties.dtype)
    state = template(saved)
    planner = _LoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    with _explained("loading", folder):
        _call(function, state, storage_reader=_ShardReader(folder), planner=planner, **ranks)
    return state


_NOT_METADATA = (
    *(pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, IndexError, KeyError),
    *(MemoryError, OverflowError, RecursionError),
)
"""Errors of the unpickler for other data, and for lengths that exceed the memory."""


def metadata(folder: Path) -> Metadata:
    """Read DCP's `.metadata`. Raises CheckpointDamaged if it contains anything that DCP does not write."""
    try:
        with atomic_files.as_damage(f"{folder.name}/{METADATA}"), (folder / METADATA).open("rb") as file:
            loaded = _MetadataUnpickler(file).load()
    except _NOT_METADATA as error:
        raise CheckpointDamaged(f"{folder.name}/{METADATA} is not metadata of DCP ({error})") from error
    if not isinstance(loaded, Metadata):
        raise CheckpointDamaged(f"{folder.name}/{METADATA} is not metadata of DCP")
    return loaded


def _verify(folder: Path, files: Mapping[str, manifest.PartFile], group: Any) -> None:
    """Verify all files, distributed over the ranks. Raises CheckpointDamaged, the same on all ranks."""
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
    """Accepts the names that DCP's metadata needs, and no others.

    DCP writes `.metadata` as a plain pickle and reads it with `pickle.load`, which executes any code in it.
    `torch.load(weights_only=True)` with these names as `torch.serialization.safe_globals` would be enough, but it only
    reads files that `torch.save` wrote (torch 2.13).
    """

    def find_class(self, module: str, name: str) -> Any:
        if name in _KNOWN.get(module, ()) or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"it refers to {module}.{name}")


class _ChecksumFileSystem(FileSystem):
    """The file system of DCP, which computes checksums and keeps the OSError of a failed write."""

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
        """Return None: DCP would record the name of the staging directory, which the rename changes."""


class _ShardReader(FileSystemReader):
    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        return metadata(Path(self.path))


class _SavePlanner(DefaultSavePlanner):
    def __init__(self, part: str) -> None:
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)
        self.part = part

    def create_local_plan(self) -> Any:
        """Reject objects that could not be loaded. DCP raises the error on all ranks."""
        plain = io.BytesIO()
        torch.save({key: value for key, value in self.state_dict.items() if not isinstance(value, torch.Tensor)}, plain)
        plain.seek(0)
        replicated_part.require_loadable_file(plain, self.part)
        return super().create_local_plan()


class _LoadPlanner(DefaultLoadPlanner):
    def load_bytes(self, read_item: Any, value: io.BytesIO) -> None:
        self.state_dict[read_item.dest_index.fqn] = torch.load(value, weights_only=True)


def _call(function: Any, *arguments: Any, **named: Any) -> None:
    """Call DCP without its warning that there is no process group, which is normal at world size 1."""
    warnings.filterwarnings("ignore", message="torch.distributed is (disabled, )?unavailable or uninitialized")
    function(*arguments, **named)


@contextmanager
def _explained(doing: str, folder: Path) -> Iterator[None]:
    """Convert the CheckpointException of DCP, not an Exception, to a CheckpointError with the root cause."""
    try:
        yield
    except CheckpointException as error:
        rank, failure = min(error.failures.items())
        cause = failure[0]
        why = f"{type(cause).__name__}: {cause}".splitlines()[0]
        raise CheckpointError(f"{doing} the sharded component {folder.name!r} failed on rank {rank}: {why}") from error
