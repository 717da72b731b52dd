"""Manages the file descriptors of this process.

Standard descriptors that the caller closed (`2>&-`), or whose reader has gone, become /dev/null.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


def open_standard() -> None:
    """Open 0, 1 and 2 if they are closed, for this process and its children, and make `sys.stdin` etc. usable.

    Otherwise the next file or socket would become the child's stderr, and a message would raise. Open ones stay
    unchanged.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # EBADF.
            opened = os.open(os.devnull, os.O_RDWR)  # The lowest free number is this one.
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", errors="surrogateescape", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115


def write_stderr(text: str) -> bool:
    """Write a text to stderr as it is; return False if it could not be written, which changes nothing else."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        return False
    return True


def write_stderr_line(text: str, who: str = "elastic-launch", command: str = "") -> bool:
    """Write one line of `who` to stderr; return whether that succeeded. A failure has no other effect.

    The text of a server or its certificate may have any characters: unprintable ones become spaces, and several spaces
    one. `command` follows unchanged on a separate line, so that users can paste it into a shell.
    """
    shown = "".join(char if char.isprintable() else " " for char in text)
    line = f"{who}: {' '.join(shown.split())}\n"
    return write_stderr(f"{line}{command}\n" if command else line)


def discard_stream(stream: TextIO) -> None:
    """Discard what a stream could not write: Python would try again at its exit, and fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def discard_unflushed() -> None:
    """Discard unwritable output, so that Python's exit does not fail and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard_stream(stream)


def close(fd: int) -> OSError | None:
    """Close a descriptor in any case; return the error that its disk reports only now, None if there is none.

    A disk with a quota, or a network disk, may report failed writes only here (EDQUOT, ENOSPC, EIO). A caller that has
    written must report the error; one that has only read, or held a lock, can ignore it.
    """
    try:
        os.close(fd)
    except OSError as error:
        return error
    return None


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor that only reads or holds a lock at the end of the block."""
    try:
        yield fd
    finally:
        close(fd)


def is_file_at(fd: int, path: Path) -> bool:
    """Return whether `path` still names the file that is open as `fd`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def ready(fd: int, events: int, wait_s: float) -> bool:
    """Wait for one of these `events` of poll(2), or for the other end to close; False if none comes."""
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(max(0.0, wait_s) * 1000))


def widen_pipe(fd: int, size: int) -> None:
    """Enlarge the buffer of a pipe to `size` bytes, unless the user's limit for pipes is reached."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)


def keep_only(keep: Collection[int]) -> None:
    """Close all descriptors but these, in a forked process; 0, 1 and 2 become /dev/null.

    Otherwise the reader of a pipe would also wait for this process. The function lists the open descriptors: the limit
    may be a billion (containers), and closing all numbers takes minutes if the kernel cannot do it in one call.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # The descriptor of the listing is closed already.
                os.close(fd)
