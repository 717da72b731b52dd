"""A store with one job, and the log of a node that writes into it beside its work."""

from __future__ import annotations

import time
from pathlib import Path

from elastic.core.kv import Put
from elastic.core.view import encode
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from tests.support.strategies import KEYS


class OneJob:
    """Its incarnation is "i1"; what the node says is in the file `output`."""

    def __init__(self, folder: Path) -> None:
        self.core = MemoryCore()
        self.store = MemoryStore(self.core, time.monotonic)
        with (folder / "console").open("w") as file:
            self.console = Console(file.fileno())
        self.output = folder / "console"
        self.core.txn((), (Put(KEYS.incarnation, encode("i1")),))
        self.agent_log = AgentLog("a", self.console, level=Verbosity.VERBOSE)
