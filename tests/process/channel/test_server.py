"""The agent's end of the local channel, with real sockets: nobody who connects can hurt it."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from elastic.channel.client import ChannelClient
from elastic.channel.messages import (
    PACKET_MAX,
    AcceptsPlannedStop,
    AgentLogLine,
    PlannedStopRequest,
    Progress,
    Segment,
    SegmentRequest,
    WorkerHello,
    WorkerMessage,
    encode,
    told,
)
from elastic.channel.server import BURST, CONNECTIONS_MAX, PATH_MAX, ChannelServer, WorkerConnection
from elastic.channel.shared_memory import Segments
from elastic.errors import ConfigError
from tests.support.descriptor_limit import none_left

LIMIT_S = 30.0


class Heard:
    """A server without a loop, and all that came of it."""

    def __init__(self, path: Path) -> None:
        self.said: list[tuple[int, WorkerMessage]] = []
        self.left: list[int] = []
        self.lines: list[str] = []
        self.now = 0.0
        self.server = ChannelServer(
            path,
            self._on_message,
            segments=Segments(1 << 20),
            detail=self.lines.append,
            left=lambda connection: self.left.append(connection.pid),
            clock=lambda: self.now,
        )

    def _on_message(self, connection: WorkerConnection, message: WorkerMessage) -> None:
        assert connection.hello is not None
        self.said.append((connection.hello.rank, message))

    def until(self, look: Callable[[], bool]) -> None:
        """Serve whatever comes until `look` is true."""
        while not look():
            assert select.select([self.server], [], [], LIMIT_S)[0], (self.said, self.lines)
            self.server.serve()


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    made = Heard(tmp_path / "talk")
    yield made
    made.server.close()
    made.server._segments.drop_all()


def hello(rank: int = 0, *, pid: int | None = None, stacks_signal: int = 0) -> WorkerHello:
    return WorkerHello(rank, rank, os.getpid() if pid is None else pid, 1, stacks_signal)


@pytest.fixture
def stranger(heard: Heard) -> Iterator[socket.socket]:
    """Somebody who connects and is not ours."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(heard.server.path)
        yield end


def test_what_a_worker_says_arrives_in_order_after_its_name(heard: Heard) -> None:
    worker = ChannelClient(heard.server.path, hello(3))
    progress = Progress(7, 4, {"loss": 0.5})
    assert worker.send(AcceptsPlannedStop())
    assert worker.send(progress)
    heard.until(lambda: len(heard.said) == 3)
    assert heard.said == [(3, hello(3)), (3, AcceptsPlannedStop()), (3, progress)]
    (connection,) = heard.server.connections
    assert heard.server.send(connection, PlannedStopRequest("b joins"))
    assert worker.stop_asked() == PlannedStopRequest("b joins")
    worker.close()
    heard.until(lambda: heard.left == [os.getpid()])
    assert not heard.server.send(connection, PlannedStopRequest("b joins"))
    assert heard.lines == []


def test_a_number_that_is_not_finite_does_not_cost_the_channel(heard: Heard) -> None:
    worker = ChannelClient(heard.server.path, hello())
    assert worker.send(Progress(1, 1, {"loss": float("nan")}))
    heard.until(lambda: len(heard.said) == 2)
    assert heard.said[1][1] == Progress(1, 1, {"loss": None})
    worker.close()


def test_a_server_without_any_descriptor_left_turns_workers_away_and_lives_on(heard: Heard) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
        end.connect(heard.server.path)
        with none_left(0):  # Not even the one that is kept can be had anew.
            heard.server.serve()
            heard.server.serve()
        worker = ChannelClient(heard.server.path, hello())
        heard.until(lambda: len(heard.said) == 1)
        worker.close()
    assert heard.lines[0] == "a worker's channel cannot be opened: too many open files (ulimit -n)"


