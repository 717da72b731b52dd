"""Atomic writes of files and directories, even if the machine crashes.

The one atomic step is the rename of a directory that was written and synced under another name. A rename to an existing
directory that is not empty fails, and exactly one of several concurrent renames succeeds. That holds on local file
systems and on NFS, but not on object stores that are mounted as file systems.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from elastic.errors import CheckpointDamaged, CheckpointError

STALE_S = 3600.0
"""The age at which a staging directory counts as left over. No save writes nothing for an hour."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_IS_FILE = frozenset({errno.ENOTDIR, errno.EEXIST})
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_LASTING = _DENIED | {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})

log = logging.getLogger(__name__)


def explain(error: OSError, doing: str, folder: Path, other: str = "--checkpoint-dir") -> str:
    """Return one line: what failed, where, why, and the fix. `other` is the setting that may name another directory."""
    where = f"{doing} in {folder} on {socket.gethostname()} failed"
    if error.errno in _FULL:
        return f"{where}: no space left ({error.strerror}); free some space, or use another {other}"
    if error.errno in _DENIED:
        return (
            f"{where}: user {os.geteuid()} cannot write there ({error.strerror}); "
            f"fix the permissions or the mount, or use another {other}"
        )
    if error.errno in _IS_FILE:
        return f"{where}: a part of that path is a file; use another {other}"
    return f"{where}: {error.strerror or error}; fix that, or use another {other}"


def is_transient(error: OSError) -> bool:
    """Return whether a disk or a network causes an error, so that a retry may succeed."""
    return error.errno not in _LASTING


@contextmanager
def as_checkpoint_error(doing: str, folder: Path, other: str = "--checkpoint-dir") -> Iterator[None]:
    """Convert an OSError inside the block to a CheckpointError with a fix."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(explain(error, doing, folder, other), transient=is_transient(error)) from error


@contextmanager
def as_damage(name: str) -> Iterator[None]:
    """Convert an OSError inside the block, which reads the file `name`, to CheckpointDamaged."""
    try:
        yield
    except OSError as error:
        text = f"{name} cannot be read ({error.strerror})"
        raise CheckpointDamaged(text, transient=is_transient(error)) from error


def staging(parent: Path, prefix: str) -> Path:
    """Create an empty directory in the same parent as its final name. Its mode follows the umask."""
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def write(path: Path, data: bytes) -> None:
    """Write a new file and sync it to disk."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync the names in a directory to disk, if the file system supports it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def publish(staged: Path, target: Path) -> bool:
    """Rename a staging directory to its final name, atomically. False, with no change, if that name is taken."""
    sync_folder(staged)
    try:
        staged.rename(target)
    except OSError as error:
        if error.errno in _TAKEN:
            return False
        raise
    sync_folder(target.parent)
    return True


def discard(folder: Path) -> None:
    """Remove a published directory: first rename it atomically, then delete its contents. It may be gone already."""
    aside = folder.with_name(f".removed-{secrets.token_hex(8)}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside)


def drop(staged: Path) -> None:
    """Remove a staging directory if it still exists. If that fails, a later save sweeps it."""
    try:
        shutil.rmtree(staged)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("cannot remove %s now: %s", staged, error)


def sweep(parent: Path, prefixes: tuple[str, ...], now: float | None = None) -> None:
    """Remove directories of killed processes: those with one of the prefixes that are older than `STALE_S`."""
    before = (time.time() if now is None else now) - STALE_S
    for path in parent.iterdir():
        if path.name.startswith(prefixes):
            try:
                stale = path.stat().st_mtime < before
            except FileNotFoundError:
                continue  # Another process swept it.
            if stale:
                shutil.rmtree(path, ignore_errors=False)
