"""The agent's logger: what the agent does, on the console and in launcher.log."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import IntEnum
from typing import Final

from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter, LineKind, Severity
from launcher.text.sanitize import sanitize_line


class Verbosity(IntEnum):
    """How much the agent logs on the console. Its file always gets everything."""

    QUIET = 0
    NORMAL = 1
    VERBOSE = 2


SEVERITIES: Final = {
    Verbosity.QUIET: Severity.WARNING,
    Verbosity.NORMAL: Severity.INFO,
    Verbosity.VERBOSE: Severity.DEBUG,
}
"""The severity, for programs, of a line that is shown from this level on."""

WARNING: Final = "warning: "
"""The mark of a warning in text."""


def _nowhere(line: bytes) -> None:
    """Drop a line while there is no launcher.log."""


class AgentLog:
    """Logs what the agent does: one short line each, to stderr and, with the time, to launcher.log."""

    def __init__(
        self, node_id: str, console: Console, *, level: Verbosity = Verbosity.NORMAL, lines: JsonFormatter | None = None
    ) -> None:
        """Log as `node_id`; `keep` adds the file. With `lines` console and file have JSON."""
        self._node_id = node_id
        self._console = console
        self._level = level
        self._lines = lines
        self._append: Callable[[bytes], object] = _nowhere

    def keep(self, append: Callable[[bytes], object]) -> None:
        """Append everything to launcher.log from now on."""
        self._append = append

    def info(self, text: str) -> None:
        """Log a normal message."""
        self._speak(text, Verbosity.NORMAL)

    def debug(self, text: str) -> None:
        """Log a message for `--verbose`."""
        self._speak(text, Verbosity.VERBOSE)

    def warning(self, text: str) -> None:
        """Log something that users must know, as `warning: ...`; `--quiet` does not hide it."""
        self._speak(text, Verbosity.QUIET, WARNING)

    def always(self, text: str) -> None:
        """Log what `--quiet` does not hide and is not a warning: how the job ended, why the agent exits."""
        self._speak(text, Verbosity.QUIET)

    def file_only(self, text: str) -> None:
        """Log a message to the file only: another process shows it on the console."""
        self._keep(sanitize_line(text.replace("\n", " ")), Severity.INFO)

    def report(self, lines: Sequence[str]) -> None:
        """Log lines without the prefix (a failure report); `--quiet` does not hide them."""
        cleaned = [sanitize_line(line) for line in lines]
        if self._lines is not None:
            line = self._lines.agent_line(datetime.now(UTC), "\n".join(cleaned), Severity.ERROR, LineKind.REPORT)
            self._console.write(line)
            self._append(line)
            return
        self._console.write_line("\n".join(cleaned))  # In one piece: other agents may share the terminal.
        for text in cleaned:
            self._keep(text, Severity.ERROR)

    def close(self) -> None:
        """Stop writing to the file; the console belongs to its owner."""
        self._append = _nowhere

    def _speak(self, text: str, level: Verbosity, mark: str = "") -> None:
        """Log a message; lines of text begin with `mark`, in JSON the severity says the same."""
        line = sanitize_line(text.replace("\n", " "))
        if self._lines is None:
            line = f"{mark}{line}"
        self._keep(line, SEVERITIES[level])
        if level > self._level:
            return
        if self._lines is not None:
            self._console.write(self._lines.agent_line(datetime.now(UTC), line, SEVERITIES[level]))
        else:
            prefix = f"[elastic-launch {self._node_id}]"
            if self._console.is_terminal and "NO_COLOR" not in os.environ:
                prefix = f"\x1b[2m{prefix}\x1b[0m"
            self._console.write_line(f"{prefix} {line}")

    def _keep(self, line: str, severity: Severity) -> None:
        now = datetime.now(UTC)
        if self._lines is not None:
            self._append(self._lines.agent_line(now, line, severity))
        else:
            time = now.isoformat(timespec="milliseconds")
            self._append(f"{time} {self._node_id} {line}\n".encode(errors="replace"))
