"""The files of a log folder: workers' logs, the list of endpoints, and the agent's own story.

    workerlog.<rank>       what a worker wrote, appended over all its starts
    endpoints.log          every worker's address of the newest generation; endpoints.<g>.log of each of the newest
    launcher.log           what the agents of this folder said, with times; launcher.1.log is the one before, when full
    envlog.<rank>          a worker's environment at its newest start (`launcher.logs.environment_dump`)
    events.jsonl           what happened, for programs (`launcher.logs.event_log`)

Every start of a worker is framed by a header and a closing line, so that an old log is not taken for a live one.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from typing import Final

from elastic.core.model import Role
from elastic.core.text import log_name, process_name
from elastic.errors import ConfigError
from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter, LineKind, Severity
from launcher.text.sanitize import sanitize_line

LAUNCHER_LOG = "launcher.log"
ENDPOINTS_KEPT = 50
"""So many lists of endpoints are kept; a job that lives for months makes thousands of generations."""

_SIGNAL_INFO = "[SignalInfo: *** SIGTERM (@0x{sender:x}) received by PID {pid} (TID 0x{pid:x}) from PID {sender} ***]"


class Verbosity(IntEnum):
    """How much the agent says on the console. Its file always gets everything."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


SEVERITIES: Final = {
    Verbosity.QUIET: Severity.WARNING,
    Verbosity.NORMAL: Severity.INFO,
    Verbosity.VERBOSE: Severity.DEBUG,
}
"""What a line that is said up to this level is for programs."""


def check_log_dir(path: Path) -> None:
    """Make the folder if needed and write a file in it. Raises `ConfigError` that says what to change."""
    mend = "name a folder that can be written with --log_dir"
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except FileExistsError as error:
        raise ConfigError(f"--log_dir {path} is a file; {mend}") from error
    except OSError as error:
        raise ConfigError(f"--log_dir {path} cannot be written ({error.strerror}); {mend}") from error


def worker_log(log_dir: Path, rank: int) -> Path:
    """The log of a rank, whichever node it runs on."""
    return process_log(log_dir, Role.WORKER, rank)


def process_log(log_dir: Path, role: Role, index: int) -> Path:
    """The log of a process of any role: workerlog.3, serverlog.1, heterlog.0."""
    return log_dir / log_name(role, index)


def header_line(
    *, job_id: str, g: int, rank: int, local_rank: int, host: str, at: datetime, role: Role = Role.WORKER
) -> str:
    """The line that opens a start. `at` is written in UTC, to the second."""
    time = at.astimezone(UTC).isoformat(timespec="seconds")
    who = process_name(role, rank)
    return f"==== elastic-launch job {job_id} gen {g} {who} local {local_rank} host {host} {time} ===="


def closing_line(*, rank: int, g: int, words: str, role: Role = Role.WORKER) -> str:
    """The line that closes a start; `words` say how it ended."""
    return f"==== {process_name(role, rank)} gen {g} ended: {words} ===="


def signal_info_line(*, pid: int, sender: int) -> str:
    """The line that tells a reader of this log that the worker was stopped from outside: look elsewhere."""
    return _SIGNAL_INFO.format(pid=pid, sender=sender)


def write_endpoints(log_dir: Path, g: int, endpoints: Sequence[str], servers: Sequence[str] = ()) -> None:
    """Write the endpoints of a generation as `write_lists` does, in a folder that is made if it is not there."""
    log_dir.mkdir(parents=True, exist_ok=True)
    write_lists(log_dir, g, endpoints, servers)


