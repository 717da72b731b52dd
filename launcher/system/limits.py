"""What this process needs of its machine: files, processes, memory, a working folder. Each error names the fix."""

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
"""Descriptors of an agent: 33 and 3 for each worker were counted, and twice as many for workers with our library."""
FILES_OF_ETCD: Final = 160
"""etcd itself wants 150."""
TASKS: Final = 16
"""Processes and threads of a node beside its workers: 12 were counted, most of them grpc's."""
TASKS_OF_ETCD: Final = 24
LOOK_BELOW: Final = 4096
"""A limit of processes that is higher is not looked into: to count those of a user costs some milliseconds."""

_SHORT: Final = {
    errno.EMFILE: "this process may open no more files",
    errno.ENFILE: "this machine can open no more files",
    errno.EAGAIN: "no more processes or threads can be started here",
    errno.ENOMEM: "there is no memory left",
}
_NO_THREAD: Final = "can't start new thread"
"""What Python says of one that it could not start."""


def check_limits(workers: int, *, nodes: int = 1, etcd: bool = False) -> None:
    """Raise `ConfigError` if this process may not have what a node of so many workers needs.

    `nodes` are those that it starts; with `etcd` it runs one, too.
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
        return  # Root may have as many as it wants.
    left = limit - _tasks_of(os.getuid())
    if left < tasks:
        raise ConfigError(
            f"ulimit -u {limit} leaves room for {max(left, 0)} more processes and threads, and {tasks} are needed; "
            "raise the limit, or end what else runs here"
        )


def shortage_line(error: BaseException) -> MachineShort | None:
    """The line about an error that comes of a lack, None for any other error."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for one in error.exceptions if (found := shortage_line(one)) is not None), None)
    if isinstance(error, OSError) and error.errno in _SHORT:
        return MachineShort(f"{_SHORT[error.errno]} ({error.strerror}); see ulimit -a, and the limits of the container")
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return MachineShort(f"{_SHORT[errno.EAGAIN]} ({error}); see ulimit -a, and the limits of the container")
    return None


def _tasks_of(uid: int) -> int:
    """The processes and threads of a user."""
    import psutil  # Only where the limit is low.

    running = (process.info for process in psutil.process_iter(["uids", "num_threads"]))
    return sum(one["num_threads"] or 0 for one in running if one["uids"] and one["uids"].real == uid)


OPEN_MAX: Final = 65_536
"""Links are at most 8192 in each direction; some kernels keep a table of the length of the limit."""
GIVEN: Final = resource.getrlimit(resource.RLIMIT_NOFILE)
"""The soft and the hard limit that this process was started with."""


def raise_nofile_limit() -> None:
    """Let this process have as many as it may, up to `OPEN_MAX`. A limit that is higher already stays."""
    soft, hard = GIVEN
    if soft == resource.RLIM_INFINITY:
        return
    most = OPEN_MAX if hard == resource.RLIM_INFINITY else min(OPEN_MAX, hard)
    if most > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def restore_nofile_limit(pid: int) -> None:
    """Give a process that this one has just started, and whatever it starts, the limits of before."""
    with suppress(OSError):  # It has ended, or nobody may do this here; it keeps ours then.
        resource.prlimit(pid, resource.RLIMIT_NOFILE, GIVEN)


def check_surroundings() -> None:
    """Raise `ConfigError` when the working folder is gone, or nothing temporary can be written anywhere."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(f"the folder that you stand in is not there ({error.strerror}); cd to another") from error
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ConfigError("there is no folder for temporary files; set TMPDIR to one that you can write") from error
