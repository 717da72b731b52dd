"""The messages between the agent and its nursery."""

from __future__ import annotations

import json

import pytest

from launcher import wire

MESSAGES: list[wire.Order | wire.Report] = [
    wire.Spawn(3, (wire.Start(0, ("python", "a.py"), {"A": "\udcff", "B": "x\ny"}, "/"),)),
    wire.Until(12.5),
    wire.Stop(2.0),
    wire.Kill(),
    wire.Close(),
    wire.Renew(),
    wire.Ready(7),
    wire.Prepared("", "a warning", ("1.2.3:/a.py",)),
    wire.Obeyed(4),
    wire.Started(3, (10, 0), ("", "not python")),
    wire.Signalled(3, (0,)),
    wire.Ended(3, 0, -9, 1.5, True),
    wire.Vanished(3, ()),
    wire.Overran(3),
]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_is_one_line_and_comes_back_the_same(message: wire.Order | wire.Report) -> None:
    line = wire.encode(message)
    assert line.count(b"\n") == 1
    read = wire.order if type(message).__name__ in wire.ORDERS else wire.report
    found = read(line)
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
    ],
)
def test_anything_else_is_refused(raw: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.order(raw)


def test_a_stream_is_cut_into_lines_wherever_it_was_torn() -> None:
    stream = b"".join(wire.encode(message) for message in MESSAGES)
    for size in (1, 7, len(stream)):
        lines = wire.Lines()
        found = [line for at in range(0, len(stream), size) for line in lines.feed(stream[at : at + size])]
        assert [json.loads(line)["kind"] for line in found] == [type(message).__name__ for message in MESSAGES]


def test_an_endless_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MESSAGE_MAX", 10)
    with pytest.raises(wire.WireError):
        list(wire.Lines().feed(b"x" * 11))
