"""Everything that one node writes to: its log, its consoles, and the folder of its logs."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog
from launcher.logs.writer_client import LogWriterClient


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """`consoles` are stdout and stderr, `disk` has the logs written. With `lines` workers are shown as JSON.

    `live`: progress is shown in the live status, so that its lines need only be kept.
    """

    agent_log: AgentLog
    consoles: tuple[Console, Console]
    disk: LogWriterClient
    lines: JsonFormatter | None
    live: bool
