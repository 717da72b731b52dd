"""The worker's end of the local channel, with real sockets: neither a slow agent nor its own words hurt a worker."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import elastic
from elastic.channel.client import ChannelClient
from elastic.channel.messages import TEXT_MAX, Segment, SegmentRequest, WorkerHello, encode, said
from elastic.testing import run
from elastic.train import report
from tests.support.descriptor_limit import none_left

LIMIT_S = 30.0


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    """A socket that listens at `tmp_path / "talk"`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(tmp_path / "talk"))
        listener.listen()
        yield listener


def connected(agent: socket.socket) -> tuple[ChannelClient, socket.socket]:
    worker = ChannelClient(agent.getsockname(), WorkerHello(0, 0, os.getpid(), 1, 0))
    theirs, _ = agent.accept()
    assert isinstance(said.decode(theirs.recv(1 << 16)), WorkerHello)
    return worker, theirs


def give(theirs: socket.socket, size: int) -> None:
    """Answer a request with memory of this size."""
    fd = os.memfd_create("test")
    os.ftruncate(fd, size)
    socket.send_fds(theirs, [encode(Segment(size))], [fd])
    os.close(fd)


def test_an_answer_that_comes_too_late_is_not_taken_for_that_to_the_next_request(agent: socket.socket) -> None:
    worker, theirs = connected(agent)
    with theirs:
        before = len(os.listdir("/proc/self/fd"))
        assert worker.segment("a", 4096, timeout_s=0.0) == "the agent does not answer"
        give(theirs, 4096)
        give(theirs, 8192)
        found = worker.segment("a", 8192, LIMIT_S)
        assert isinstance(found, tuple)
        assert (os.fstat(found[0]).st_size, found[1]) == (8192, 8192)
        os.close(found[0])
        assert worker.segment("a", 1, timeout_s=0.0) == "the agent does not answer"
        give(theirs, 1)
        assert worker.stop_asked() is None, "what comes while nobody waits is let go"
        assert [said.decode(theirs.recv(1 << 16)) for _ in range(3)] == [
            SegmentRequest("a", 4096), SegmentRequest("a", 8192), SegmentRequest("a", 1),
        ]  # fmt: skip
        assert len(os.listdir("/proc/self/fd")) == before
        worker.close()


def test_an_agent_that_is_not_understood_is_hung_up_on_and_costs_no_step(agent: socket.socket) -> None:
    """As where the library was installed anew below a job that runs."""
    worker, theirs = connected(agent)
    with theirs:
        before = len(os.listdir("/proc/self/fd"))
        socket.send_fds(theirs, [b'{"type":"of-another-version"}'], [theirs.fileno()])
        assert worker.stop_asked() is None
        assert worker.stop_asked() is None
        assert not worker.send(SegmentRequest("a", 1))
        assert worker.segment("a", 1, LIMIT_S) == "the agent does not answer"
        assert len(os.listdir("/proc/self/fd")) == before - 1, "the worker's own end is closed"


def test_a_worker_without_a_descriptor_left_gets_no_memory_and_is_told_why(agent: socket.socket) -> None:
    worker, theirs = connected(agent)
    with theirs:
        give(theirs, 4096)
        with none_left():
            answer = worker.segment("a", 4096, LIMIT_S)
        assert answer == "this worker has too many open files (ulimit -n)"
        worker.close()


def test_an_agent_that_hangs_up_while_memory_is_asked_for_leaves_the_worker_alone(agent: socket.socket) -> None:
    worker, theirs = connected(agent)
    theirs.close()
    assert worker.segment("a", 4096, LIMIT_S) == "the agent does not answer"
    assert worker.stop_asked() is None


def says_too_much() -> None:
    elastic.init()
    report.log_to_agent("one line\n" + "x" * 2 * TEXT_MAX)
    report.log_to_agent("and a name with odd bytes: " + os.fsdecode(b"a\xff"))


def test_a_line_that_is_too_long_is_cut_and_the_agent_goes_on_listening() -> None:
    (world,) = run(says_too_much, worlds=[1]).worlds
    first, second = world.replicas[0].notes
    assert first == "one line " + "x" * (TEXT_MAX - 10) + "…"
    assert second == "and a name with odd bytes: a?"
