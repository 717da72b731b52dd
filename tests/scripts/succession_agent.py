"""An agent of one node, told what to do by lines on its stdin.

    python -m tests.scripts.succession_agent FOLDER TORCH ORDINARY

It prints what happens as JSON, one object a line. FOLDER gets the logs and the lock; TORCH is the folder of a torch.
With a text as ORDINARY it may not raise priorities, as other users than root.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

from launcher.nursery.protocol import ModuleToLoad
from launcher.nursery.warm_policy import PreloadConfig
from launcher.system.clock import boottime
from launcher.workers.nursery_client import NurseryClient, NurseryEvent
from launcher.workers.spec import WorkerSpec
from tests.support.succession_harness import order_for, shares

PR_CAPBSET_DROP, CAP_SYS_NICE = 24, 23


def say(what: str, **more: Any) -> None:
    """A line for the test."""
    print(json.dumps({"what": what, **more}), flush=True)


class Agent:
    """The nursery's client, and the orders that it passes on."""

    def __init__(self, folder: Path, torch: str) -> None:
        """Nothing runs yet."""
        self._folder = folder
        self.workers = NurseryClient(
            self._on_event, lock=folder / "lock", recipe=PreloadConfig("", (), torch, ()), adopts=True
        )

    def _on_event(self, event: NurseryEvent) -> None:
        say(type(event).__name__, nursery=self.workers.pid, event=list(event))

    def obey(self, order: dict[str, Any]) -> None:
        """Do what a line says."""
        match order["do"]:
            case "run":
                self.workers.run_until(boottime() + order["s"])
                say("Deadline")  # It has been sent.
            case "spawn":
                spec = WorkerSpec(
                    0,
                    0,
                    (sys.executable, "-c", order["code"]),
                    dict(os.environ),
                    str(self._folder),
                    self._folder / "workerlog.0",
                    False,
                    "==== start ====",
                )
                self.workers.spawn(order["g"], [spec])
            case "prepare":
                wanted = order_for(*(ModuleToLoad(name, file, ()) for name, file in order["modules"]))
                self.workers.prepare(
                    wanted, (), lambda report: say("SuccessorReady"), lambda unfit: say("SuccessorEnded", unfit=unfit)
                )
            case "stop":
                self.workers.kill()


async def main() -> None:
    """Run until the stdin is closed."""
    folder, torch, ordinary = sys.argv[1:]
    if ordinary:  # As another user than root is: what is executed from now on may not raise its priority.
        ctypes.CDLL(None).prctl(PR_CAPBSET_DROP, CAP_SYS_NICE, 0, 0, 0)
    agent = Agent(Path(folder), torch)
    await agent.workers.start()
    agent.workers.run_until(boottime() + 60)
    say("Shares", shares=shares())
    orders = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)
    async for line in orders:
        agent.obey(json.loads(line))
    await agent.workers.close()


if __name__ == "__main__":
    asyncio.run(main())
