"""Workers that do what the test tells them: they need no torch, and every word and end of theirs is an event."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from signal import Signals
from typing import Any

from tests.support.awaited_events import Happenings, runs

PUPPET = """
import json, os, select, signal, socket, subprocess, sys, time

def end():
    global messages
    from elastic.channel import client, messages
    from elastic.train import stack_dump
    return client.channel_client(os.environ, stacks_signal=stack_dump.register())

def hang_here(seconds):
    time.sleep(seconds)

test = socket.socket(socket.AF_UNIX)
where = os.environ["JOB_TEST_SOCKET"]
test.connect("\\0" + where[1:] if where[0] == "@" else where)
orders = test.makefile("rw")

def answer(what):
    orders.write(json.dumps(what) + "\\n")
    orders.flush()

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
    elif verb == "run":
        exec(argument)
    elif verb == "complain":
        print(argument, file=sys.stderr)
    elif verb == "progress":
        with open(os.environ["ELASTIC_PROGRESS_FILE"], "w") as file:
            file.write(str(argument))
    elif verb == "say":
        end().send(messages.said.decode(json.dumps(argument)))
    elif verb == "keep":
        import mmap
        name, size, text = argument
        fd, size = end().segment(name, size)
        with mmap.mmap(fd, size) as memory:
            print("kept:", memory[:].rstrip(b"\\0").decode(), flush=True)
            memory[:len(text)] = text.encode()
    elif verb == "leave":
        while (stop := end().stop_asked()) is None:
            select.select([end()._socket], [], [])
        print("asked:", stop.reason, flush=True)
        sys.exit(argument)
    elif verb == "hang":
        answer({"hangs": argument})
        hang_here(argument)
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

    @property
    def runs(self) -> bool:
        """Whether the process runs now, as the kernel knows; `ended` follows a moment later."""
        return runs(self.pid)

    async def obeys(self, verb: str, argument: Any = None) -> None:
        """Give an order and wait until it is carried out."""
        awaited = self.answers + 1
        self.order(verb, argument)
        await self.told.until(lambda: self.answers >= awaited, f"rank {self.rank} obeys {verb!r}")

    async def exits(self, code: int) -> None:
        """Have it exit by itself."""
        self.order("exit", code)
        await self.ends()

    async def dies(self, number: Signals) -> None:
        """Have it die of a signal of its own."""
        self.order("die", number)
        await self.ends()

    async def ends(self) -> None:
        """Wait until its process is gone."""
        await self.told.until(lambda: self.ended, f"rank {self.rank} of generation {self.generation} ends")

    def order(self, verb: str, argument: Any) -> None:
        """Give an order and do not wait."""
        self.orders.write(f"{json.dumps([verb, argument])}\n".encode())
