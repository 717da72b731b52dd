"""Which processes are there: one reading of /proc, and signals that do not mind if the process is gone.

Standard library only. A reading is a snapshot: a caller that wants everybody gone reads again until nobody is left.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from elastic.errors import ConfigError

PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One process as /proc/<pid>/stat shows it."""

    pid: int
    parent: int
    group: int
    session: int
    zombie: bool
    frozen: bool = False
    """Stopped by SIGSTOP or by a debugger: it runs no handler of a signal."""


def processes() -> Iterator[Process]:
    """Every process that can be seen now."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(name)) is not None:
            yield process


def descendants(root: int) -> list[Process]:
    """Children of `root`, their children and so on, without `root`, zombies included."""
    by_parent: dict[int, list[Process]] = {}
    for process in processes():
        by_parent.setdefault(process.parent, []).append(process)
    found = list(by_parent.get(root, ()))
    for process in found:  # The list grows while it is walked.
        found += by_parent.get(process.pid, ())
    return found


def adopt_orphans() -> None:
    """From now on a descendant of this process whose parent has died is its child, whatever its session."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl refused option {PR_SET_CHILD_SUBREAPER}")


def is_frozen(pid: int) -> bool:
    """Tell whether a process stands still, by SIGSTOP or in a debugger."""
    process = _read(str(pid))
    return process is not None and process.frozen


def in_sessions(sessions: Iterable[int]) -> list[Process]:
    """Every process of these sessions that still runs."""
    wanted = frozenset(sessions)
    return [process for process in processes() if process.session in wanted and not process.zombie]


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a process group; the leader alone while it has not made its group yet. Nobody there is no error."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        signal_one(leader, number)


def signal_one(pid: int, number: signal.Signals) -> bool:
    """Signal one process. False if it belongs to another user, so that we may not."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def exited_child() -> int | None:
    """A child of ours that has exited and was not reaped; its number stays taken until then."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if info is None else info.si_pid


def has_children() -> bool:
    """Whether we have any child, running or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def stat_fields(pid: int | str) -> list[bytes]:
    """The fields of /proc/<pid>/stat behind the program's name, [] for a process that has ended or is hidden from us.

    The name stands in parentheses and may hold blanks and parentheses itself.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []


def _read(name: str) -> Process | None:
    if not (fields := stat_fields(name)):
        return None
    state, parent, group, session = fields[:4]
    frozen = state in (b"T", b"t")
    return Process(int(name), int(parent), int(group), int(session), state in (b"Z", b"X"), frozen)


def started_at() -> float | None:
    """When this process was started, seconds of CLOCK_BOOTTIME, to a hundredth; None where /proc does not say it."""
    fields = stat_fields("self")
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else None


def fork(what: str) -> int:
    """As `os.fork`. Raises `ConfigError` where there can be no further process; `what` says what it does."""
    try:
        return os.fork()
    except OSError as error:
        raise ConfigError(
            f"a process that {what} cannot be started ({error.strerror}); this machine or user may have too many "
            "(`ulimit -u`), or too little memory is left"
        ) from error
