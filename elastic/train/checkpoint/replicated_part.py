"""One replicated component as one file: written by torch.save with a checksum, which is verified on reading."""

from __future__ import annotations

import os
import pickle
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, cast

from elastic.errors import CheckpointDamaged, CheckpointError
from elastic.train.checkpoint import atomic_files, manifest

CHUNK = 1 << 20
"""Bytes that are written and summed at a time: few enough to stay in the CPU's cache for both."""


class ChecksumWriter:
    """A file for torch.save that computes the checksum and keeps the OSError of a write, which torch hides."""

    def __init__(self, file: IO[bytes]) -> None:
        """Write to `file`, which must be at its start."""
        self._file = file
        self._crc = 0
        self._size = 0
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write all of a buffer."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), CHUNK):
            piece = view[start : start + CHUNK]
            try:
                self._file.write(piece)
            except OSError as error:
                self.failure = error
                raise
            self._crc = zlib.crc32(piece, self._crc)
        self._size += len(view)
        return len(view)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._size

    def flush(self) -> None:
        """Flush the buffer to the operating system."""
        try:
            self._file.flush()
        except OSError as error:
            self.failure = error
            raise

    def close(self) -> None:
        """Flush the buffer. The caller that opened the file closes it."""
        self.flush()

    def fileno(self) -> int:
        """Return the file descriptor, for fsync."""
        self.flush()
        return self._file.fileno()

    @property
    def part(self) -> manifest.PartFile:
        """The entry of the file in meta.json."""
        return manifest.PartFile(self._size, crc32=f"{self._crc:08x}")


def write(path: Path, tree: Any) -> manifest.PartFile:
    """Write a component to a new file and sync it to disk.

    Raises OSError, and CheckpointError if the tree has objects that `read` would reject.
    """
    part = save_file(path, tree)
    require_loadable_file(path, path.stem)
    return part


def save_file(path: Path, tree: Any) -> manifest.PartFile:
    """Write a new file as `torch.save` does, and sync it to disk.

    Raises OSError where `torch.save` would raise a RuntimeError without the reason.
    """
    import torch

    with path.open("xb", buffering=CHUNK) as file:
        summed = ChecksumWriter(file)
        try:
            torch.save(tree, cast("IO[bytes]", summed))
        except RuntimeError as error:
            if summed.failure is None:
                raise
            raise summed.failure from error
        os.fsync(summed.fileno())
    return summed.part


def write_all(folder: Path, trees: Mapping[str, Any]) -> dict[str, manifest.PartFile]:
    """Write components to files in a directory, each named after its component. Raises like `write`."""
    return {name: write(folder / f"{name}.pt", tree) for name, tree in trees.items()}


def require_loadable_file(file: Any, part: str) -> None:
    """Raise CheckpointError if `file`, written by torch.save, has objects that `read` would reject."""
    import torch

    require_loadable(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(file)), part)


def require_loadable(unsafe: Sequence[str], part: str) -> None:
    """Raise CheckpointError if a component has objects of unsafe classes."""
    if unsafe:
        raise CheckpointError(
            f"component {part!r} contains {', '.join(unsafe)}, which torch.load(weights_only=True) rejects; save "
            "tensors, numbers, strings, lists and dicts, or allow it with torch.serialization.add_safe_globals"
        )


def read(path: Path, part: manifest.PartFile, map_location: Any) -> Any:
    """Read a component. Raises CheckpointDamaged if the size or checksum of its file differs from `part`.

    A second thread computes the checksum while this one loads the file, so that a file that is not cached is read from
    disk once. Raises CheckpointError for objects that `torch.load(weights_only=True)` rejects.
    """
    import torch

    try:
        with (
            atomic_files.as_damage(path.name),
            path.open("rb") as file,
            ThreadPoolExecutor(1, "elastic-verify") as pool,
        ):
            _check_size(path, os.fstat(file.fileno()).st_size, part)
            verdict = pool.submit(verify, path, part)
            try:
                return torch.load(file, map_location=map_location, weights_only=True)
            finally:
                verdict.result()  # If both fail, this error wins: damage explains the other one.
    except pickle.UnpicklingError as error:
        raise CheckpointError(
            f"{path} contains more than tensors, numbers, strings, lists and dicts, which is not safe to load: {error}"
        ) from error


def verify(path: Path, part: manifest.PartFile) -> None:
    """Verify a file. Raises CheckpointDamaged if its size or checksum differs from `part`."""
    import hashlib

    with atomic_files.as_damage(path.name), path.open("rb", buffering=0) as file:
        _check_size(path, os.fstat(file.fileno()).st_size, part)
        if part.crc32:
            right = f"{_crc32(file):08x}" == part.crc32
        else:
            right = hashlib.file_digest(file, "sha256").hexdigest() == part.sha256
    if not right:
        raise CheckpointDamaged(f"the checksum of {path.name} is wrong")


def _check_size(path: Path, size: int, part: manifest.PartFile) -> None:
    if size != part.size:
        raise CheckpointDamaged(f"{path.name} has {size} bytes instead of {part.size}")


def _crc32(file: Any) -> int:
    buffer = memoryview(bytearray(CHUNK))
    crc = 0
    while count := file.readinto(buffer):
        crc = zlib.crc32(buffer[:count], crc)
    return crc