def write_lists(folder: Path, g: int, endpoints: Sequence[str], servers: Sequence[str] = ()) -> None:
    """Write the endpoints of a generation, in rank order, as the newest and under its number.

    Parameter servers stand below the workers, under the name of Paddle's list of them.
    `endpoints` are as `launcher.net.endpoints.join_host_port` writes them, IPv6 in brackets.
    A reader sees the old list or the new one, never a part. The numbered ones of the newest `ENDPOINTS_KEPT`
    generations are kept. Raises `OSError`.
    """
    below = ("PADDLE_PSERVERS_IP_PORT_LIST:", *servers) if servers else ()
    text = "".join(f"{line}\n" for line in ("PADDLE_TRAINER_ENDPOINTS:", *endpoints, *below))
    for name in (f"endpoints.{g}.log", "endpoints.log"):
        _replace(folder / name, text)
    for path in folder.glob("endpoints.*.log"):
        number = path.name.split(".")[1]
        if number.isascii() and number.isdigit() and int(number) <= g - ENDPOINTS_KEPT:
            path.unlink(missing_ok=True)


class AgentLog:
    """Says what the agent does: one short line each, to stderr and, with the time, to launcher.log."""

    def __init__(
        self, node_id: str, console: Console, *, level: Verbosity = Verbosity.NORMAL, lines: JsonFormatter | None = None
    ) -> None:
        """Speak as `node_id`; `keep` adds the file. With `lines` console and file have JSON."""
        self._node_id = node_id
        self._console = console
        self._level = level
        self._lines = lines
        self._append: Callable[[bytes], object] | None = None

    def keep(self, append: Callable[[bytes], object]) -> None:
        """Have everything appended to launcher.log from now on."""
        self._append = append

    def say(self, text: str) -> None:
        """A step of the story."""
        self._speak(text, Verbosity.NORMAL)

    def detail(self, text: str) -> None:
        """Something for `--verbose`."""
        self._speak(text, Verbosity.VERBOSE)

    def warn(self, text: str) -> None:
        """Something that a person has to know; `--quiet` does not hide it."""
        self._speak(text, Verbosity.QUIET)

    def note(self, text: str) -> None:
        """Something that the console hears from somebody else."""
        self._keep(sanitize_line(text.replace("\n", " ")), Severity.INFO)

    def report(self, lines: Sequence[str]) -> None:
        """Lines that stand by themselves (a failure's report), without the prefix; `--quiet` does not hide them."""
        cleaned = [sanitize_line(line) for line in lines]
        if self._lines is not None:
            line = self._lines.said(datetime.now(UTC), "\n".join(cleaned), Severity.ERROR, LineKind.REPORT)
            self._console.write(line)
            self._append_line(line)
            return
        self._console.write_line("\n".join(cleaned))  # At once: other agents may share the terminal.
        for text in cleaned:
            self._keep(text, Severity.ERROR)

    def close(self) -> None:
        """Keep nothing more; the console is its owner's."""
        self._append = None

    def _speak(self, text: str, level: Verbosity) -> None:
        line = sanitize_line(text.replace("\n", " "))
        self._keep(line, SEVERITIES[level])
        if level > self._level:
            return
        if self._lines is not None:
            self._console.write(self._lines.said(datetime.now(UTC), line, SEVERITIES[level]))
        else:
            prefix = f"[elastic-launch {self._node_id}]"
            if self._console.is_terminal and "NO_COLOR" not in os.environ:
                prefix = f"\x1b[2m{prefix}\x1b[0m"
            self._console.write_line(f"{prefix} {line}")

    def _keep(self, line: str, severity: Severity) -> None:
        now = datetime.now(UTC)
        if self._lines is not None:
            self._append_line(self._lines.said(now, line, severity))
        else:
            time = now.isoformat(timespec="milliseconds")
            self._append_line(f"{time} {self._node_id} {line}\n".encode(errors="replace"))

    def _append_line(self, line: bytes) -> None:
        if self._append is not None:
            self._append(line)


def _replace(path: Path, text: str) -> None:
    fd, new = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(fd, "w", encoding="utf-8") as file:
            os.fchmod(fd, 0o644)
            file.write(text)
        os.replace(new, path)
    except OSError:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(new)
        raise
