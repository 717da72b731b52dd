"""Parameter-server jobs started by hand: real processes with nothing but their environment."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.scripts.torch_forkserver import Forked
from tests.support.etcd_servers import free_ports

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 100.0
"""How long anything may take on a slow machine: each process imports torch."""
PUPPET = ("-m", "tests.scripts.ps_commanded")
SYNC = ("-m", "tests.scripts.ps_sync_training")
EMBEDDING = ("-m", "elastic.examples.ps_embedding")
FORKED = (PUPPET, SYNC, EMBEDDING)
"""These are forked from a process that has torch; anything else is what a user starts, and python runs it."""


def _plain(command: tuple[str, ...], environ: Mapping[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class Process:
    """One process whose output is read as it comes."""

    def __init__(self, name: str, command: tuple[str, ...], environ: Mapping[str, str]) -> None:
        self.name = name
        self.said: list[str] = []
        self.popen = Forked(command[1:], environ) if command[:2] in FORKED else _plain(command, environ)
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self._lines.put(line.rstrip("\n"))
        self._lines.put(None)

    def until(self, pattern: str) -> re.Match[str]:
        """The first line from here on in which the pattern is found."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"{self.name} never said {pattern!r} but\n" + "\n".join(self.said)) from None
            if line is None:
                self._lines.put(None)
                raise AssertionError(f"{self.name} ended without {pattern!r}, it said\n" + "\n".join(self.said))
            self.said.append(line)
            if found := re.search(pattern, line):
                return found

    def tell(self, command: str) -> None:
        """Give a puppet a command."""
        assert self.popen.stdin is not None
        self.popen.stdin.write(command + "\n")
        self.popen.stdin.flush()

    def ask(self, command: str) -> str:
        """Give a puppet a command, and its answer."""
        self.tell(command)
        return self.until(f"^{command.partition(' ')[0]} (.*)$")[1]

    def end(self) -> int:
        """Wait for the exit code; every line is in `said` then."""
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self.popen.stdin.close()
        code = self.popen.wait(LIMIT_S)
        if not self.popen.stdout.closed:
            self._reader.join(LIMIT_S)
            self.popen.stdout.close()
            while (line := self._lines.get()) is not None:
                self.said.append(line)
        return code

    def kill(self) -> None:
        """SIGKILL, and wait."""
        self.popen.send_signal(signal.SIGKILL)
        self.end()


class Job:
    """Some servers and workers, on addresses of the loopback network of their own."""

    def __init__(self, folder: Path, servers: int, trainers: int, command: tuple[str, ...] = PUPPET) -> None:
        self.folder = folder
        self.command = command
        (self.port,) = free_ports(1)
        # Each server has a host of its own and all have one port, as in a cluster.
        self.hosts = [f"127.0.0.{n + 1}" for n in range(servers)]
        self.trainers = trainers
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith(("ELASTIC_", "PADDLE_"))} | {
            "OMP_NUM_THREADS": "1",
            "PYTHONWARNINGS": "error",
            "PADDLE_PSERVER_IPS": ",".join(self.hosts),
            "PADDLE_PSERVER_PORT": str(self.port),
            "PADDLE_TRAINERS": str(trainers),
        }
        self.processes: list[Process] = []

    @property
    def servers(self) -> list[str]:
        """Where the servers are."""
        return [f"{host}:{self.port}" for host in self.hosts]

    def server(self, index: int, *more: str, **environ: str) -> Process:
        role = {"PADDLE_TRAINING_ROLE": "PSERVER", "PADDLE_CURRENT_IP": self.hosts[index]}
        return self._start(f"server {index}", more, role | environ)

    def worker(self, index: int, *more: str, **environ: str) -> Process:
        role = {"PADDLE_TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(index)}
        return self._start(f"worker {index}", more, role | environ)

    def _start(self, name: str, more: tuple[str, ...], environ: Mapping[str, str]) -> Process:
        process = Process(name, (*self.command, *more), {**self.environ, **environ})
        self.processes.append(process)
        return process


@contextmanager
def job(folder: Path, *, servers: int = 2, trainers: int = 2, command: tuple[str, ...] = PUPPET) -> Iterator[Job]:
    """A job whose processes have all ended by themselves when the story is over."""
    made = Job(folder, servers, trainers, command)
    try:
        yield made
        left = [process.name for process in made.processes if process.popen.poll() is None]
        assert not left, f"still running: {left}"
    finally:
        for process in made.processes:
            process.kill()
