"""Workers that do what the test tells them: they need no torch, and every word and end of theirs is an event."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from signal import Signals
from typing import Any

from tests.process.happenings import Happenings

PUPPET = """
import json, os, signal, socket, subprocess, sys

test = socket.socket(socket.AF_UNIX)
test.connect("\\0" + os.environ["JOB_TEST_SOCKET"])
orders = test.makefile("rw", buffering=1)

def answer(what):
    orders.write(json.dumps(what) + "\\n")

answer({"pid": os.getpid(), "argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ)})
for line in orders:
    verb, argument = json.loads(line)
    if verb == "exit":
        sys.exit(argument)
    elif verb == "die":
        os.kill(os.getpid(), argument)
    elif verb == "ignore":
        signal.signal(argument, signal.SIG_IGN)
    elif verb == "print":
        print(argument)
    elif verb == "complain":
        print(argument, file=sys.stderr)
    elif verb == "progress":
        with open(os.environ["ELASTIC_PROGRESS_FILE"], "w") as file:
            file.write(str(argument))
    elif verb == "child":
        subprocess.Popen(["sleep", "1000"], start_new_session=argument)
    answer({"done": verb})
"""
"""A worker: it tells the test who it is, and obeys one order after another. It ends when the test is gone."""


@dataclass
class Worker:
    """A puppet, from its first word to its end."""

    told: Happenings
    orders: asyncio.StreamWriter
    pid: int
    argv: list[str]
    cwd: str
    env: dict[str, str]
    ended: bool = False
    answers: int = 0

    @property
    def rank(self) -> int:
        return int(self.env.get("RANK", self.env.get("ELASTIC_INDEX", "0")))

    @property
    def generation(self) -> int:
        return int(self.env["ELASTIC_GENERATION"])

    @property
    def node(self) -> str:
        return self.env["ELASTIC_NODE_ID"]

    async def obeys(self, verb: str, argument: Any = None) -> None:
        """Give an order and wait until it is carried out."""
        awaited = self.answers + 1
        self._order(verb, argument)
        await self.told.until(lambda: self.answers >= awaited, f"rank {self.rank} obeys {verb!r}")

    async def exits(self, code: int) -> None:
        """Have it exit by itself."""
        self._order("exit", code)
        await self.ends()

    async def dies(self, number: Signals) -> None:
        """Have it die of a signal of its own."""
        self._order("die", number)
        await self.ends()

    async def ends(self) -> None:
        """Wait until its process is gone."""
        await self.told.until(lambda: self.ended, f"rank {self.rank} of generation {self.generation} ends")

    def _order(self, verb: str, argument: Any) -> None:
        self.orders.write(f"{json.dumps([verb, argument])}\n".encode())
