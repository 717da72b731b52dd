"""Ports for tests: no two tests that one pytest runs at the same time are given the same one.

Two pytests that are started side by side share them. A port that was free a moment ago is held by nobody until it is
used. So each of the processes among which pytest-xdist divides the tests has a part of its own, and goes through it in
order, from a place that differs from run to run.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Final

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
