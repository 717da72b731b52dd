"""What happens in a worker's process between fork and its program.

The new process leads its own session and group, dies with the fork server, has default signal handlers, its own working
directory, and writes to the descriptors it was given. Standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable
from typing import NoReturn

from launcher.nursery.protocol import PrepareSuccessor, WorkerStart
from launcher.system.worker_signals import on_parent_death

CANNOT_START = 127
"""Exit code of a worker whose program could not be executed, as shells have it."""

LASTING = frozenset(
    {
        errno.EACCES,
        errno.EISDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.ENOENT,
        errno.ENOEXEC,
        errno.ENOTDIR,
        errno.EPERM,
    }
)
"""Errors that a second attempt does not fix. Others may pass: no memory, a file being written, a dead server."""


class ChildStarted(BaseException):
    """Raised in a new process that becomes a worker without starting another program.

    It unwinds every frame of the fork server, so that the script sees none of them.
    """

    def __init__(self, start: WorkerStart) -> None:
        super().__init__()
        self.start = start


class SuccessorStarted(BaseException):
    """Raised in a new process that becomes a fork server: it unwinds every frame of the old one."""

    def __init__(self, fd: int, order: PrepareSuccessor, parent: int) -> None:
        """`fd` is its socket to the agent; `parent` the fork server that has forked it."""
        super().__init__()
        self.fd = fd
        self.order = order
        self.parent = parent


def fork_successor(fd: int, order: PrepareSuccessor) -> int:
    """Fork a fork server. Returns its pid; raises `SuccessorStarted` in the new process.

    It dies with this one until it is ready.
    """
    nursery = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    on_parent_death(signal.SIGKILL)
    if os.getppid() != nursery:
        os._exit(128 + signal.SIGKILL)
    signal.set_wakeup_fd(-1)
    raise SuccessorStarted(fd, order, nursery)


def fork(start: WorkerStart, out: int, err: int, run: Callable[[WorkerStart], None]) -> int:
    """Fork; in the new process prepare and call `run`, which does not return unless it failed. Returns the pid.

    Raises `ChildStarted` in the new process if `run` does.

    All signals are blocked over the fork, so that a SIGTERM that arrives before the new process has its own
    dispositions stays pending and is not lost to the fork server's.
    """
    before = signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
    nursery = os.getpid()
    try:
        pid = os.fork()
        if pid == 0:
            _run_child(start, out, err, run, nursery)
    finally:
        if os.getpid() == nursery:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return pid


def execute(start: WorkerStart) -> NoReturn:
    """Start without preloading: replace this process by the program, found along the worker's own PATH."""
    os.execvpe(start.argv[0], start.argv, start.env)


def start_warm(start: WorkerStart) -> NoReturn:
    """Start preloaded: continue as the worker, with the modules of the fork server. Raises `ChildStarted`."""
    raise ChildStarted(start)


def start_error(start: WorkerStart, error: OSError | ValueError) -> bytes:
    """Return the line for a worker's log with the reason why it did not start."""
    program = start.argv[0] if start.argv else "(nothing)"
    why = str(error)
    if isinstance(error, OSError):
        why = error.strerror or why
        if isinstance(error.filename, str) and error.filename != program:
            why += f": {error.filename}"
        elif isinstance(error, FileNotFoundError) and os.path.exists(program):
            why = "the interpreter in its first line does not exist"
        elif error.errno == errno.ENOEXEC:
            why = f"{error.strerror}; does its first line name an interpreter, such as #!/bin/sh?"
    lasts = isinstance(error, ValueError) or error.errno in LASTING
    verb = "cannot" if lasts else "could not"
    return os.fsencode(f"elastic-launch: {verb} start {program}: {why}\n")  # `failure_causes` reads it.


def _run_child(start: WorkerStart, out: int, err: int, run: Callable[[WorkerStart], None], nursery: int) -> None:
    """Never returns; raises `ChildStarted` if `run` does."""
    born = False
    try:
        os.setsid()
        on_parent_death(signal.SIGKILL)
        if os.getppid() != nursery:  # It died before the parent-death signal was set.
            os._exit(128 + signal.SIGKILL)
        signal.set_wakeup_fd(-1)
        for number in signal.valid_signals():
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_DFL)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        os.chdir(start.cwd)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        run(start)
    except ChildStarted:
        born = True
        raise
    except (OSError, ValueError) as error:
        os.write(err, start_error(start, error))
    finally:
        if not born:
            os._exit(CANNOT_START)