@pytest.mark.parametrize(
    ("packets", "words"),
    [
        ([b"\xff\x00 nonsense"], "sent an invalid message"),
        ([b'{"type":"progress","step":-3,"world":1,"metrics":{}}'], "sent an invalid message"),
        ([b"[" * 60_000], "sent an invalid message"),
        ([encode(AcceptsPlannedStop())], "did not identify itself"),
        ([encode(hello(pid=1))], "claims to be pid 1"),
        ([encode(hello()), encode(hello())], "identified itself twice"),
        ([b" " * (PACKET_MAX + 1)], "sent a message of more than 65536 bytes"),
    ],
)
def test_a_stranger_is_hung_up_on_with_a_line_and_others_are_heard(
    heard: Heard, stranger: socket.socket, packets: list[bytes], words: str
) -> None:
    for packet in packets:
        stranger.send(packet)
    heard.until(lambda: bool(heard.lines))
    assert stranger.recv(1) == b""
    assert words in heard.lines[0]
    assert heard.lines[0].endswith("its channel is closed")
    worker = ChannelClient(heard.server.path, hello(5))
    heard.until(lambda: (5, hello(5)) in heard.said)
    worker.close()


def test_a_descriptor_that_a_worker_sends_is_not_kept(heard: Heard, stranger: socket.socket) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as null:
        for _ in range(5):
            socket.send_fds(stranger, [encode(hello())], [null.fileno()])
    heard.until(lambda: bool(heard.lines))
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_flood_costs_the_one_that_floods_its_channel(heard: Heard) -> None:
    flood, calm = (ChannelClient(heard.server.path, hello(rank)) for rank in range(2))
    heard.until(lambda: len(heard.said) == 2)
    for _ in range(int(BURST) + 1):  # In no time, by the server's clock.
        while not flood.send(AgentLogLine("again")):
            heard.server.serve()
    heard.until(lambda: bool(heard.lines))
    assert heard.lines == [f"rank 0 (pid {os.getpid()}) sends more than 5000 messages/s; its channel is closed"]
    assert calm.send(AcceptsPlannedStop())
    heard.until(lambda: heard.said[-1] == (1, AcceptsPlannedStop()))
    flood.close()
    calm.close()


def test_who_does_not_read_is_hung_up_on_and_nobody_waits(heard: Heard, stranger: socket.socket) -> None:
    stranger.send(encode(hello()))
    heard.until(lambda: len(heard.said) == 1)
    (connection,) = heard.server.connections
    while heard.server.send(connection, PlannedStopRequest("x" * 4000)):
        continue
    assert "does not read its messages" in heard.lines[0]
    assert heard.server.connections == ()


def test_a_second_process_of_a_rank_is_turned_away_while_the_first_is_there(heard: Heard) -> None:
    first = ChannelClient(heard.server.path, hello())
    second = ChannelClient(heard.server.path, hello())
    heard.until(lambda: bool(heard.lines))
    assert f"claims to be rank 0, which pid {os.getpid()} already is" in heard.lines[0]
    first.close()
    third = ChannelClient(heard.server.path, hello())  # As the next program of a shell script.
    heard.until(lambda: len(heard.said) == 2)
    second.close()
    third.close()


def test_strangers_that_say_nothing_do_not_keep_workers_out(heard: Heard) -> None:
    ends = []
    for _ in range(CONNECTIONS_MAX):
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        end.connect(heard.server.path)
        ends.append(end)
        heard.server.serve()
    worker = ChannelClient(heard.server.path, hello())
    heard.until(lambda: len(heard.said) == 1)
    assert len(heard.lines) == 1
    assert "has not identified itself" in heard.lines[0]
    worker.close()
    for end in ends:
        end.close()


def test_memory_travels_as_a_descriptor_and_a_refusal_as_words(heard: Heard, stranger: socket.socket) -> None:
    stranger.send(encode(hello()))
    stranger.send(encode(SegmentRequest("a", 4096)))
    stranger.send(encode(SegmentRequest("b", 1 << 30)))
    heard.until(lambda: len(heard.said) == 1)
    data, fds, _, _ = socket.recv_fds(stranger, PACKET_MAX, 1)
    assert told.decode(data) == Segment(4096)
    assert os.fstat(fds[0]).st_size == 4096
    os.close(fds[0])
    refused = told.decode(stranger.recv(PACKET_MAX))
    assert "in-memory checkpoints need 1.1 GB on this node" in str(refused)
    assert heard.said == [(0, hello())], "nobody else is bothered with it"


