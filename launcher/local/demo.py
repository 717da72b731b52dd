"""Demonstrates elastic-launch on this host.

    python -m elastic.examples.demo [--step_time 0.05]

Three nodes train the digits example. The demo kills one of them (SIGKILL) during a step; the others continue from
memory. Then a new node joins. At the end a summary lists each guarantee and whether it held; the exit code is 0 only if
all of them did. The joining node has to import torch before the others are done: longer steps give a slow host the time
for that.
"""

from __future__ import annotations

import argparse
import asyncio
import re
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from elastic.errors import ElasticError
from elastic.store.embedded import EmbeddedEtcd
from launcher.system.signals import SignalQueue
from launcher.system.time_limit import wait_at_most

EPOCHS = 36
STEP_S = 0.05
CHECKPOINT_EVERY = 50
STEPS_BEFORE_KILL = 120
STEPS_BEFORE_JOIN = 20
ACCURACY_MIN = 96.0
WAIT_LIMIT_S = 120.0
END_LIMIT_S = 20.0
POLL_S = 0.1
WIDTH = 260

_STEP = re.compile(r"(\d+\.\d+) generation=(\d+) rank=(\d+) world=(\d+) step=(\d+) pid=\d+\n")
_STACK = re.compile(r"\[rank\d+\]: (Traceback| )")
_ACCURACY = re.compile(r"test accuracy (\d+\.\d) % after (\d+) steps")


class DemoFailed(Exception):
    """A guarantee did not hold; the text says which."""

    exit_code = 1


@dataclass(frozen=True)
class LoggedStep:
    """One line of the step log."""

    at_s: float
    generation: int
    rank: int
    world: int
    step: int


