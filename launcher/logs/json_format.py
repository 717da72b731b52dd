"""The agent's messages and the workers' output as JSON, one object on each line (`--log-format json`; pure).

Every line has `time` (UTC, RFC 3339), `level`, `job`, `node`, `generation` (null before the first one), `what` and
`text`:

    what      level
    said      debug, info, warning    a message of the agent
    report    error                   a report of several lines, a failure's for example
    output    info                    a worker wrote a line; with `role`, `rank`, `local_rank`, `stream`
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

import msgspec

from elastic.core.ps.model import Role


class LineKind(StrEnum):
    """The kinds of lines."""

    SAID = "said"
    REPORT = "report"
    OUTPUT = "output"


class Severity(StrEnum):
    """How important a line is."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class JsonLine(msgspec.Struct, frozen=True):
    """What every line has."""

    time: str
    level: Severity
    job: str
    node: str
    generation: int | None
    what: LineKind
    text: str


class WorkerOutputLine(JsonLine, frozen=True):
    """A line of a worker. Of another role `rank` is the index; `stream` is stdout or stderr."""

    role: Role
    rank: int
    local_rank: int
    stream: str


class JsonFormatter:
    """Formats the lines of one node. Each is valid JSON whatever the text is: invalid UTF-8 is replaced."""

    def __init__(self, job: str, node: str = "") -> None:
        """`job` and `node` are in each line; `node` is "" for the process that starts several nodes."""
        self._job = job
        self.node = node
        self.generation = 0

    def agent_line(self, at: datetime, text: str, level: Severity, what: LineKind = LineKind.SAID) -> bytes:
        """Return a line of the agent."""
        g = self.generation or None
        return _encoded(
            JsonLine(_time(at), level, self._job, self.node, g, what, text.encode(errors="replace").decode())
        )

    def worker_line(
        self, role: Role, rank: int, local_rank: int, g: int, stream: str, at: datetime, data: bytes
    ) -> bytes:
        """Return a line that a worker of generation `g` wrote to its stdout or stderr, named by `stream`."""
        common = (_time(at), Severity.INFO, self._job, self.node, g, LineKind.OUTPUT, data.decode(errors="replace"))
        return _encoded(WorkerOutputLine(*common, role, rank, local_rank, stream))


def _encoded(line: JsonLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
