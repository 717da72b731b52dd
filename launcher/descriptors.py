"""Standard descriptors that the caller closed (`2>&-`), or that nobody reads any more, become /dev/null."""

from __future__ import annotations

import os
import sys


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


def drop_stdout() -> None:
    """Let go of what stdout could not take: python writes it once more at the end, and would fail again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
