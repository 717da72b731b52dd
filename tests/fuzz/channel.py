"""The local channel: nothing that a worker says, or that is said to it, ends the other one."""

from __future__ import annotations

import os
import socket

from elastic.channel.client import ChannelClient
from elastic.channel.messages import (
    PACKET_MAX,
    AcceptsPlannedStop,
    AgentLogLine,
    AgentMessage,
    CheckpointSaved,
    FirstCommit,
    GroupFormed,
    JoiningGroup,
    OwnFile,
    PlannedStopRequest,
    PreparationOver,
    Preparing,
    Progress,
    RestoreDone,
    SavedAndLeaving,
    ScriptImport,
    ScriptImports,
    Segment,
    SegmentDenied,
    SegmentRequest,
    Serving,
    Unrecoverable,
    WorkerHello,
    WorkerMessage,
    encode,
)
from elastic.channel.server import ChannelServer
from launcher.workers.reports.progress_text import ProgressFormatter
from launcher.workers.reports.worker_channel import WorkerChannel
from tests.fuzz.target import Target, scratch
from tests.support.worker_messages import tracked

HELLO = WorkerHello(0, 0, os.getpid(), 1, 0)
FOLDER = scratch("channel")


class Quiet:
    """What people would be told."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    debug = warning = info


def worker(data: bytes) -> None:
    """A process says who it is, and then each line as one packet, to an agent that obeys what it understands."""
    agent_log = Quiet()
    telling = ProgressFormatter(terminal=False)
    talk = WorkerChannel(
        FOLDER / "talk",
        agent_log,  # type: ignore[arg-type]
        lambda heard, message: None,
        1 << 20,
    )
    talk._server = server = ChannelServer(
        talk._path, talk._on_message, segments=talk.segments, detail=agent_log.debug, left=talk._hung_up
    )
    workers = {rank: tracked(rank) for rank in range(2)}
    talk.begin(1, workers)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
            end.connect(server.path)
            end.setblocking(False)
            for packet in data.split(b"\n")[:200]:
                try:
                    end.send(packet[: PACKET_MAX + 10] or b" ", socket.MSG_NOSIGNAL)
                except OSError:
                    break
                server.serve()
            server.catch_up()
            talk.listening()
            talk.has_saved(0)
            talk.workers[0].report.unrecoverable_with(1)
            talk.ask_to_leave("because", [0, 1])
        server.serve()
    finally:
        server.close()
        talk.segments.drop_all()
    assert len(agent_log.lines) < 300
    assert len(telling.progress(workers[0].report, 1e9, last=True)) < 10_000
    assert all(len(line) < 10_000 for line in telling.waits(workers.values(), 1e9))


def agent(data: bytes) -> None:
    """A worker's end that is told each line as one packet goes on, whatever it is told."""
    path = f"{FOLDER}/agent"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        try:
            listener.listen(1)
            end = ChannelClient(path, HELLO)
            connected, _ = listener.accept()
            with connected:
                for packet in data.split(b"\n")[:50]:
                    connected.send(packet[:PACKET_MAX] or b" ", socket.MSG_NOSIGNAL | socket.MSG_DONTWAIT)
                    end.stop_asked()
                end.segment("node", 4096, timeout_s=0.0)
        except OSError:
            pass  # It has hung up on what it does not understand, or its buffer is full.
        finally:
            os.unlink(path)
    end.stop_asked()
    assert not end.send(AcceptsPlannedStop())
    end.close()


def lines(*messages: WorkerMessage | AgentMessage) -> bytes:
    return b"\n".join(map(encode, messages))


WORDS = lines(
    HELLO, Preparing("downloading"), PreparationOver(), JoiningGroup("rank 2"), GroupFormed(1.0), AcceptsPlannedStop(),
    RestoreDone(7, 2.0), FirstCommit(), Progress(8, 2, {"loss": 0.5, "nan": None}, 3.0), CheckpointSaved(8, "/ckpt"),
    AgentLogLine("a line", True), SegmentRequest("node", 4096), Unrecoverable("no data", 1), Serving(),
    SavedAndLeaving(8),
    ScriptImports((ScriptImport("wave", "/lib/wave.py", ("A",)),), ("A",), (OwnFile("__main__", "/s.py"),)),
)  # fmt: skip
TARGETS = (
    Target("channel of an agent", worker, (WORDS, lines(HELLO, Progress(1, 1, {})))),
    Target(
        "channel of a worker",
        agent,
        (lines(PlannedStopRequest("b joins"), Segment(4096), SegmentDenied("no room")),),
    ),
)