def test_a_worker_gets_its_memory_from_a_server_that_is_served_elsewhere(tmp_path: Path) -> None:
    """The server in another process: as the worker's own end asks for it, waits and maps it."""
    path = tmp_path / "talk"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(path)], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listens\n"
        worker = ChannelClient(str(path), hello())
        assert worker.segment("a", 0) == "it does not exist"
        found = worker.segment("a", 4096)
        assert isinstance(found, tuple)
        os.pwrite(found[0], b"step 7", 0)
        os.close(found[0])
        again = worker.segment("a", 0)
        assert isinstance(again, tuple)
        assert os.pread(again[0], 6, 0) == b"step 7"
        os.close(again[0])
        worker.close()
    finally:
        server.kill()
        server.communicate()


SERVER = """
import select, sys
from elastic.channel.server import ChannelServer
from elastic.channel.shared_memory import Segments
server = ChannelServer(sys.argv[1], lambda *_: None, segments=Segments(1 << 20), detail=print)
print("listens", flush=True)
while True:
    select.select([server], [], [])
    server.serve()
"""


def test_the_last_words_of_a_worker_that_was_killed_are_heard_and_then_it_is_gone(heard: Heard) -> None:
    worker = subprocess.Popen([sys.executable, "-c", WORKER, heard.server.path], stdout=subprocess.PIPE)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"said\n"
    worker.kill()
    worker.communicate()
    heard.server.catch_up()
    assert [message for _, message in heard.said][1:] == [AcceptsPlannedStop()] * 3
    assert heard.left == [worker.pid]
    assert (heard.server.connections, heard.lines) == ((), [])


WORKER = """
import os, sys, time
from elastic.channel.client import ChannelClient
from elastic.channel.messages import WorkerHello, AcceptsPlannedStop
from elastic.train import stack_dump
end = ChannelClient(sys.argv[1], WorkerHello(0, 0, os.getpid(), 1, stack_dump.register()))
for _ in range(3):
    assert end.send(AcceptsPlannedStop())
print("said", flush=True)
time.sleep(1000)
"""


def test_a_worker_that_can_show_its_stacks_does_and_lives(heard: Heard) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, heard.server.path], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as worker:
        try:
            heard.until(lambda: len(heard.said) == 4)
            (connection,) = heard.server.connections
            assert connection.show_stacks()
            assert worker.stderr is not None
            assert b"most recent call first" in worker.stderr.readline()
            # It may still be within the call that was heard; its own line is the last one of the stack.
            assert any(b'File "<string>", line ' in line and b"in <module>" in line for line in worker.stderr)
            assert worker.poll() is None
        finally:
            worker.kill()


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("", int(signal.SIGRTMAX)),
        ("signal.signal(signal.SIGRTMAX, print)", int(signal.SIGRTMAX) - 1),
        ("sys.stderr = None", 0),
        ("sys.stderr = io.StringIO()", 0),
    ],
)
def test_the_signal_for_stacks_is_one_that_nobody_uses_and_none_where_stderr_is_no_file(
    before: str, number: int
) -> None:
    code = f"import io, signal, sys; {before}\n"
    code += "from elastic.train.stack_dump import register\nprint(register(), register())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert ran.stdout.split() == [str(number)] * 2


@pytest.mark.parametrize("number", [0, signal.SIGKILL + 1000])
def test_a_worker_without_a_signal_for_it_is_not_asked_for_its_stacks(heard: Heard, number: int) -> None:
    worker = ChannelClient(heard.server.path, hello(stacks_signal=number))
    heard.until(lambda: len(heard.said) == 1)
    assert not heard.server.connections[0].show_stacks()
    worker.close()


def test_a_path_that_no_socket_can_have_is_one_clear_error(tmp_path: Path) -> None:
    path = tmp_path / ("x" * PATH_MAX)
    with pytest.raises(ConfigError, match=rf"{path.name} has a path of more than {PATH_MAX} bytes; set TMPDIR"):
        ChannelServer(path, lambda *_: None, segments=Segments(), detail=print)
    with pytest.raises(ConfigError, match="cannot be opened"):
        ChannelServer(tmp_path / "no" / "x", lambda *_: None, segments=Segments(), detail=print)


def test_a_closed_server_leaves_no_socket_and_no_descriptor(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    made = Heard(tmp_path / "talk")
    worker = ChannelClient(made.server.path, hello())
    made.until(lambda: len(made.said) == 1)
    made.server.close()
    made.server.close()
    worker.close()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []
    assert made.server.fileno() == -1
