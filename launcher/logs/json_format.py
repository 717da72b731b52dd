"""What an agent says and what its workers write, as JSON, one object on each line (`--log_format json`; pure).

Every line has `time` (UTC, RFC 3339), `level`, `job`, `node`, `generation` (null before the first one), `what` and
`text`:

    what      level
    said      debug, info, warning    the agent says something
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
    """How much a line matters."""

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
    """Makes the lines of one node. Each is valid whatever the text is: bytes that are no UTF-8 are replaced."""

    def __init__(self, job: str, node: str = "") -> None:
        """No generation yet. `node` is "" where there is none: the process that starts several."""
        self._job = job
        self.node = node
        self.generation = 0

    def agent_line(self, at: datetime, text: str, level: Severity, what: LineKind = LineKind.SAID) -> bytes:
        """A line of the agent."""
        g = self.generation or None
        return _encoded(
            JsonLine(_time(at), level, self._job, self.node, g, what, text.encode(errors="replace").decode())
        )

    def worker_line(
        self, role: Role, rank: int, local_rank: int, g: int, stream: str, at: datetime, data: bytes
    ) -> bytes:
        """A line that a worker of generation `g` wrote to its stdout or stderr, named by `stream`."""
        common = (_time(at), Severity.INFO, self._job, self.node, g, LineKind.OUTPUT, data.decode(errors="replace"))
        return _encoded(WorkerOutputLine(*common, role, rank, local_rank, stream))


def _encoded(line: JsonLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds")
