"""Modules that are installed and misbehave as they are imported, and what the tests of a nursery's successor share."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import site
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from launcher.nursery.protocol import ModuleToLoad, ModuleUnfit, NurseryReady, PrepareSuccessor
from launcher.system import node_lock
from launcher.workers.nursery_client import NurseryClient
from tests.support.nursery_harness import LIMIT_S
from tests.support.stub_torch import bare

ROOT = Path(__file__).parents[2]
SYS_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
HELD = """
import os
with open({began!r}, "w") as began:
    began.write(str(os.getpid()))
open({go_on!r}).close()
"""
"""It tells its pid, and waits for somebody to open the other file."""
STARTS = """
import os, subprocess
for own_session in (False, True):
    subprocess.Popen(["sleep", "1000"], start_new_session=own_session)
"""
"""A module that starts two programs."""
PROGRAMS_STARTED = 2
WAITS = "import time; time.sleep(1000)"


class InstalledModules:
    """A folder of installed packages of this user, for processes that are started from now on."""

    def __init__(self, folder: Path, setenv: Callable[[str, str], None]) -> None:
        """`setenv` sets a variable of the environment until the end of the test."""
        base = folder / "user"
        self.folder = Path(sysconfig.get_path("purelib", f"{os.name}_user", {"userbase": str(base)}))
        self.folder.mkdir(parents=True)
        setenv("PYTHONUSERBASE", str(base))
        setenv("PYTHONPATH", os.pathsep.join((str(ROOT), str(self.folder))))
        assert site.ENABLE_USER_SITE is not None

    def add(self, name: str, text: str = "") -> ModuleToLoad:
        """A module of this text."""
        path = self.folder / f"{name}.py"
        path.write_text(text)
        return ModuleToLoad(name, str(path), ())

    def hold(self, name: str, before: str = "", after: str = "") -> HeldImport:
        """A module whose import waits until it is let go on; `before` and `after` are run before and after that."""
        began, go_on = (self.folder / f"{name}.{end}" for end in ("began", "go_on"))
        for path in (began, go_on):
            os.mkfifo(path)
        return HeldImport(
            self.add(name, before + HELD.format(began=str(began), go_on=str(go_on)) + after), began, go_on
        )


class HeldImport:
    """A module whose import waits."""

    def __init__(self, module: ModuleToLoad, began: Path, go_on: Path) -> None:
        self.module = module
        self._began = began
        self._go_on = go_on

    async def began(self) -> int:
        """The process that imports it, once it does."""
        return int(await asyncio.to_thread(self._began.read_text))

    def began_now(self) -> int:
        """The same, without a loop."""
        return int(self._began.read_text())

    def go_on(self) -> None:
        """Let the import end."""
        with self._go_on.open("w"):
            pass


def order_for(*modules: ModuleToLoad, changed: tuple[str, ...] = ()) -> PrepareSuccessor:
    """The order for a successor that loads these, for workers that have a RANK."""
    return PrepareSuccessor(modules, ("RANK",), changed, (), 1.0)


class SuccessorNews:
    """What the agent hears of one successor: that it is ready, or the module that it must not load, and why."""

    def __init__(self) -> None:
        """Nothing was heard yet."""
        self._ready: asyncio.Queue[NurseryReady] = asyncio.Queue()
        self._ended: asyncio.Queue[ModuleUnfit] = asyncio.Queue()

    def order(
        self,
        workers: NurseryClient,
        *modules: ModuleToLoad,
        stamps: Sequence[str] = (),
        changed: tuple[str, ...] = (),
    ) -> bool:
        """Ask for one; whether it is made. `changed` as in `PrepareSuccessor`."""
        order = order_for(*modules, changed=changed)
        return workers.prepare(order, stamps, self._ready.put_nowait, self._ended.put_nowait)

    def prepare(
        self,
        workers: NurseryClient,
        *modules: ModuleToLoad,
        stamps: Sequence[str] = (),
        changed: tuple[str, ...] = (),
    ) -> None:
        """Have one made."""
        assert self.order(workers, *modules, stamps=stamps, changed=changed)

    async def ready(self) -> NurseryReady:
        """Wait until it could take over."""
        async with asyncio.timeout(LIMIT_S):
            return await self._ready.get()

    async def ended(self) -> ModuleUnfit:
        """Wait until there will be none."""
        async with asyncio.timeout(LIMIT_S):
            return await self._ended.get()


class AgentOfItsOwn:
    """An agent in another process (`tests.scripts.succession_agent`)."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self.process = process
        self.lock = folder / "lock"
        self.nursery = 0

    def orders(self, do: str, **more: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self.process.stdin.flush()

    def hears(self, what: str) -> dict[str, Any]:
        """The next event of a kind."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            event: dict[str, Any] = json.loads(line)
            self.nursery = event.get("nursery") or self.nursery
            if event["what"] == what:
                return event
        raise AssertionError(f"the agent ended before {what}")

    def begins(self, g: int = 1) -> int:
        """A worker that runs until it is killed."""
        self.orders("spawn", g=g, code=WAITS)
        (pid,) = self.hears("ChildrenForked")["event"][1]
        return int(pid)

    def prepares(self, held: HeldImport) -> int:
        """A successor that imports."""
        self.orders("prepare", modules=[(held.module.name, held.module.file)])
        return held.began_now()

    def has_ready(self, held: HeldImport) -> int:
        """A successor that is ready while workers run."""
        successor = self.prepares(held)
        held.go_on()
        self.hears("SuccessorReady")
        return successor

    def has_handed_over(self, held: HeldImport) -> int:
        """The successor that has taken over while no worker ran."""
        successor = self.prepares(held)
        held.go_on()
        self.hears("NurseryReady")
        assert self.nursery == successor
        return successor

    def becomes_proof(self) -> bool:
        """Wait for the lock: it is freed an instant after the last end can be seen."""
        until = time.monotonic() + LIMIT_S
        while time.monotonic() < until:
            if node_lock.proven_dead(self.lock):
                return True
        return False


@contextlib.contextmanager
def agent(folder: Path, *, ordinary: bool = False, within: tuple[str, ...] = ()) -> Iterator[AgentOfItsOwn]:
    """One that works in this folder; `ordinary`: as a user who may raise no priority; `within`: run by this command."""
    command = (*within, sys.executable, "-m", "tests.scripts.succession_agent")
    arguments = (str(folder), str(bare(folder)), "ordinary" if ordinary else "")
    with subprocess.Popen((*command, *arguments), stdin=-1, stdout=-1, text=True, cwd=folder) as process:
        found = AgentOfItsOwn(process, folder)
        try:
            yield found
        finally:
            process.kill()


def io_priority(pid: int = 0) -> int:
    """The IO class and priority of a process, as the kernel has them in one number."""
    number = SYS_IOPRIO_GET[os.uname().machine]
    return int(ctypes.CDLL(None).syscall(number, 1, pid))


def shares(pid: int = 0) -> tuple[int, int, int]:
    """What decides about a process's share of the machine: its nice value, its policy, its IO class."""
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), io_priority(pid)
