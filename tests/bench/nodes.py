"""Nodes of a benchmark: one launcher process each, with all that it started, and what may happen to them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from tests.cluster.hosts import Host

POLL_S = 0.02
ROOT = Path(__file__).parents[2]


class Node:
    """One agent, its output in a file, and every process below it. `host` is the network namespace it runs in."""

    def __init__(
        self,
        command: Sequence[str],
        output: Path,
        environ: Mapping[str, str] | None = None,
        host: Host | None = None,
    ) -> None:
        self.output = output
        self._host = host
        inherited = {name: text for name, text in os.environ.items() if not name.startswith("ELASTIC_")}
        paths = [str(ROOT), *filter(None, [inherited.get("PYTHONPATH")])]
        set_here = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
        with output.open("wb") as file:
            self._process = subprocess.Popen(
                command if host is None else host.command(command),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=inherited | set_here | dict(environ or {}),
                start_new_session=True,
            )
        self.process = psutil.Process(self._process.pid)
        self._known: list[psutil.Process] = []
        """What was below the agent when something happened to it: `kill` ends these too."""

    def alive(self) -> bool:
        """Tell whether the agent still runs."""
        return self._process.poll() is None

    def holds(self, pid: int) -> bool:
        """Tell whether a process is the agent's or below it."""
        try:
            above = psutil.Process(pid).parents()
        except psutil.NoSuchProcess:
            return False
        return self.process.pid in {pid, *(process.pid for process in above)}

    def cpu_s(self, without: Collection[int]) -> float:
        """CPU seconds of the agent and all below it that are not these processes; also of those that have ended."""
        total = 0.0
        for process in (self.process, *self._below()):
            if process.pid not in without:
                with contextlib.suppress(psutil.NoSuchProcess):
                    total += sum(process.cpu_times()[:4])  # Its own, and of children that it has waited for.
        return total

    def kill(self) -> float:
        """SIGKILL the agent and everything below it, as a lost machine would; the wall clock just before."""
        below = self._below()
        at_s = time.time()
        self._process.kill()
        _signal([*below, *self._known], signal.SIGKILL)
        self._process.wait()
        return at_s

    def kill_agent(self) -> float:
        """SIGKILL the agent alone; the wall clock just before."""
        self._known = self._below()
        at_s = time.time()
        self._process.kill()
        self._process.wait()
        return at_s

    def freeze(self) -> float:
        """SIGSTOP the agent and everything below it, as a machine that hangs; the wall clock just before."""
        self._known = self._below()
        at_s = time.time()
        self._process.send_signal(signal.SIGSTOP)
        _signal(self._known, signal.SIGSTOP)
        return at_s

    def cut(self) -> float:
        """Pull the cable of its host; the wall clock just before."""
        assert self._host is not None
        self._known = self._below()
        at_s = time.time()
        self._host.cut()
        return at_s

    def drain(self) -> float:
        """SIGTERM to the agent; the wall clock just before."""
        self._known = self._below()
        at_s = time.time()
        self._process.terminate()
        return at_s

    def _below(self) -> list[psutil.Process]:
        return self.process.children(recursive=True) if self.alive() else []


@contextlib.contextmanager
def ended(nodes: Sequence[Node]) -> Iterator[None]:
    """End the nodes when the block is left, however it is left."""
    try:
        yield
    finally:
        for node in nodes:
            node.kill()


def end_in_order() -> None:
    """Let SIGTERM end this benchmark as an exception does: nothing that it started stays."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def wait_until(condition: Callable[[], bool], limit_s: float, what: str, nodes: Sequence[Node]) -> None:
    """Wait for a condition; on time-out show how far the nodes came."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            tails = "\n".join(f"--- {node.output}\n{node.output.read_text()[-2000:]}" for node in nodes)
            raise TimeoutError(f"{what}: not within {limit_s:.0f} s\n{tails}")
        time.sleep(POLL_S)


def _signal(processes: Sequence[psutil.Process], number: int) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)
