"""Three etcd members, four machines and one job that trains on them: what a fault strikes, and what is seen of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from random import Random
from typing import Final

from tests.cluster import engine
from tests.cluster.feed import Feed, Line
from tests.cluster.machines import Machine
from tests.cluster.members import Members
from tests.cluster.verdicts import Verdicts

MACHINES: Final = 4
FIRST_ADDRESS: Final = 11
TTL_S: Final = 5
OUTAGE_LIMIT_S: Final = 90
DISK: Final = "64m"
JOB: Final = "j1"
STARTS_S: Final = 120.0
RECOVERS_S: Final = 120.0
ENDS_S: Final = 90.0
STEP: Final = r"step (\d+) world (\d+) generation (\S+) at ([\d.]+)"
ENDED: Final = "(ended with {})"


class Stage:
    """A cluster with its job. All waits have a limit and say what they wait for."""

    def __init__(self, folder: Path, members: Members, machines: list[Machine], flags: tuple[str, ...]) -> None:
        self.folder = folder
        self.members = members
        self.machines = machines
        self.flags = flags
        self.feed = Feed()
        self.verdicts = Verdicts(folder)
        self._agents: dict[str, asyncio.subprocess.Process] = {}
        self._readers: list[asyncio.Task[None]] = []
        self._struck: set[str] = set()

    @property
    def now(self) -> int:
        """The place in the feed after everything that was said so far."""
        return len(self.feed.lines)

    @property
    def disk(self) -> Path:
        """Where checkpoints go."""
        return self.folder / "disk"

    def note(self, text: str) -> None:
        """Write this between the lines of the agents."""
        self.feed.lines.append(Line("----", text))

    def draw(self, dice: Random) -> Machine:
        """A machine that no other fault of this moment has struck."""
        machine = dice.choice([machine for machine in self.machines if machine.name not in self._struck])
        self._struck.add(machine.name)
        return machine

    def others(self, machine: Machine) -> list[Machine]:
        """All machines but this one."""
        return [other for other in self.machines if other is not machine]

    async def begin(self) -> None:
        """Start an agent on each machine and wait until all of them train."""
        for machine in self.machines:
            await self.agent(machine)
        await self.trains(len(self.machines), limit_s=STARTS_S)

    async def agent(self, machine: Machine) -> None:
        """Start one there."""
        words = [
            sys.executable, "-m", "launcher", "--elastic-server", self.members.servers, "--job-id", JOB,
            "--np", f"1:{len(self.machines)}", "--lease-ttl", str(TTL_S), "--join-window", "1",
            "--scale-up-interval", "1",
            "--etcd-outage-timeout", str(OUTAGE_LIMIT_S), "--max-restarts", "1000", "--connect-timeout", "600",
            "--nproc-per-node", "1", "--verbose", "--log-dir", str(self.folder / "log" / machine.name),
            "--checkpoint-dir", str(self.disk), *self.flags, "-m", "tests.cluster.training", str(self.folder),
        ]  # fmt: skip
        environment = {"PYTHONPATH": str(engine.ROOT), "OMP_NUM_THREADS": "1", "PATH": os.environ["PATH"]}
        process = await asyncio.create_subprocess_exec(
            *machine.command(words, environment),
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        self._agents[machine.name] = process
        self._readers.append(asyncio.create_task(self._read(machine.name, process)))

    async def _read(self, name: str, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            await self.feed.add(name, line.decode(errors="replace").rstrip())
        await self.feed.add(name, ENDED.format(await process.wait()))

    async def says(self, pattern: str, *, since: int, of: Machine | None = None, limit_s: float = RECOVERS_S) -> int:
        """Wait for a line; the place after it."""
        place, _ = await self.feed.until(pattern, since=since, limit_s=limit_s, of=of.name if of else None)
        return place

    async def trains(self, world: int, *, limit_s: float = RECOVERS_S, steps: int = 10) -> tuple[int, str]:
        """Wait until a world of this size makes `steps` steps from now on; the last of them, and its generation.

        A generation is named with its incarnation: an etcd that comes back empty counts from 1 again.
        """
        began = time.monotonic()
        first: tuple[int, str] | None = None
        place = self.now
        while True:
            left_s = max(0.0, began + limit_s - time.monotonic())
            place, found = await self.feed.until(STEP, since=place, limit_s=left_s)
            step, size, generation = int(found[1]), int(found[2]), found[3]
            if float(found[4]) < began or size != world:
                continue  # A frozen agent says late what its worker said before.
            if first is None or first[1] != generation:
                first = (step, generation)
            elif step >= first[0] + steps:
                return step, generation

    def heal(self) -> None:
        """All faults of this moment are over."""
        self._struck.clear()

    async def all_here(self, *, limit_s: float = RECOVERS_S) -> tuple[int, str]:
        """Start agents on machines that have none, and wait until all train together; a step, and its generation."""
        self.heal()
        for machine in self.machines:
            if self._agents[machine.name].returncode is not None:
                await self.agent(machine)
        return await self.trains(len(self.machines), limit_s=limit_s)

    async def left(self, machine: Machine) -> int:
        """Wait until the agent there has ended; its exit code."""
        async with asyncio.timeout(ENDS_S):
            return await self._agents[machine.name].wait()

    async def finish(self) -> None:
        """Let the job end, and check all that must be true of it."""
        step, _ = await self.trains(len(self.machines))
        goal = step + 100
        (self.folder / "goal").write_text(str(goal))
        await self.says(f"the end: step {goal}", since=0)
        codes = {machine.name: await self.left(machine) for machine in self.machines}
        assert set(codes.values()) == {0}, f"exit codes {codes}\n{self.feed.tail()}"
        await asyncio.gather(*self._readers)
        orphans = {machine.name: [one.command for one in machine.processes()] for machine in self.machines}
        assert not any(orphans.values()), f"left behind: {orphans}"
        leased = {key: lease for key, lease in self.members.keys(f"/elastic/{JOB}/").items() if lease}
        assert not leased, f"keys that nobody holds any more: {leased}"
        self.verdicts.check(goal, [line.text for line in self.feed.lines])

    async def close(self) -> None:
        """Nothing stays."""
        for machine in self.machines:
            machine.container.remove(force=True)
        for member in self.members.all:
            member.container.remove(force=True)
        await asyncio.gather(*self._readers)


@contextlib.asynccontextmanager
async def stage(folder: Path, *flags: str, machines: int = MACHINES, etcd: str = "3.5") -> AsyncIterator[Stage]:
    """A stage whose job has not begun. `flags` are added to those of each agent; `etcd` is its version."""
    engine.images()
    engine.sweep()
    for name in ("steps", "log"):
        (folder / name).mkdir()
    with _disk(folder / "disk"), engine.network() as (network, prefix):
        members = Members(prefix, network, etcd)
        nodes = [
            Machine(f"node{number}", f"{prefix}.{FIRST_ADDRESS + number}", network, folder)
            for number in range(machines)
        ]
        made = Stage(folder, members, nodes, flags)
        try:
            members.until_led()
            yield made
        finally:
            await made.close()


@contextlib.contextmanager
def _disk(where: Path) -> Iterator[None]:
    """A small disk there."""
    where.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", str(where)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(where)], check=True)
