"""The messages between the agent and its nursery."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Mapping

import pytest

from launcher.net.lines import LineSplitter
from launcher.nursery import fd_channel, protocol

MESSAGES: list[protocol.NurseryOrder | protocol.NurseryReport] = [
    protocol.SpawnWorkers(3, (protocol.WorkerStart(0, ("python", "a.py"), {"A": "\udcff", "B": "x\ny"}, "/"),)),
    protocol.SetDeadline(12.5),
    protocol.TerminateWorkers(2.0),
    protocol.KillWorkers(),
    protocol.CloseNursery(),
    protocol.RenewNursery(),
    protocol.PrepareSuccessor(
        (protocol.ModuleToLoad("a.b", "/lib/a/b.py", ("LEVEL", "\udcff")),),
        ("RANK",),
        ("LEVEL",),
        ("mine",),
        0.2,
        ("train.py",),
    ),
    protocol.HandOver(),
    protocol.NurseryUp(),
    protocol.NurseryReady("", "a warning", ("1.2.3:/a.py",)),
    protocol.NurseryReady("", "", (), ("a.b",)),
    protocol.ModuleBegins("a.b"),
    protocol.ModuleUnfit("a.b", "reads RANK when it is imported"),
    protocol.OrderAck(4),
    protocol.ChildrenForked(3, (10, 0), ("", "not python")),
    protocol.ChildrenSignalled(3, (0,)),
    protocol.ChildExited(3, 0, -9, 1.5, True),
    protocol.GenerationExited(3, ()),
    protocol.GenerationExpired(3),
]


REST = b', "differing": [], "changed": [], "share": 0.2, "within": []}'
"""The other fields of a `PrepareSuccessor`."""


def test_each_kind_of_message_is_looked_at() -> None:
    assert {type(message) for message in MESSAGES} == {*protocol.ORDERS.values(), *protocol.REPORTS.values()}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_line_and_comes_back_the_same(message: protocol.NurseryOrder | protocol.NurseryReport) -> None:
    line = protocol.encode(message)
    assert line.count(b"\n") == 1
    kinds: Mapping[str, type[protocol.NurseryOrder | protocol.NurseryReport]] = {**protocol.ORDERS, **protocol.REPORTS}
    found = protocol.decode(line, kinds)
    assert (type(found), found) == (type(message), message)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"kind": "Nothing"}',
        b'{"kind": ["Kill"]}',
        b'{"kind": "Kill", "more": 1}',
        b'{"kind": "Until"}',
        b'{"kind": "Until", "t_s": "1"}',
        b'{"kind": "Until", "t_s": true}',
        b'{"kind": "Overran", "g": 1}',
        b'{"kind": "Spawn", "g": 1.5, "workers": []}',
        b'{"kind": "Spawn", "g": 1, "workers": [{}]}',
        b'{"kind": "Spawn", "g": 1, "workers": [{"local_rank": 0, "argv": [1], "env": {}, "cwd": "/"}]}',
        b'{"kind": "Spawn", "g": 1, "workers": [{"local_rank": 0, "argv": [], "env": {"A": 1}, "cwd": "/"}]}',
        b'{"kind": "Prepare", "modules": [], "own": []}',
        b'{"kind": "Prepare", "modules": [], "own": [1]' + REST,
        b'{"kind": "Prepare", "modules": ["a"], "own": []' + REST,
        b'{"kind": "Prepare", "modules": [{"name": "a", "file": null, "changed": []}], "own": []' + REST,
        b'{"kind": "Unfit", "name": "a", "why": "b"}',
    ],
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(protocol.WireError):
        protocol.decode(raw, protocol.ORDERS)


def test_a_stream_is_cut_into_lines_wherever_it_was_torn() -> None:
    stream = b"".join(protocol.encode(message) for message in MESSAGES)
    for size in (1, 7, len(stream)):
        lines = LineSplitter(protocol.MESSAGE_MAX)
        found = [line for at in range(0, len(stream), size) for line in lines.feed(stream[at : at + size])]
        assert [json.loads(line)["kind"] for line in found] == [protocol.KINDS[type(message)] for message in MESSAGES]


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fd_channel, "MESSAGE_MAX", 10)
    ours, theirs = socket.socketpair()
    with contextlib.closing(fd_channel.FdChannel(ours)) as channel, theirs:
        theirs.send(b"x" * 11)
        with pytest.raises(protocol.WireError):
            channel.take()
