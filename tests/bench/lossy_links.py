"""Links that lose packets or deliver them late: the kernel's netem, or a relay in user space where it has none.

The relay does what netem does: a packet that a host sends is lost by chance, or is late by a random time, so that
packets overtake each other. It owns a TUN device in the network namespace of each host, and the hosts have routes to
each other through them.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import multiprocessing
import os
import random
import secrets
import struct
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import NamedTuple

from tests.cluster.hosts import Host

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
PACKET_MAX = 65_536
IPV4, DESTINATION = 4, slice(16, 20)
"""The version of an IP packet, and where one of version 4 says to which address it goes."""


class End(NamedTuple):
    """Where a host sends to the others: the relay's end of its TUN device."""

    device: int
    address: bytes
    impaired: bool


@dataclass(frozen=True)
class Impairment:
    """What happens to each packet: it is late by `late_s`, more or less by up to `jitter_s`, or lost."""

    late_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0

    def netem(self) -> list[str]:
        """As netem's words."""
        if self.loss:
            return ["loss", f"{100 * self.loss:g}%"]
        return ["delay", f"{1000 * self.late_s:g}ms", f"{1000 * self.jitter_s:g}ms"]

    def delay_s(self, dice: random.Random) -> float | None:
        """How late one packet is; None: it is lost."""
        if dice.random() < self.loss:
            return None
        return self.late_s + dice.uniform(-self.jitter_s, self.jitter_s)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, text=True)


@contextlib.contextmanager
def impaired(hosts: Sequence[Host], others: Sequence[Host], impairment: Impairment) -> Iterator[str]:
    """Do this to every packet that one of the hosts sends, to each other or to the others; gives what does it."""
    words = impairment.netem()
    netem = [["tc", "-n", host.space, "qdisc", "add", "dev", "eth0", "root", "netem", *words] for host in hosts]
    if subprocess.run(netem[0], capture_output=True, check=False).returncode == 0:
        for command in netem[1:]:
            _run(*command)
        yield "netem"
        return
    with contextlib.ExitStack() as stack:
        ends = [_end(host, [*hosts, *others], impaired=host in hosts) for host in (*hosts, *others)]
        for end in ends:
            stack.callback(os.close, end.device)
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_relay, args=(ends, impairment), daemon=True)
        process.start()
        stack.callback(process.join)
        stack.callback(process.kill)
        yield "a relay in user space (the kernel has no netem)"


def _end(host: Host, hosts: Sequence[Host], *, impaired: bool) -> End:
    """Make the TUN device of a host; its routes to the others lead there."""
    name = f"tun{secrets.token_hex(4)}"
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    _run("ip", "link", "set", name, "netns", host.space)
    _run("ip", "-n", host.space, "link", "set", name, "up")
    for other in hosts:
        if other is not host:
            route = ("route", "add", f"{other.address}/32", "dev", name, "src", host.address)
            _run("ip", "-n", host.space, *route)
    return End(device, IPv4Address(host.address).packed, impaired)


def _relay(ends: Sequence[End], impairment: Impairment) -> None:
    """Carry packets between the ends until this process is killed."""

    async def carry() -> None:
        loop, dice = asyncio.get_running_loop(), random.Random()
        devices = {end.address: end.device for end in ends}

        def deliver(device: int, packet: bytes) -> None:
            with contextlib.suppress(OSError):  # The host's queue is full, or the host is gone.
                os.write(device, packet)

        def take(end: End) -> None:
            with contextlib.suppress(OSError):  # There is no packet.
                packet = os.read(end.device, PACKET_MAX)
                device = devices.get(packet[DESTINATION]) if packet[0] >> 4 == IPV4 else None
                delay_s = impairment.delay_s(dice) if end.impaired else 0.0
                if device is not None and delay_s is not None:
                    loop.call_later(delay_s, deliver, device, packet)

        for end in ends:
            loop.add_reader(end.device, take, end)
        await loop.create_future()

    asyncio.run(carry())
