"""`elastic-ctl list`: all jobs below the key prefix."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from typing import Final

import msgspec

from launcher.config.flags import STORE_FLAGS
from launcher.ctl import table
from launcher.job.listing import JobLine, jobs
from launcher.job.named_job import Subcommand, named_store, open_store, write
from launcher.text.failure_report import ago
from launcher.text.sanitize import sanitize_line

COLUMNS: Final = ("job", "state", "np", "nodes", "generation", "world size", "last event", "why")
STYLES: Final = {"completed": "green", "running": "green", "failed": "bold red", "unreadable": "bold red"}
WHY_MAX: Final = 80


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON object per line, for scripts")


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    servers, key_prefix = named_store(vars(asked), environ)
    store = open_store(vars(asked), environ)
    try:
        lines = await jobs(store, key_prefix)
    finally:
        await store.close()
    if asked.json:
        write(msgspec.json.encode(line).decode() for line in lines)
    elif lines:
        now = time.time()
        table.show(COLUMNS, [_cells(line, now) for line in lines], [STYLES.get(line.state, "yellow") for line in lines])
    else:
        write([f"There is no job at {', '.join(servers.endpoints)} below {key_prefix.rstrip('/')}/"])
    return 0


def _cells(line: JobLine, now: float) -> list[str]:
    reason = line.reason if len(line.reason) <= WHY_MAX else f"{line.reason[: WHY_MAX - 1]}…"
    cells = (
        line.job_id,
        line.state,
        line.np or "-",
        f"{line.nodes} of {line.of}" if line.of is not None and line.verdict is None else str(line.nodes),
        "-" if line.generation is None else str(line.generation),
        "-" if line.world_size is None else str(line.world_size),
        "-" if line.last_event_at is None else ago(now - line.last_event_at),
        reason,
    )
    return [sanitize_line(cell) for cell in cells]


COMMAND: Final = Subcommand(
    "list", "show all jobs below the key prefix, one in a line", _arguments, alone=_run, flags=STORE_FLAGS
)