class DemoNode:
    """One agent. Its output has its name as prefix; only the last line of a traceback is shown, long lines are cut."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.process = process
        self.accuracy: float | None = None
        self.shown = asyncio.create_task(self._show())

    async def _show(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            text = line.decode(errors="replace").rstrip()
            if found := _ACCURACY.search(text):
                self.accuracy = float(found[1])
            if not _STACK.match(text):
                print(f"{self.name} | {text if len(text) <= WIDTH else text[:WIDTH] + ' ...'}", flush=True)

    async def end(self) -> None:
        """Stop the agent if it still runs: SIGTERM, then SIGKILL."""
        if self.process.returncode is None:
            self.process.terminate()
            await wait_at_most(END_LIMIT_S, self.process.wait())
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self.shown


class Demo:
    """The nodes, the log of their steps, and the scenario."""

    def __init__(self, server: str, folder: Path, step_s: float) -> None:
        self.server = server
        self.folder = folder
        self.step_s = step_s
        self.log = folder / "steps.log"
        self.nodes: list[DemoNode] = []

    async def start(self) -> DemoNode:
        """Start a node."""
        name = f"node {len(self.nodes) + 1}"
        launcher = ("-m", "launcher", "--elastic-server", self.server, "--job-id", "demo", "--np", "3")
        settings = ("--nproc-per-node", "1", "--join-window", "1", "--preload", "sklearn.datasets")
        folders = ("--log-dir", str(self.folder / "log"), "--checkpoint-dir", str(self.folder / "checkpoints"))
        script = ("-m", "elastic.examples.digits", "--epochs", str(EPOCHS), "--step_time", str(self.step_s))
        logged = ("--checkpoint_every", str(CHECKPOINT_EVERY), "--step_log", str(self.log))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *launcher, *settings, *folders, *script, *logged),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        node = DemoNode(name, process)
        self.nodes.append(node)
        return node

    def steps(self) -> list[LoggedStep]:
        """Return the steps of rank 0 of each generation so far, in order."""
        text = self.log.read_text() if self.log.exists() else ""
        lines = [LoggedStep(float(f[1]), int(f[2]), int(f[3]), int(f[4]), int(f[5])) for f in _STEP.finditer(text)]
        return [line for line in lines if line.rank == 0]

    async def until(self, what: str, condition: Callable[[list[LoggedStep]], bool]) -> list[LoggedStep]:
        """Wait until the steps so far satisfy `condition`. Raises `DemoFailed` at the time limit or if a node exits."""
        deadline = time.monotonic() + WAIT_LIMIT_S
        while not condition(steps := self.steps()):
            ended = [node for node in self.nodes if node.process.returncode not in (None, -9)]
            if ended:
                code = ended[0].process.returncode
                longer_s = 2 * max(self.step_s, STEP_S)
                slow = f"; on a slow machine, make the job longer: --step_time {longer_s:g}" if code == 0 else ""
                raise DemoFailed(f"{ended[0].name} exited with code {code} before {what}{slow}")
            if time.monotonic() > deadline:
                raise DemoFailed(f"timed out after {WAIT_LIMIT_S:.0f} s waiting for {what}")
            await asyncio.sleep(POLL_S)
        return steps

    async def play(self) -> bool:
        """Run the scenario; return whether every guarantee held."""
        narrate("three nodes start")
        for _ in range(3):
            await self.start()
        await self.until(
            f"step {STEPS_BEFORE_KILL} at world size 3",
            lambda s: any(x.world == 3 and x.step >= STEPS_BEFORE_KILL for x in s),
        )

        victim = self.nodes[1]
        killed_at_s = time.time()
        victim.process.kill()
        narrate(f"{victim.name} is killed (SIGKILL) at step {self.steps()[-1].step}")
        steps = await self.until(
            "training with the two remaining nodes", lambda s: any(x.world == 2 and x.at_s > killed_at_s for x in s)
        )
        resumed = next(x for x in steps if x.world == 2 and x.at_s > killed_at_s)
        recovery_s = resumed.at_s - killed_at_s
        narrate(f"training continues {recovery_s:.1f} s after the kill, at step {resumed.step}")

        await self.until(
            "more steps at world size 2", lambda s: s[-1].world == 2 and s[-1].step >= resumed.step + STEPS_BEFORE_JOIN
        )
        joined_at_s = time.time()
        joiner = await self.start()
        narrate(f"{joiner.name} starts")
        steps = await self.until("world size 3 again", lambda s: s[-1].world == 3 and s[-1].at_s > joined_at_s)
        regrown = next(x for x in steps if x.world == 3 and x.at_s > joined_at_s)
        narrate(f"{joiner.name} has joined, {regrown.at_s - joined_at_s:.1f} s after its start, at step {regrown.step}")

        await self._await_end()
        return self._summary(victim, recovery_s)

    async def _await_end(self) -> None:
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                for node in self.nodes:
                    await node.process.wait()
                    await node.shown
        except TimeoutError:
            raise DemoFailed(f"the nodes did not exit within {WAIT_LIMIT_S:.0f} s") from None

    def _summary(self, victim: DemoNode, recovery_s: float) -> bool:
        lines = self.steps()
        changes = [(before, line) for before, line in pairwise(lines) if line.generation != before.generation]
        worlds = [lines[0], *(line for _, line in changes)]
        back = max([0, *(before.step + 1 - line.step for before, line in changes)])
        accuracy = next((node.accuracy for node in self.nodes if node.accuracy is not None), None)
        codes = {node.name: node.process.returncode for node in self.nodes}
        promises = {
            f"world sizes: {' -> '.join(str(line.world) for line in worlds)}, from steps "
            f"{', '.join(str(line.step) for line in worlds)}": [line.world for line in worlds] == [3, 2, 3],
            f"steps: {lines[-1].step} in all; at most {back} repeated (each is saved in memory)": (back <= 1),
            f"from the kill to the next step: {recovery_s:.1f} s": True,
            f"test accuracy: {accuracy} % (required: {ACCURACY_MIN:.0f} %)": (
                accuracy is not None and accuracy >= ACCURACY_MIN
            ),
            f"exit codes: {', '.join(f'{name}: {code}' for name, code in codes.items())} (-9 is the kill)": all(
                code == (-9 if name == victim.name else 0) for name, code in codes.items()
            ),
        }
        narrate("summary")
        for text, good in promises.items():
            print(f"  {'ok ' if good else 'BAD'} {text}")
        return all(promises.values())


def narrate(text: str) -> None:
    """Print a line of the scenario, in bold on a terminal."""
    line = f"=== {text}"
    print(f"\x1b[1m{line}\x1b[0m" if sys.stdout.isatty() else line, flush=True)


async def run(folder: Path, step_s: float) -> int:
    """Run etcd and the scenario. Stops all agents afterwards, even after a signal; they run in their own sessions."""
    signals = SignalQueue()
    playing = asyncio.create_task(_run(folder, step_s))
    either: set[asyncio.Future[Any]] = {playing, signals.first}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if playing.done():
        return playing.result()
    playing.cancel()
    forced = asyncio.create_task(signals.second.wait())
    await asyncio.wait({playing, forced}, return_when=asyncio.FIRST_COMPLETED)
    return 128 + signals.first.result()


async def _run(folder: Path, step_s: float) -> int:
    async with EmbeddedEtcd() as etcd:
        demo = Demo(etcd.endpoint, folder, step_s)
        try:
            return 0 if await demo.play() else 1
        finally:
            async with asyncio.TaskGroup() as group:
                for node in demo.nodes:
                    group.create_task(node.end())


def main() -> int:
    """Run the demo in a temporary directory."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--step_time", type=float, default=STEP_S, help="minimum seconds per step (default: %(default)s)"
    )
    step_s = parser.parse_args().step_time
    with tempfile.TemporaryDirectory(prefix="elastic-demo-") as folder:
        try:
            return asyncio.run(run(Path(folder), step_s))
        except (ElasticError, DemoFailed) as error:
            narrate(f"BAD: {error}")
            return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
