"""What the agent and its nursery say to each other, and what a worker leaves in files for its agent."""

from __future__ import annotations

import math
from collections.abc import Mapping

from launcher.net.lines import LineSplitter
from launcher.nursery import protocol
from launcher.workers.reports import worker_files
from tests.fuzz.target import Target, scratch

FOLDER = scratch("pipes")
PIECE = 900
KINDS: tuple[Mapping[str, type[protocol.NurseryOrder | protocol.NurseryReport]], ...] = (
    protocol.ORDERS,
    protocol.REPORTS,
)


def nursery(data: bytes) -> None:
    """A line is an order, or a report, or a `WireError`, which ends the conversation; a time is a number."""
    cut = LineSplitter(protocol.MESSAGE_MAX)
    for start in range(0, len(data), PIECE):
        for line in cut.feed(data[start : start + PIECE]):
            for kinds in KINDS:
                try:
                    found = protocol.decode(line, kinds)
                except protocol.WireError:
                    continue
                assert protocol.decode(protocol.encode(found), kinds) == found
                assert all(math.isfinite(one) for one in found if isinstance(one, float))


def recorded(data: bytes) -> None:
    """The error file of a worker is its script's: whatever stands there, it is some lines or none."""
    found = worker_files.parse_traceback_lines(data)
    assert len(found) <= 2 * worker_files.LINES_MAX
    assert all(line.isprintable() and len(line) <= 500 for line in found)


def step(data: bytes) -> None:
    """The file with a worker's step is its script's, too: it is a step that a document can hold, or none."""
    path = FOLDER / "progress"
    path.write_bytes(data)
    assert -1 <= worker_files.read_step(path) <= 2**62


MESSAGES: tuple[protocol.NurseryOrder | protocol.NurseryReport, ...] = (
    protocol.SetDeadline(12.5),
    protocol.SpawnWorkers(3, (protocol.WorkerStart(0, ("python", "t.py"), {"A": "b", "C": "\udcff"}, "/tmp"),)),
    protocol.TerminateWorkers(2.0, (0, 1)),
    protocol.KillWorkers(),
    protocol.RenewNursery(),
    protocol.PrepareSuccessor(
        (protocol.ModuleToLoad("a.b", "/lib/a/b.py", ("LEVEL",)),), ("RANK",), ("LEVEL",), ("mine",), 0.2, ("train.py",)
    ),
    protocol.HandOver(),
    protocol.CloseNursery(),
    protocol.NurseryUp(),
    protocol.NurseryReady("", "said", ("a",), ("a.b",)),
    protocol.ModuleBegins("a.b"),
    protocol.ModuleUnfit("a.b", "reads RANK"),
    protocol.OrderAck(3),
    protocol.ChildrenForked(3, (1, 2), ("", "cold")),
    protocol.ChildrenSignalled(3, (0,)),
    protocol.ChildExited(3, 0, -9, 1.5, False),
    protocol.GenerationExited(3, ()),
    protocol.GenerationExpired(3),
)
ORDERS = b"".join(map(protocol.encode, MESSAGES))
RECORDED = (
    b'{"message":{"message":"ValueError: x","extraInfo":{"py_callstack":"Traceback\\n  File \\"t.py\\"\\nValueError: x"'
    b',"timestamp":"1"}}}'
)
TARGETS = (
    Target("nursery wire", nursery, (ORDERS,)),
    Target("error file", recorded, (RECORDED, b'{"message":"text"}')),
    Target("progress file", step, (b"12", b"0\n", b"4611686018427387904")),
)
