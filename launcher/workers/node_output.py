"""Everything that one node writes to: its log, its consoles, and the directory of its logs."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.logs.console import Console
from launcher.logs.json_format import JsonFormatter
from launcher.logs.logger import AgentLog
from launcher.logs.writer_client import LogWriterClient


@dataclass(frozen=True, slots=True)
class NodeOutput:
    """`consoles` are stdout and stderr, `disk` writes the logs. With `lines` workers are shown as JSON.

    `live`: the live status shows the progress, so progress lines are only logged.
    """

    agent_log: AgentLog
    consoles: tuple[Console, Console]
    disk: LogWriterClient
    lines: JsonFormatter | None
    live: bool
