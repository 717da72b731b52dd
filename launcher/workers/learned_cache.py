"""What scripts of this user import, stored on disk between jobs: one small file per command, in the user's cache.

    $XDG_CACHE_HOME or ~/.cache, /elastic-launch/imports/<key>.json

It can be deleted at any time. A file that is damaged, belongs to another user or is writable by others counts as
absent, and so does the list of a script one of whose own files has changed. A disk that fails, or does not respond,
costs a debug message.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Final, TypeVar

import msgspec

from elastic._decode import UNREADABLE
from elastic._disk.replace import replace_file
from elastic.channel.messages import (
    MODULES_MAX,
    OWN_FILES_MAX,
    TEXT_MAX,
    ModuleName,
    ScriptImports,
    truncate_text,
)
from launcher import __version__
from launcher.config.config import Config
from launcher.nursery.preload import stamp
from launcher.workers.nursery_process import out_of_date

FILES_MAX: Final = 64
"""Commands that are stored; the least recently used one is dropped."""
BYTES_MAX: Final = 512 << 10
"""The largest size of a file; it has the names of the user's files twice, and a reason for each module left out."""
WHY_MAX: Final = 500
LIMIT_S: Final = 2.0
"""How long a node waits for the disk at its start; a home directory on the network may hang."""
ABANDONED_S: Final = 3600.0
"""After this time a file that an interrupted write has left is deleted."""

_Answer = TypeVar("_Answer")

Stamp = Annotated[str, msgspec.Meta(max_length=2 * TEXT_MAX)]
"""The state of a file (`launcher.nursery.preload.stamp`)."""


class UnfitModule(msgspec.Struct, frozen=True):
    """A module that must not be loaded before the script imports it, and why; `file` is its stamp at that time."""

    name: ModuleName
    why: Annotated[str, msgspec.Meta(max_length=WHY_MAX)]
    file: Stamp


class LearnedImports(msgspec.Struct, frozen=True):
    """What a script imports, and which of it is unfit; `own` are the stamps of the user's files at that time."""

    imports: ScriptImports
    own: Annotated[tuple[Stamp, ...], msgspec.Meta(min_length=1, max_length=OWN_FILES_MAX)]
    unfit: Annotated[tuple[UnfitModule, ...], msgspec.Meta(max_length=MODULES_MAX)] = ()


_decoder: Final = msgspec.json.Decoder(LearnedImports)


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the directory of the lists, which need not exist; None for a user without a home directory."""
    bases = environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    base = next(filter(os.path.isabs, bases), None)
    return None if base is None else Path(base) / "elastic-launch" / "imports"


def command_key(config: Config, folder: str | None, environ: Mapping[str, str]) -> str:
    """Return the name of a command's list: another Python, script, argument or directory has another list.

    `folder` is where Python looks first for modules of the script.
    """
    script = ["-m", config.script] if config.module else [os.path.realpath(config.script)]
    python = [sys.executable, sys.version, __version__, environ.get("PYTHONPATH", "")]
    return hashlib.sha256(repr([python, script, config.script_args, folder]).encode()).hexdigest()


def read_list(folder: Path, key: str, *, use: bool = True) -> LearnedImports | None:
    """Return the valid list of a command, None if there is none; with `use` it is marked as used. Raises `OSError`.

    A module whose file has changed since it was found unfit may be tried again: it is not in `unfit`.
    """
    if not _is_ours(folder):
        return None
    try:
        fd = os.open(_path(folder, key), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        status = os.fstat(fd)
        if not (stat.S_ISREG(status.st_mode) and _is_private(status)):
            return None
        with open(fd, "rb", closefd=False) as file:
            data = file.read(BYTES_MAX + 1)
        if use:
            with contextlib.suppress(OSError):  # The disk may be mounted read-only.
                os.utime(fd)
    finally:
        os.close(fd)
    try:
        learned = _decoder.decode(data) if len(data) <= BYTES_MAX else None
    except UNREADABLE:
        return None
    if learned is None or not _hold(learned.own):
        return None
    return msgspec.structs.replace(learned, unfit=tuple(unfit for unfit in learned.unfit if _hold((unfit.file,))))


def known_lists(folder: Path) -> list[LearnedImports]:
    """Return all valid lists, the most recently used one first."""
    try:
        paths = sorted(folder.glob("*.json"), key=lambda path: path.lstat().st_mtime, reverse=True)
        return [learned for path in paths if (learned := read_list(folder, path.stem, use=False)) is not None]
    except OSError:
        return []


def write_list(folder: Path, key: str, learned: LearnedImports) -> None:
    """Write a list, and drop the least recently used ones. Raises `OSError`.

    Nothing is written below another user's directory: root may run with the home of a user, who could not delete it.
    """
    data = msgspec.json.encode(learned)
    there = folder
    while not there.exists():
        there = there.parent
    if len(data) > BYTES_MAX or not _is_private(there.stat()):
        return
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if _is_ours(folder):
        replace_file(_path(folder, key), data, 0o600)
        _prune(folder)


def stamps(imports: ScriptImports) -> tuple[str, ...]:
    """Return the stamps of the user's files as they are now; may wait for a disk."""
    return tuple(stamp(own.file) for own in imports.own)


