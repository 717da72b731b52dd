"""One start of one worker in its log, which is bounded (`--log-max-bytes`).

A log is kept in several files, two unless `--log-rotate` says otherwise, which share the bound. One that would grow
beyond its share is renamed to `<name>.1`, the previous `<name>.1` becomes `<name>.2` and so on, and the oldest is
deleted. The new file begins with the header of this start, its first lines, one line that says how much is left out,
and the newest lines. So each file is complete, the newest file has what a user wants to see first, the first and the
last lines of the worker, and the end of a log can be read without the other file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

from launcher.logs.writer_protocol import UNBOUND, LogLimits
from launcher.system import descriptors

HEAD_BYTES = 64 << 10
"""Bytes from the beginning of a start that are repeated in each of its files."""
CARRY_BYTES = 256 << 10
"""Bytes from the end of a renamed file that are repeated in the next one."""


class RotatingFile:
    """One start of one worker in its log. Everything is appended at once; nothing is kept in memory.

    Output that cannot be written (a full disk, a limit of the file's size) is lost, but the worker continues:
    `complain` is called once, and a line in the log says how much is missing once it is writable again. Nothing here
    raises `OSError`.
    """

    def __init__(self, path: Path, header: str, complain: Callable[[str], None], bound: LogLimits = UNBOUND) -> None:
        """Open the log and write the header, on a separate line. `bound` is that of all its files."""
        self.path = path
        self._header = header
        self._complain = complain
        self._complained = False
        self._older = bound.older
        self._most: int | None = None
        """Bytes of one file."""
        self._missing = 0
        self._why = ""
        self._own = 0
        self._fd = -1
        """The file descriptor; -1 if there is none, and then output is dropped."""
        self.begins = 0
        """Where this start's own text begins, in bytes."""
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = _open(path)
            measured = stat.S_ISREG(os.fstat(self._fd).st_mode)  # A device or a pipe has no size.
            if bound.bytes_max is not None and measured:
                self._most = bound.bytes_max // (1 + bound.older)
            self.line(header)
            self.begins = _size(self._fd)
        except OSError as error:
            self._fail(error)
            self._switch_to(-1)

    def write(self, data: bytes | memoryview) -> None:
        """Append bytes of the worker unchanged."""
        try:
            if self._most is not None and _size(self._fd) + len(data) > self._most:
                self._begin_next(self._most)
            self._write_missing_notice()
            while data:
                wrote = os.write(self._fd, data)
                self._own += wrote
                data = data[wrote:]
        except OSError as error:
            self._lose(data, error)

    def line(self, text: str) -> None:
        """Append a line of the launcher; ends an unfinished line of the worker first."""
        try:
            self._write_missing_notice()
            _put(self._fd, own_line(self._fd, text))
        except OSError as error:
            self._lose(text.encode(errors="surrogateescape") + b"\n", error)

    def note_lost_bytes(self, count: int, why: str) -> None:
        """Note that `count` bytes were lost before they arrived. A line about it precedes the next line or piece."""
        if count:
            self._missing += count
            self._why = why

    def close(self) -> None:
        """Close the file; a line at its end reports missing bytes."""
        try:
            self._write_missing_notice()
        except OSError as error:
            self._fail(error)
        self._switch_to(-1)

    def _switch_to(self, fd: int) -> None:
        """Write into this file from now on, and close the one before, whose disk may report its errors only now."""
        before, self._fd = self._fd, fd
        if before >= 0 and (error := descriptors.close(before)) is not None:
            self._fail(error)

    def _begin_next(self, most: int) -> None:
        """Rename the file and continue in a new one. Raises `OSError`; then the old one still exists.

        Each step is one rename, from the oldest file on: whenever the process is killed, each file exists once.
        """
        aside = _rotated_path(self.path, 1)
        begins, end = self.begins, _size(self._fd)
        head_bytes, carry_bytes = min(HEAD_BYTES, most // 8), min(CARRY_BYTES, most // 4)
        if end - begins <= head_bytes + carry_bytes:
            head, carried = os.pread(self._fd, end - begins, begins), b""
        else:
            head = os.pread(self._fd, head_bytes, begins)
            head = head[: head.rfind(b"\n") + 1] or head
            carried = os.pread(self._fd, carry_bytes, end - carry_bytes)
            carried = carried[carried.find(b"\n") + 1 :]
        # Otherwise another process has moved or renamed the file already.
        in_place = descriptors.is_file_at(self._fd, self.path)
        if in_place:
            for number in range(self._older - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(_rotated_path(self.path, number), _rotated_path(self.path, number + 1))
            os.replace(self.path, aside)
        try:
            new = _open(self.path)
        except OSError:
            if in_place:
                os.replace(aside, self.path)
            raise
        self._switch_to(new)
        self.begins = len(self._header.encode(errors="surrogateescape")) + 1
        _put(new, own_line(new, self._header) + head)
        if carried:
            left_out = max(self._own - len(head) - len(carried), 0)
            gap = f"{left_out} bytes of this start are left out here, see {aside.name}; its last {len(carried)} follow"
            _put(new, own_line(new, f"==== {gap} ===="))
            _put(new, carried)

    def _write_missing_notice(self) -> None:
        if self._missing:
            text = f"==== {self._missing} bytes are missing here: {self._why} ===="
            _put(self._fd, own_line(self._fd, text))
            self._missing = 0

    def _lose(self, data: bytes | memoryview, error: OSError) -> None:
        self._missing += len(data)
        self._fail(error)

    def _fail(self, error: OSError) -> None:
        self._why = error.strerror or str(error)
        if not self._complained:
            self._complained = True
            self._complain(f"cannot write {self.path} ({self._why}); its worker's output is not logged")


def append_line(path: Path, text: str) -> None:
    """Append a line of the launcher to a log that may be closed already. Raises `OSError`."""
    with os.fdopen(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC), "ab+", buffering=0) as file:
        file.write(own_line(file.fileno(), text))


def _rotated_path(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def own_line(fd: int, text: str) -> bytes:
    """Return the bytes of a line of the launcher; they end an unfinished line of the worker first."""
    end = _size(fd)
    whole = end == 0 or os.pread(fd, 1, end - 1) in (b"\n", b"")
    return f"{'' if whole else chr(10)}{text}\n".encode(errors="surrogateescape")


def _size(fd: int) -> int:
    """Return the bytes in a file; 0 for a pipe, which cannot be read back."""
    try:
        return os.lseek(fd, 0, os.SEEK_END)
    except OSError as error:
        if error.errno != errno.ESPIPE:
            raise
        return 0


def _open(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)


def _put(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]
