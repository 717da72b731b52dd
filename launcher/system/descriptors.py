"""Which descriptors this process has.

Standard ones that the caller closed (`2>&-`), or that nobody reads any more, become /dev/null.
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
    """Make 0, 1 and 2 open, here and in every child, and `sys.stdin`, `sys.stdout` and `sys.stderr` usable.

    Otherwise the next file or socket would become the child's stderr, and a message would be a crash. What is open
    stays as it is.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:  # It can only be EBADF.
            opened = os.open(os.devnull, os.O_RDWR)  # The lowest free number, which is this one.
            os.set_inheritable(opened, True)
    if sys.stdin is None:
        sys.stdin = open(0, closefd=False)  # noqa: SIM115  # as long as the process
    if sys.stdout is None:
        sys.stdout = open(1, "w", errors="surrogateescape", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115


def write_stderr_line(text: str, who: str = "elastic-launch", command: str = "") -> bool:
    """Write one line of `who` to stderr; whether it is taken. If not, nothing else changes.

    What a server or its certificate says may have any signs in it: those that no terminal shows become spaces, and many
    spaces one. `command` is a line of its own after it, as it is: people paste it into a shell.
    """
    shown = "".join(sign if sign.isprintable() else " " for sign in text)
    line = f"{who}: {' '.join(shown.split())}\n"
    try:
        sys.stderr.write(f"{line}{command}\n" if command else line)
        sys.stderr.flush()
    except OSError:
        return False
    return True


def discard_stream(stream: TextIO) -> None:
    """Let go of what a stream could not take: python writes it once more at the end, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def discard_unflushed() -> None:
    """See that python's end does not fail, and change the exit code, because of what nobody takes."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            discard_stream(stream)


def close(fd: int) -> OSError | None:
    """Close a descriptor. What its disk tells only now, None if that is nothing; it is closed in any case.

    A disk with a quota, or one on the network, tells at the end what it did not take (EDQUOT, ENOSPC, EIO). Who wrote
    there says so; who only read, or held a lock, has lost nothing.
    """
    try:
        os.close(fd)
    except OSError as error:
        return error
    return None


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """A descriptor that only reads, or holds a lock: it is closed at the end of the block."""
    try:
        yield fd
    finally:
        close(fd)


def is_file_at(fd: int, path: Path) -> bool:
    """Tell whether `path` still names the file that is open as `fd`."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False


def ready(fd: int, events: int, wait_s: float) -> bool:
    """Wait for one of these `events` of poll(2), or for the end of what is at the other end; False if none comes."""
    poll = select.poll()
    poll.register(fd, events)
    return bool(poll.poll(max(0.0, wait_s) * 1000))


def widen_pipe(fd: int, size: int) -> None:
    """Make room for `size` bytes in a pipe, if the user has not too much in pipes already: it is slower, then."""
    with suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, size)


def keep_only(keep: Collection[int]) -> None:
    """Let go of all but these, in a process that was forked; 0, 1 and 2 become /dev/null.

    Nobody should wait for the end of a pipe because this process has it, too. What is open is looked up: the limit of
    descriptors may be a billion (containers), and to try them all takes minutes where the kernel cannot do it at once.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            with suppress(OSError):  # The one through which they were listed is closed already.
                os.close(fd)
