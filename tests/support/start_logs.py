"""Logs of worker starts that nobody writes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from launcher.logs.recent_starts import RecentStarts, Stamp
from launcher.logs.worker_log import WorkerStartLog
from launcher.logs.writer_protocol import AnyLogOrder

NAME = "workerlog.3"


class Nowhere:
    """Takes everything and keeps nothing."""

    paused = False

    def put(self, order: AnyLogOrder, of: str) -> bool:
        return True

    def on_writable(self, go_on: Callable[[], None]) -> None:
        go_on()


def start(
    logs: RecentStarts, stamp: Stamp = (1, 0), name: str = NAME, clock: Callable[[], float] = time.monotonic
) -> WorkerStartLog:
    header = f"==== gen {stamp[0]} ===="
    log = WorkerStartLog(Nowhere(), Path(name), header, clock=clock)
    logs.begin(f"/log/{name}", name, stamp, header, log)
    return log
