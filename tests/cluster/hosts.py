"""Hosts with their own addresses on one machine: network namespaces on a bridge, an etcd in one of them.

Needs root and iproute2. Everything that runs in a namespace can be listed, killed, and cut off from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from elastic.store.embedded import find_etcd
from tests.support.awaited_events import command_of

NETWORK = "10.213.7"
NETWORK_V6 = "fd13:7"
ETC = Path("/etc/netns")
"""What lies here under a namespace's name is seen there in /etc."""
LIMIT_S = 90.0
AGENT = r"-m launcher |launcher\.nursery|^elastic-launch: writes logs"
"""In the command lines of agents, nurseries, and those that write logs."""
WALLS = 100
"""Routing tables from this number on lead to walls."""


def missing() -> str:
    """Why there can be no hosts here, "" if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip command (Debian: iproute2)"
    probe = f"el-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False)
    return made.stderr.strip()


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


class Host:
    """One namespace: an address, and what runs there."""

    def __init__(self, number: int, bridge: str, tag: str) -> None:
        self.number = number
        self.address = f"{NETWORK}.{number}"
        self.address_v6 = f"{NETWORK_V6}::{number:x}"
        self.space = f"el{tag}-{number}"
        self._cable = f"v{tag}{number}"
        _ip("netns", "add", self.space)
        _ip("link", "add", self._cable, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        _ip("link", "set", self._cable, "master", bridge, "up")
        _ip("-n", self.space, "addr", "add", f"{self.address}/24", "dev", "eth0")
        _ip("-n", self.space, "addr", "add", f"{self.address_v6}/64", "dev", "eth0", "nodad")
        for device in ("lo", "eth0"):
            _ip("-n", self.space, "link", "set", device, "up")

    def knows(self, names: Mapping[str, str]) -> None:
        """What starts here from now on reads these names, with their addresses, in its /etc/hosts."""
        (ETC / self.space).mkdir(parents=True)
        lines = "".join(f"{address} {name}\n" for name, address in names.items())
        (ETC / self.space / "hosts").write_text(f"127.0.0.1 localhost\n{lines}")

    def command(self, words: Sequence[str]) -> list[str]:
        """How a command is started here: `ip` becomes it, and forks nothing."""
        return ["ip", "netns", "exec", self.space, *words]

    def pids(self) -> list[int]:
        """Every process in the namespace."""
        return [int(pid) for pid in _ip("netns", "pids", self.space).split()]

    def workers(self) -> list[int]:
        """What is neither an agent nor its nursery. A warm worker shows its variables to nobody."""
        commands = {pid: command_of(pid) for pid in self.pids()}
        return [pid for pid, command in commands.items() if command and not re.search(AGENT, command)]

    def cut(self) -> None:
        """Pull the cable: no packet comes or goes, nothing is refused."""
        _ip("link", "set", self._cable, "down")

    def mend(self) -> None:
        """Plug the cable in again."""
        _ip("link", "set", self._cable, "up")

    def listens(self) -> list[int]:
        """The TCP ports on which something listens here."""
        lines = _ip("netns", "exec", self.space, "ss", "-tlnH").splitlines()
        return [int(line.split()[3].rpartition(":")[2]) for line in lines]

    def deafen(self, port: int, other: Host) -> None:
        """A firewall in one direction: `other` cannot connect to this port, while this host reaches `other`."""
        rule = ("to", f"{other.address}/32", "ipproto", "tcp", "sport", str(port), "blackhole")
        _ip("-n", self.space, "rule", "add", "priority", "10", *rule)

    def drop(self, other: Host) -> None:
        """A firewall that lets nothing from here to `other` out, while what `other` sends arrives."""
        _ip("-n", self.space, "rule", "add", "priority", "10", "to", f"{other.address}/32", "blackhole")

    def let(self, other: Host) -> None:
        """Without it."""
        _ip("-n", self.space, "rule", "del", "priority", "10", "to", f"{other.address}/32", "blackhole")

    def goes_by(self, wall: Host, other: Host, port: int) -> None:
        """What goes from here to this port of `other` goes to another machine, which resets it (`Cluster.wall`)."""
        table = str(WALLS + wall.number)
        _ip("-n", self.space, "route", "replace", f"{other.address}/32", "via", wall.address, "table", table)
        rule = ("to", f"{other.address}/32", "ipproto", "tcp", "dport", str(port), "lookup", table)
        _ip("-n", self.space, "rule", "add", "priority", str(WALLS), *rule)

    def goes_straight(self) -> None:
        """Without it."""
        _ip("-n", self.space, "rule", "del", "priority", str(WALLS))

    def connected(self, other: Host, port: int) -> bool:
        """Whether this host has a connection to this port of `other`."""
        words = ("ss", "-tnH", "state", "established", "dst", f"{other.address}:{port}")
        return bool(_ip("netns", "exec", self.space, *words).strip())

    def power_off(self) -> None:
        """Everything on the host is gone in one moment, and so is its network."""
        self.cut()
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> None:
        """End what runs and take the namespace away."""
        self.power_off()
        _ip("netns", "del", self.space)
        shutil.rmtree(ETC / self.space, ignore_errors=True)


class Agent:
    """One agent on a host. Its lines can be awaited."""

    def __init__(self, host: Host, process: asyncio.subprocess.Process) -> None:
        self.host = host
        self.process = process
        self.lines: list[str] = []
        self._news = asyncio.Condition()
        self.reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            await self._tell(line.decode(errors="replace").rstrip())
        await self._tell("(ended)")

    async def _tell(self, line: str) -> None:
        async with self._news:
            self.lines.append(line)
            self._news.notify_all()

    async def says(self, pattern: str, *, since: int = 0) -> int:
        """Wait for a line; the place after it."""
        async with asyncio.timeout(LIMIT_S), self._news:
            place = since
            while True:
                while place < len(self.lines):
                    line, place = self.lines[place], place + 1
                    if re.search(pattern, line):
                        return place
                    assert line != "(ended)", f"ended without {pattern!r}:\n" + "\n".join(self.lines)
                await self._news.wait()

    async def ends(self) -> int:
        """Wait for the exit code."""
        async with asyncio.timeout(LIMIT_S):
            code = await self.process.wait()
            await self.reading
            return code


class Cluster:
    """A bridge, an etcd on a host of its own, and hosts for agents."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tag = secrets.token_hex(2)
        self._bridge = f"elb{self._tag}"
        self._number = 0
        self._hosts: list[Host] = []
        self._agents: list[Agent] = []
        self.server = ""

    def host(self) -> Host:
        """One more host."""
        self._number += 1
        host = Host(self._number, self._bridge, self._tag)
        self._hosts.append(host)
        return host

    @property
    def first(self) -> Host:
        """Where etcd runs."""
        return self._hosts[0]

    def wall(self, host: Host) -> Host:
        """A machine that answers for `host` what is sent by it: nothing listens there, so that all is reset."""
        made = self.host()
        settings = "net.ipv4.conf.all.arp_ignore"
        _ip("netns", "exec", made.space, "sysctl", "-qw", f"{settings}=1")  # Others must not find the host here.
        _ip("-n", made.space, "addr", "add", f"{host.address}/32", "dev", "lo")
        return made

    async def start(self) -> None:
        """Make the network and start etcd."""
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("link", "set", self._bridge, "up")
        host = self.host()
        client, peer = f"http://{host.address}:2379", f"http://{host.address}:2380"
        command = (
            f"{find_etcd()} --data-dir {self._folder / 'etcd'} --listen-client-urls {client} --advertise-client-urls "
            f"{client} --listen-peer-urls {peer} --initial-advertise-peer-urls {peer} --initial-cluster default={peer}"
        )
        with (self._folder / "etcd.log").open("wb") as log:
            await asyncio.create_subprocess_exec(*host.command(command.split()), stdout=log, stderr=log)
        self.server = f"{host.address}:2379"

    async def agent(self, host: Host, *words: str, server: bool = True, folder: Path | None = None) -> Agent:
        """Start an agent there; its two outputs come as one. `server` names the etcd."""
        named = ("--elastic-server", self.server) if server else ()
        return await self.python(host, "-m", "launcher", *named, *words, folder=folder)

    async def python(self, host: Host, *words: str, folder: Path | None = None) -> Agent:
        """Start python there with these words: an agent, or a script that becomes one."""
        process = await asyncio.create_subprocess_exec(
            *host.command([sys.executable, *words]),
            cwd=folder or self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        agent = Agent(host, process)
        self._agents.append(agent)
        return agent

    async def doctor(self, host: Host, *words: str) -> tuple[int, str]:
        """`elastic-ctl doctor` there, run to its end: exit code and what it says."""
        process = await asyncio.create_subprocess_exec(
            *host.command([sys.executable, "-m", "launcher.ctl", "doctor", "--elastic-server", self.server, *words]),
            cwd=self._folder,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(LIMIT_S):
            out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()

    async def close(self) -> None:
        """Nothing stays."""
        for host in self._hosts:
            host.remove()
        for agent in self._agents:
            await agent.ends()
        _ip("link", "del", self._bridge)


@contextlib.asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster for one test."""
    made = Cluster(folder)
    try:
        await made.start()
        yield made
    finally:
        await made.close()
