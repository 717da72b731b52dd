"""What the agent and its nursery say to each other, and what a worker leaves in files for its agent."""

from __future__ import annotations

import math

from launcher import errorfile, progressfile, wire
from tests.fuzz.target import Target, scratch

FOLDER = scratch("pipes")
PIECE = 900


def nursery(data: bytes) -> None:
    """A line is an order, or a report, or a `WireError`, which ends the conversation; a time is a number."""
    cut = wire.Lines()
    for start in range(0, len(data), PIECE):
        for line in cut.feed(data[start : start + PIECE]):
            for read in (wire.order, wire.report):
                try:
                    found = read(line)
                except wire.WireError:
                    continue
                assert read(wire.encode(found)) == found
                assert all(math.isfinite(one) for one in found if isinstance(one, float))


def recorded(data: bytes) -> None:
    """The error file of a worker is its script's: whatever stands there, it is some lines or none."""
    found = errorfile.said(data)
    assert len(found) <= 2 * errorfile.LINES_MAX
    assert all(line.isprintable() and len(line) <= 500 for line in found)


def step(data: bytes) -> None:
    """The file with a worker's step is its script's, too: it is a step that a document can hold, or none."""
    path = FOLDER / "progress"
    path.write_bytes(data)
    assert -1 <= progressfile.step(path) <= 2**62


MESSAGES: tuple[wire.Order | wire.Report, ...] = (
    wire.Until(12.5),
    wire.Spawn(3, (wire.Start(0, ("python", "t.py"), {"A": "b", "C": "\udcff"}, "/tmp"),)),
    wire.Stop(2.0, (0, 1)),
    wire.Kill(),
    wire.Renew(),
    wire.Close(),
    wire.Ready(12),
    wire.Prepared("", "said", ("a",)),
    wire.Obeyed(3),
    wire.Started(3, (1, 2), ("", "cold")),
    wire.Signalled(3, (0,)),
    wire.Ended(3, 0, -9, 1.5, False),
    wire.Vanished(3, ()),
    wire.Overran(3),
)
ORDERS = b"".join(map(wire.encode, MESSAGES))
RECORDED = (
    b'{"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"Traceback\\n  File \\"t.py\\"\\nValueError: x"'
    b',"timestamp":"1"}}}'
)
TARGETS = (
    Target("nursery wire", nursery, (ORDERS,)),
    Target("error file", recorded, (RECORDED, b'{"message":"text"}')),
    Target("progress file", step, (b"12", b"0\n", b"4611686018427387904")),
)
