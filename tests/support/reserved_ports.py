"""Ports for tests: no two tests that one pytest runs at the same time are given the same one.

Two pytests that are started side by side share them. A port that was free a moment ago is held by nobody until it is
used. So each of the processes among which pytest-xdist divides the tests has a part of its own, and goes through it in
order, from a place that differs from run to run.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import cycle, islice
from typing import Final

from elastic.errors import ConfigError
from launcher.net.ports import hold

BELOW_EPHEMERAL: Final = range(20_000, 32_000)
"""Below those that the kernel gives to whoever asks for any: so they stay free until they are used."""


def part(environ: Mapping[str, str]) -> Sequence[int]:
    """What a process with these variables may give out."""
    number = int(environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    count = int(environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    size = len(BELOW_EPHEMERAL) // count
    return BELOW_EPHEMERAL[number % count * size :][:size]


def _given(ports: Sequence[int]) -> Iterator[int]:
    return islice(cycle(ports), secrets.randbelow(len(ports)), None)


_PORTS: Final = _given(part(os.environ))


def following(width: int = 1) -> int:
    """The first of `width` ports in a row that no other test is given, free or not."""
    while True:
        ports = list(islice(_PORTS, width))
        if ports[-1] - ports[0] == width - 1:  # Otherwise the part begins anew in between.
            return ports[0]


def listening(port: int, host: str = "0.0.0.0", *, reuse: bool) -> socket.socket:
    """A listening socket as a server makes it; OSError if the port is taken."""
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        made.bind((host, port))
        made.listen()
    except OSError:
        made.close()
        raise
    return made


def entered(block: AbstractContextManager[object]) -> None:
    """Go in and out of a block."""
    with block:
        pass


def free_range(width: int) -> tuple[int, int]:
    """A range of ports that were all free a moment ago, and that no other test is given."""
    for _ in range(100):
        low = following(width)
        try:
            entered(hold("", width, within=(low, low + width - 1)))
        except ConfigError:
            continue
        return low, low + width - 1
    raise AssertionError("no free ports")
