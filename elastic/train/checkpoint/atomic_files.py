"""Files and folders that are whole or not there, also after a crash of the machine.

The one atomic step is the rename of a folder that was written and synced under another name. A rename onto a folder
that is there and not empty fails, and exactly one of several that race wins; this holds on local file systems and on
NFS. It does not hold on object stores dressed up as file systems.
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
"""Age at which a staging folder counts as left over. No save takes so long without writing anything."""

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_DENIED = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
_IS_FILE = frozenset({errno.ENOTDIR, errno.EEXIST})
_TAKEN = frozenset({errno.ENOTEMPTY, errno.EEXIST})
_LASTING = _DENIED | {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG}
_NO_FOLDER_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF})

log = logging.getLogger(__name__)


def explain(error: OSError, doing: str, folder: Path, other: str = "--checkpoint_dir") -> str:
    """Say what failed, where, why, and what mends it, in one line. `other` is what may be given another of."""
    where = f"{doing} in {folder} on {socket.gethostname()} failed"
    if error.errno in _FULL:
        return f"{where}: no space left ({error.strerror}); free some, or give another {other}"
    if error.errno in _DENIED:
        return (
            f"{where}: it cannot be written by user {os.geteuid()} ({error.strerror}); "
            f"mend its rights or its mount, or give another {other}"
        )
    if error.errno in _IS_FILE:
        return f"{where}: a part of that path is a file; give another {other}"
    return f"{where}: {error.strerror or error}; mend that, or give another {other}"


def is_transient(error: OSError) -> bool:
    """Tell whether a disk or a network is behind an error, which may do better at the next try."""
    return error.errno not in _LASTING


@contextmanager
def as_checkpoint_error(doing: str, folder: Path, other: str = "--checkpoint_dir") -> Iterator[None]:
    """Turn an OSError inside the block into a CheckpointError that names the mend."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(explain(error, doing, folder, other), transient=is_transient(error)) from error


@contextmanager
def as_damage(name: str) -> Iterator[None]:
    """Turn an OSError inside the block, which reads the file `name`, into CheckpointDamaged."""
    try:
        yield
    except OSError as error:
        text = f"{name} cannot be read ({error.strerror})"
        raise CheckpointDamaged(text, transient=is_transient(error)) from error


def staging(parent: Path, prefix: str) -> Path:
    """Make a new empty folder beside the place where it will be published. Its mode follows the umask."""
    folder = parent / f"{prefix}{secrets.token_hex(8)}"
    folder.mkdir()
    return folder


def write(path: Path, data: bytes) -> None:
    """Write a new file and wait until the disk has it."""
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Wait until the disk has the folder's names. File systems that cannot do this are taken as they are."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise
    finally:
        os.close(handle)


def publish(staged: Path, target: Path) -> bool:
    """Give a staged folder its name, atomically. False, and nothing happened, when that name is taken."""
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
    """Remove a published folder: first its name, in one step, then what is in it. One that is gone is no error."""
    aside = folder.with_name(f".removed-{secrets.token_hex(8)}")
    try:
        folder.rename(aside)
    except FileNotFoundError:
        return
    shutil.rmtree(aside)


def drop(staged: Path) -> None:
    """Remove a staging folder if it is still there and can be removed; otherwise a later save sweeps it."""
    try:
        shutil.rmtree(staged)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("%s cannot be removed now: %s", staged, error)


def sweep(parent: Path, prefixes: tuple[str, ...], now: float | None = None) -> None:
    """Remove folders that a killed process left over: named with one of the prefixes and older than `STALE_S`."""
    before = (time.time() if now is None else now) - STALE_S
    for path in parent.iterdir():
        if path.name.startswith(prefixes):
            try:
                stale = path.stat().st_mtime < before
            except FileNotFoundError:
                continue  # Somebody else swept it.
            if stale:
                shutil.rmtree(path, ignore_errors=False)
