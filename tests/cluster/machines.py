"""Machines: containers with addresses of their own, on which agents run, and what can go wrong with one of them.

A machine's first process does nothing, so that an agent can die and leave its machine behind. Its firewall is the
kernel's, in its own network namespace.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from docker.errors import APIError  # type: ignore[import-untyped, unused-ignore]
from testcontainers.core.network import Network

from tests.cluster import engine
from tests.cluster.box import Box

HOLDER = ["/bin/sleep", "infinity"]
MEMORY = "1500m"
"""Of each machine: three times what an agent with one worker needs."""
AGENT = re.compile(r" -m launcher ")
NURSERY = re.compile(r"launcher[./]nursery")
WRITER = re.compile(r"^elastic-launch: writes logs")
NOT_OURS = re.compile(r"^(/sbin/docker-init|/bin/sleep infinity|sleep infinity)")
IPTABLES = ("iptables", "-w")


@dataclass(frozen=True, slots=True)
class Process:
    """One process of a machine, with its number as this host sees it."""

    pid: int
    parent: int
    state: str
    command: str


class Machine(Box):
    """One container. `etcd` is what runs in it instead of agents, "" if agents run."""

    def __init__(self, name: str, address: str, on: Network, shared: Path) -> None:
        self.name = name
        self.address = address
        self._on = on
        self._shared = shared
        self.container = engine.container(
            engine.NODE_IMAGE, name, address, on, HOLDER, engine.mounts(shared), init=True, mem_limit=MEMORY,
            memswap_limit=MEMORY, shm_size="256m",
        )  # fmt: skip

    def command(self, words: list[str], environment: dict[str, str]) -> list[str]:
        """How this host starts a program there; its outputs and its exit code come back."""
        named = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        return ["docker", "exec", *named, "--workdir", str(self._shared), str(self.container.id), *words]

    def processes(self) -> list[Process]:
        """What runs there, without the process that holds it and those that have ended."""
        try:
            rows = self.container.top(ps_args="-eo pid,ppid,stat,args")["Processes"] or []
        except APIError:  # It does not run.
            return []
        found = [Process(int(pid), int(parent), state, command) for pid, parent, state, command in rows]
        return [one for one in found if not NOT_OURS.match(one.command) and not one.state.startswith("Z")]

    def agents(self) -> list[int]:
        """The pids of agents, as this host sees them."""
        return [one.pid for one in self.processes() if AGENT.search(one.command) and not NURSERY.search(one.command)]

    def nurseries(self) -> list[int]:
        """Their pids."""
        agents = self.agents()
        return [one.pid for one in self.processes() if one.parent in agents and not WRITER.search(one.command)]

    def workers(self) -> list[int]:
        """Their pids."""
        nurseries = self.nurseries()
        return [one.pid for one in self.processes() if one.parent in nurseries]

    def signal(self, pids: list[int], what: signal.Signals) -> None:
        """Send it to these, if they are still there."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, what)

    def unplug(self) -> None:
        """Take its network card away: there is no way anywhere, and the machine knows it."""
        engine.client().networks.get(self._on.id).disconnect(self.container)

    def plug(self) -> None:
        """Give it back, with the same address and name."""
        engine.client().networks.get(self._on.id).connect(
            self.container, ipv4_address=self.address, aliases=[self.name]
        )

    def firewall(self, *rules: str) -> None:
        """Add rules, each of them iptables' words without the table: `INPUT -s 10.0.0.1 -j DROP`."""
        for rule in rules:
            self._inside(*IPTABLES, "-A", *rule.split())

    def open(self) -> None:
        """No rule stands any more; those of the engine's own name server stay."""
        self._inside(*IPTABLES, "-F")

    def slow(self, rate: str = "1mbit") -> None:
        """What leaves it takes its time."""
        words = ("root", "tbf", "rate", rate, "burst", "16kb", "latency", "1s")
        self._inside("tc", "qdisc", "add", "dev", self._card(), *words)

    def fast(self) -> None:
        """It does not any more."""
        self._inside("tc", "qdisc", "del", "dev", self._card(), "root")

    def _card(self) -> str:
        """The name of its network card, which is another one when it was plugged in again."""
        return self._inside("ip", "-o", "addr", "show", "to", self.address).split()[1]

    def _inside(self, *words: str) -> str:
        """Run this in its network; what that says."""
        self.container.reload()
        pid = self.container.attrs["State"]["Pid"]
        inside = ["nsenter", "-t", str(pid), "-n", *words]
        return subprocess.run(inside, check=True, stdout=subprocess.PIPE, text=True).stdout
