"""Modules that are installed and misbehave as they are imported, and what the tests of a nursery's successor share."""

from __future__ import annotations

import asyncio
import ctypes
import os
import site
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path

from launcher.nursery.protocol import ModuleToLoad, ModuleUnfit, NurseryReady, PrepareSuccessor
from launcher.workers.nursery_client import NurseryClient
from tests.support.nursery_harness import LIMIT_S

ROOT = Path(__file__).parents[2]
SYS_IOPRIO_GET = {"x86_64": 252, "aarch64": 31}
HELD = """
import os
with open({began!r}, "w") as began:
    began.write(str(os.getpid()))
open({go_on!r}).close()
"""
"""It tells its pid, and waits for somebody to open the other file."""


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


def io_priority(pid: int = 0) -> int:
    """The IO class and priority of a process, as the kernel has them in one number."""
    number = SYS_IOPRIO_GET[os.uname().machine]
    return int(ctypes.CDLL(None).syscall(number, 1, pid))


def shares(pid: int = 0) -> tuple[int, int, int]:
    """What decides about a process's share of the machine: its nice value, its policy, its IO class."""
    return os.getpriority(os.PRIO_PROCESS, pid), os.sched_getscheduler(pid), io_priority(pid)
