"""Lists processes by reading /proc, and sends signals that ignore processes that have exited.

Standard library only. A listing is a snapshot: a caller that waits for all processes to exit lists them repeatedly.
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
    """Suspended by SIGSTOP or a debugger, so that it runs no signal handler."""


def processes() -> Iterator[Process]:
    """Yield every visible process."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (process := _read(name)) is not None:
            yield process


def descendants(root: int) -> list[Process]:
    """Return all descendants of `root`, without `root`, zombies included."""
    by_parent: dict[int, list[Process]] = {}
    for process in processes():
        by_parent.setdefault(process.parent, []).append(process)
    found = list(by_parent.get(root, ()))
    for process in found:  # The list grows during the iteration.
        found += by_parent.get(process.pid, ())
    return found


def adopt_orphans() -> None:
    """Make this process the parent of all its orphaned descendants, in any session."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1)) != 0:
        raise OSError(ctypes.get_errno(), f"prctl refused option {PR_SET_CHILD_SUBREAPER}")


def is_frozen(pid: int) -> bool:
    """Return whether a process is suspended, by SIGSTOP or in a debugger."""
    process = _read(str(pid))
    return process is not None and process.frozen


def in_sessions(sessions: Iterable[int]) -> list[Process]:
    """Return every running process of these sessions."""
    wanted = frozenset(sessions)
    return [process for process in processes() if process.session in wanted and not process.zombie]


def signal_group(leader: int, number: signal.Signals) -> None:
    """Signal a process group, or only the leader if it has not created its group yet; ignore missing processes."""
    try:
        os.killpg(leader, number)
    except (ProcessLookupError, PermissionError):
        signal_one(leader, number)


def signal_one(pid: int, number: signal.Signals) -> bool:
    """Signal one process. False if it belongs to another user."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return True


def exited_child() -> int | None:
    """Return a child process that has exited and is not reaped; its PID cannot be reused until then."""
    try:
        info = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    return None if info is None else info.si_pid


def has_children() -> bool:
    """Return whether this process has any child, running or not."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def stat_fields(pid: int | str) -> list[bytes]:
    """Return the fields of /proc/<pid>/stat after the program's name, [] for a process that has exited or is hidden.

    The name is in parentheses and may contain blanks and parentheses.
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
    """Return the start of this process in seconds of CLOCK_BOOTTIME, to a hundredth; None if /proc lacks it."""
    fields = stat_fields("self")
    return int(fields[19]) / os.sysconf("SC_CLK_TCK") if fields else None


def fork(what: str) -> int:
    """Call `os.fork`. Raises `ConfigError` if no process can be started; `what` describes its task in the message."""
    try:
        return os.fork()
    except OSError as error:
        raise ConfigError(
            f"cannot start a process that {what} ({error.strerror}); this host or user may have too many processes "
            "(`ulimit -u`) or too little memory"
        ) from error
