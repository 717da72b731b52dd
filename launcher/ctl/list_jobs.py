"""`elastic-ctl list`: all jobs below the key prefix, once or repeatedly."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Self

import msgspec

from elastic.errors import StoreError
from elastic.store.protocol import Store
from launcher.config.flags import STORE_FLAGS
from launcher.ctl import table
from launcher.job import common_flags
from launcher.job.common_flags import wants_json
from launcher.job.listing import JobLine, jobs
from launcher.job.named_job import Subcommand, named_store, open_store, write
from launcher.system.stdout_watch import while_stdout_is_open
from launcher.text.failure_report import ago
from launcher.text.sanitize import sanitize_line

if TYPE_CHECKING:
    from rich.live import Live

COLUMNS: Final = ("job", "state", "np", "nodes", "generation", "world size", "last event", "why")
STYLES: Final = {"completed": "green", "running": "green", "failed": "bold red", "unreadable": "bold red"}
WHY_MAX: Final = 80


def _arguments(parser: argparse.ArgumentParser) -> None:
    common_flags.add_output(parser, "json: one JSON object per line, for scripts; with --watch each job that changed")
    common_flags.add_watch(parser, "list the jobs again after this time, until Ctrl-C")


async def _run(asked: argparse.Namespace, environ: Mapping[str, str]) -> int:
    servers, key_prefix = named_store(vars(asked), environ)
    nothing = f"There is no job at {', '.join(servers.endpoints)} below {key_prefix.rstrip('/')}/"
    store = open_store(vars(asked), environ)
    try:
        if asked.watch is not None:
            watching = _watch(store, key_prefix, nothing, asked.watch, as_json=wants_json(asked))
            return await while_stdout_is_open(watching)
        lines = await jobs(store, key_prefix)
    finally:
        await store.close()
    if wants_json(asked):
        _write_json(lines)
    elif lines:
        table.show(COLUMNS, *_rows(lines))
    else:
        write([nothing])
    return 0


async def _watch(store: Store, key_prefix: str, nothing: str, every_s: float, *, as_json: bool) -> int:
    """List the jobs every `every_s`. If etcd becomes unavailable, a line says so, and the jobs remain as last read."""
    before: list[JobLine] | None = None
    outage_before = ""
    with _Screen(drawn=sys.stdout.isatty() and not as_json) as screen:
        while True:
            lines, outage = before or [], ""
            try:
                lines = await jobs(store, key_prefix)
            except StoreError as error:
                if before is None:
                    raise
                outage = f"etcd does not answer ({error}); this is the newest list"
            if as_json:
                _write_json(line for line in lines if line not in (before or []))
            elif screen.drawn or (lines, outage) != (before, outage_before):
                screen.show(lines, outage if lines else outage or nothing)
            before, outage_before = lines, outage
            await asyncio.sleep(every_s)


class _Screen:
    """Shows one list after the other: drawn over the one before on a terminal, otherwise as blocks with the time."""

    def __init__(self, *, drawn: bool) -> None:
        self.drawn = drawn
        self._stack = ExitStack()
        self._live: Live | None = None
        self._blocks = 0

    def __enter__(self) -> Self:
        if self.drawn:
            from rich.console import Console
            from rich.live import Live

            self._live = self._stack.enter_context(Live(console=Console(), auto_refresh=False))
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def show(self, lines: Sequence[JobLine], note: str) -> None:
        if self._live is not None:
            from rich.console import Group
            from rich.text import Text

            notes = [Text(note)] if note else []
            tables = [table.render_rich(COLUMNS, *_rows(lines))] if lines else []
            self._live.update(Group(*notes, *tables), refresh=True)
            return
        at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        head = ([""] if self._blocks else []) + [f"--- {at}"] + ([note] if note else [])
        write(head + (table.render_plain(COLUMNS, _rows(lines)[0]) if lines else []))
        self._blocks += 1


def _write_json(lines: Iterable[JobLine]) -> None:
    write(msgspec.json.encode(line).decode() for line in lines)


def _rows(lines: Sequence[JobLine]) -> tuple[list[list[str]], list[str]]:
    """The cells and the style of each row."""
    now = time.time()
    return [_cells(line, now) for line in lines], [STYLES.get(line.state, "yellow") for line in lines]


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
    "list",
    "show all jobs below the key prefix, one per line",
    _arguments,
    alone=_run,
    flags=STORE_FLAGS,
    examples=(
        ("List the jobs of an etcd", "elastic-ctl list --elastic-server 10.0.0.5:2379"),
        ("Show changes until Ctrl-C", "elastic-ctl list --watch"),
    ),
)
