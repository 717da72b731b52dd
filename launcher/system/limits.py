"""Checks what this process needs from its host: files, processes, memory, a working directory. Errors name the fix."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from contextlib import suppress
from typing import Final

from elastic.errors import ConfigError, MachineShort

FILES: Final = 40
FILES_PER_WORKER: Final = 8
"""Descriptors of an agent: measured were 33, and 3 for each worker, or 6 for a worker that uses `elastic`."""
FILES_OF_ETCD: Final = 160
"""etcd itself requires 150."""
TASKS: Final = 16
"""Processes and threads of a node in addition to its workers: 12 were measured, most of them grpc's."""
TASKS_OF_ETCD: Final = 24
LOOK_BELOW: Final = 4096
"""A higher limit of processes is not checked: counting the processes of a user takes some milliseconds."""

_SHORT: Final = {
    errno.EMFILE: "too many open files in this process",
    errno.ENFILE: "too many open files on this host",
    errno.EAGAIN: "cannot start more processes or threads",
    errno.ENOMEM: "out of memory",
}
_NO_THREAD: Final = "can't start new thread"
"""Python's message for a thread that it could not start."""


def check_limits(workers: int, *, nodes: int = 1, etcd: bool = False) -> None:
    """Raise `ConfigError` if the limits of this process are too low for `nodes` nodes with this number of workers.

    With `etcd` this process also runs an etcd.
    """
    files = max(FILES + FILES_PER_WORKER * workers, FILES_OF_ETCD if etcd else 0)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most != resource.RLIM_INFINITY and most < files:
        of = f" of {workers} workers" if workers > 1 else ""
        need = " and its etcd need" if etcd else " needs"
        raise ConfigError(f"ulimit -n {most} is too low: a node{of}{need} {files} open files; raise the limit")
    tasks = nodes * (TASKS + workers) + (TASKS_OF_ETCD if etcd else 0)
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() == 0 or limit == resource.RLIM_INFINITY or limit >= LOOK_BELOW:
        return  # The limit does not apply to root.
    left = limit - _tasks_of(os.getuid())
    if left < tasks:
        raise ConfigError(
            f"ulimit -u {limit} leaves room for {max(left, 0)} more processes and threads, but {tasks} are needed; "
            "raise the limit, or stop other processes"
        )


def shortage_line(error: BaseException) -> MachineShort | None:
    """Return the error to raise for a lack of resources, None for any other error."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := shortage_line(one)) is not None), None)
    if isinstance(error, OSError) and error.errno in _SHORT:
        return MachineShort(f"{_SHORT[error.errno]} ({error.strerror}); see ulimit -a, and the limits of the container")
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return MachineShort(f"{_SHORT[errno.EAGAIN]} ({error}); see ulimit -a, and the limits of the container")
    return None


def _tasks_of(uid: int) -> int:
    """Count the processes and threads of a user."""
    import psutil  # Only if the limit is low.

    running = (process.info for process in psutil.process_iter(["uids", "num_threads"]))
    return sum(one["num_threads"] or 0 for one in running if one["uids"] and one["uids"].real == uid)


OPEN_MAX: Final = 65_536
"""Enough for 8192 links in each direction; some kernels allocate a table with the length of the limit."""
GIVEN: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit at the start of this process."""


def raise_nofile_limit() -> None:
    """Raise the soft limit of open files as far as allowed, up to `OPEN_MAX`. A higher limit stays."""
    soft, hard = GIVEN
    if soft == resource.RLIM_INFINITY:
        return
    most = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def restore_nofile_limit(pid: int) -> None:
    """Restore the original limits for a new child process and its descendants."""
    with suppress(OSError):  # It has exited, or the sandbox forbids this; it keeps our limits.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, GIVEN)


def check_surroundings() -> None:
    """Raise `ConfigError` if the working directory is gone, or no directory for temporary files is writable."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the working directory does not exist ({error.strerror}); cd to another") from error
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError("no writable directory for temporary files; set TMPDIR to one") from error