class LearnedCache:
    """The list of one command. Threads read and write it, so that a disk that hangs does not block the loop."""

    def __init__(self, folder: Path | None, key: str, debug: Callable[[str], None]) -> None:
        """`folder` None: there is no cache. `debug` gets a message when the disk fails."""
        self._folder = folder
        self._key = key
        self._debug = debug
        self._stamped: tuple[ScriptImports, tuple[str, ...]] | None = None
        self._waiting: tuple[ScriptImports, Mapping[str, str]] | None = None
        self._writing = False

    async def read(self, limit_s: float = LIMIT_S) -> LearnedImports | None:
        """Return the list; None if there is no valid one, or the disk does not respond in time."""
        if self._folder is None:
            return None
        try:
            async with asyncio.timeout(limit_s):
                return await _in_thread(functools.partial(read_list, self._folder, self._key))
        except TimeoutError:
            self._debug(f"{self._folder} has not responded for {limit_s:g} s; no list of imports is read from it")
        except OSError as error:
            self._debug(f"cannot read {self._folder} ({error.strerror}); no list of imports is read from it")
        return None

    async def write(self, imports: ScriptImports, unfit: Mapping[str, str]) -> None:
        """Store what the script of a worker imports, and why some modules are unfit.

        Call this as soon as the list has arrived: the user's files count as they are at the first call with it. Returns
        when the list is written; a call meanwhile leaves its list to the call that is writing.
        """
        self._waiting = imports, dict(unfit)
        if self._writing or self._folder is None:
            return
        self._writing = True
        try:
            while (newest := self._waiting) is not None:
                self._waiting = None
                await _in_thread(functools.partial(self._write, self._folder, *newest))
        except (OSError, ValueError) as error:  # The latter of a path with a null character.
            why = error.strerror if isinstance(error, OSError) else error
            self._debug(f"cannot write {self._folder} ({why}); the list of imports is not stored")
        finally:
            self._writing = False

    def _write(self, folder: Path, imports: ScriptImports, unfit: Mapping[str, str]) -> None:
        if not imports.own:
            return  # A later job could not determine whether the list is still valid.
        if self._stamped is None or self._stamped[0] != imports:
            self._stamped = imports, stamps(imports)
        left_out = tuple(
            UnfitModule(module.name, truncate_text(unfit[module.name], WHY_MAX), stamp(module.file))
            for module in imports.modules
            if module.name in unfit
        )
        write_list(folder, self._key, LearnedImports(imports, self._stamped[1], left_out))


def _path(folder: Path, key: str) -> Path:
    return folder / f"{key}.json"


def _is_ours(folder: Path) -> bool:
    """Return whether only this user can write to the directory, and to the one above it."""
    try:
        found = folder.parent.lstat(), folder.lstat()
    except FileNotFoundError:
        return False
    return all(stat.S_ISDIR(status.st_mode) and _is_private(status) for status in found)


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & 0o022


def _hold(files: Sequence[str]) -> bool:
    """Return whether files still have these stamps."""
    try:
        return not out_of_date(files)
    except ValueError:  # A path with a null character, in a file that was edited.
        return False


def _prune(folder: Path) -> None:
    """Delete the surplus lists, and what interrupted writes have left."""
    lists = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # Another job may delete it at this moment.
            used_at_s = path.lstat().st_mtime
            if path.suffix == ".json":
                lists.append((used_at_s, path))
            elif path.suffix == ".new" and time.time() - used_at_s > ABANDONED_S:
                path.unlink()
    for _, path in sorted(lists)[:-FILES_MAX]:
        with contextlib.suppress(OSError):
            path.unlink()


async def _in_thread(work: Callable[[], _Answer]) -> _Answer:
    """Return what `work` returns or raises, in a thread that does not keep this process from exiting."""
    answer: Future[_Answer] = Future()
    answer.set_running_or_notify_cancel()  # So that the end of a wait for it does not cancel it.

    def run() -> None:
        try:
            answer.set_result(work())
        except BaseException as error:  # noqa: BLE001  # Raised where it is awaited.
            answer.set_exception(error)

    threading.Thread(target=run, name="imports", daemon=True).start()
    return await asyncio.wrap_future(answer)
