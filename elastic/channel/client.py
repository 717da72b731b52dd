"""What a worker and its agent say to each other, and the worker's end of it.

The agent listens on a Unix socket (SOCK_SEQPACKET: one packet is one message) in its private folder and names it in
ELASTIC_CHANNEL. A worker connects at its first use of the library. Messages are JSON with a schema. The worker's end
never blocks and never fails: training does not depend on it. Standard library and msgspec only.
"""

from __future__ import annotations

import array
import functools
import os
import select
import socket
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Final

import msgspec

PACKET_MAX = 64 << 10
"""Bytes of one message."""
METRICS_MAX = 64
VARIABLE = "ELASTIC_CHANNEL"
SERVERS_FROM = 1 << 20
"""Servers have no rank. Among those who speak they count from here."""

TEXT_MAX = 4096
"""Characters of a text. An agent hangs up on who says more."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds of `clock`; 0.0: the moment in which it is heard."""


class WorkerHello(msgspec.Struct, frozen=True, tag="hello"):
    """Who speaks: the first message of each connection.

    `stacks_signal` makes the worker write the stacks of all its threads to its stderr; 0: it cannot.
    """

    rank: Number
    local_rank: Number
    pid: Number
    generation: Number
    stacks_signal: Number


class Preparing(msgspec.Struct, frozen=True, tag="preparing"):
    """The script is alive and not ready yet: it downloads, it unpacks. Ended by `PreparationOver`."""

    what: Text


class PreparationOver(msgspec.Struct, frozen=True, tag="ready"):
    """The preparation is over."""


class JoiningGroup(msgspec.Struct, frozen=True, tag="joining"):
    """This worker waits for others before the process group stands; `missing` names them, in words.

    `prepares`: one of them says that it prepares something. `met`: all are there, and their group is about to stand.
    """

    missing: Text
    prepares: bool = False
    met: bool = False


class GroupFormed(msgspec.Struct, frozen=True, tag="formed"):
    """The process group stands, since `at`."""

    at: Moment = 0.0


class AcceptsPlannedStop(msgspec.Struct, frozen=True, tag="listening"):
    """From now on the script commits its steps: a planned stop can be asked for with `PlannedStopRequest`."""


class RestoreDone(msgspec.Struct, frozen=True, tag="restored"):
    """This worker has its state since `at`: that of `step`, -1 if training begins."""

    step: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    at: Moment = 0.0


class FirstCommit(msgspec.Struct, frozen=True, tag="committed"):
    """The first commit of this generation was made, at `at`."""

    at: Moment = 0.0


class Serving(msgspec.Struct, frozen=True, tag="standing"):
    """A process of a parameter-server job does its work since `at`: a server listens, a worker has made a step."""

    at: Moment = 0.0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step was made, at `at`. `metrics` has the loss under "loss"; None: it was not finite, which JSON cannot say.

    `total` is how many steps there will be in all, as far as is known; 0: nobody said so.
    """

    step: Number
    world: Number
    metrics: Annotated[
        dict[Annotated[str, msgspec.Meta(max_length=64)], float | None], msgspec.Meta(max_length=METRICS_MAX)
    ]
    at: Moment = 0.0
    total: Number = 0


class CheckpointSaved(msgspec.Struct, frozen=True, tag="saved"):
    """A checkpoint of `step` is complete in `folder`, as this worker's host names it."""

    step: Number
    folder: Text


class SavedAndLeaving(msgspec.Struct, frozen=True, tag="left"):
    """After `PlannedStopRequest`: all is saved at `step`, and this worker ends now, whatever its exit code will be."""

    step: Number


class Unrecoverable(msgspec.Struct, frozen=True, tag="hopeless"):
    """This worker ends with exit code `code`, and would at each further start, for the reason in `text`.

    A script may catch what says so and go on: then `GroupFormed`, `AcceptsPlannedStop` and `FirstCommit` take it back.
    """

    text: Text
    code: Number


class AgentLogLine(msgspec.Struct, frozen=True, tag="note"):
    """One line for people, to be said by the agent. `warn`: also with --quiet."""

    text: Text
    warn: bool = False


class SegmentRequest(msgspec.Struct, frozen=True, tag="wanted"):
    """A piece of memory that outlives this worker, under `name`. Size 0: only if it is there already.

    Answered by `Segment`, with a descriptor, or `SegmentDenied`. A segment of another size is replaced.
    """

    name: Annotated[str, msgspec.Meta(max_length=128)]
    size: Number


class PlannedStopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """A planned stop: finish a common step, save, leave with exit code 143."""

    reason: Text


class Segment(msgspec.Struct, frozen=True, tag="segment"):
    """The memory that was wanted; its descriptor travels with this message."""

    name: Text
    size: Number


class SegmentDenied(msgspec.Struct, frozen=True, tag="refused"):
    """There is no such memory, and why."""

    name: Text
    why: Text


WorkerMessage = (
    WorkerHello | Preparing | PreparationOver | JoiningGroup | GroupFormed | AcceptsPlannedStop | RestoreDone |
    FirstCommit | Serving | Progress | CheckpointSaved | SavedAndLeaving | Unrecoverable | AgentLogLine | SegmentRequest
)  # fmt: skip
"""What a worker says."""
AgentMessage = PlannedStopRequest | Segment | SegmentDenied
"""What an agent says."""

said = msgspec.json.Decoder(WorkerMessage)
told = msgspec.json.Decoder(AgentMessage)
_encoder = msgspec.json.Encoder()


def speaker_name(rank: int) -> str:
    """A process that speaks, in words."""
    return f"server {rank - SERVERS_FROM}" if rank >= SERVERS_FROM else f"rank {rank}"


clock: Final[Callable[[], float]] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds of the clock that all processes of a machine share. It is asked in every step."""


def truncate_text(text: str, length: int = TEXT_MAX) -> str:
    """A text as it may be said: not too long, and without what UTF-8 cannot say (odd bytes in the name of a file)."""
    return (text if len(text) <= length else f"{text[: length - 1]}…").encode(errors="replace").decode()


def encode(message: WorkerMessage | AgentMessage) -> bytes:
    """One packet."""
    return _encoder.encode(message)


class ChannelClient:
    """The worker's end. Only the process that connected uses it: what it forks is silent.

    Its threads may all `send`; the rest is for one of them.
    """

    def __init__(self, path: str, hello: WorkerHello) -> None:
        """Connect and say who this is. Raises `OSError` if nobody listens there."""
        self._socket: socket.socket | None = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._pid = os.getpid()
        self._stop: PlannedStopRequest | None = None
        self._answer: tuple[Segment | SegmentDenied, int] | None = None
        self._waits = False
        self._owed = 0
        """Requests for memory that have no answer yet. Answers come in the order of the requests."""
        try:
            self._socket.connect(path)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        poller = select.poll()
        poller.register(self._socket, select.POLLIN)
        self._poll = poller.poll
        self.send(hello)

    def send(self, message: WorkerMessage) -> bool:
        """Say something; False if the agent does not take it now, or is gone."""
        end = self._socket  # Another thread may hang up in this moment.
        if end is None or os.getpid() != self._pid:
            return False
        try:
            end.send(encode(message))
        except BlockingIOError:
            return False
        except OSError:
            self.close()
            return False
        return True

    def stop_asked(self) -> PlannedStopRequest | None:
        """The word of a planned stop, None while there is none. Below a microsecond: it is asked in every step."""
        if self._stop is None and self._poll(0):
            self._hear()
        return self._stop

    def segment(self, name: str, size: int, timeout_s: float = 10.0) -> tuple[int, int] | str:
        """Ask for memory: its descriptor (the caller's to close) and size, or why there is none."""
        if not self.send(SegmentRequest(name, size)):
            return "the agent does not answer"
        self._owed += 1
        self._waits, self._answer = True, None
        while self._answer is None:
            end = self._socket
            if end is None or not _readable(end, timeout_s):
                self._waits = False
                return "the agent does not answer"
            self._hear()
        self._waits = False
        answer, fd = self._answer
        if isinstance(answer, SegmentDenied):
            return answer.why
        return (fd, answer.size) if fd >= 0 else "this worker has too many open files (ulimit -n)"

    def close(self) -> None:
        """Hang up."""
        end, self._socket = self._socket, None
        self._poll = select.poll().poll  # Of nothing: the number of the socket may soon be another file's.
        if end is not None:
            end.close()

    def _hear(self) -> None:
        """Take what has come, without waiting."""
        while (end := self._socket) is not None and os.getpid() == self._pid:
            try:
                data, fds = _receive(end)
            except BlockingIOError:
                return
            except OSError:
                data, fds = b"", []
            message = _understood(data)
            if message is None:
                _close(fds)
                self.close()
                return
            if isinstance(message, PlannedStopRequest):
                self._stop = message
                continue
            self._owed -= 1
            if self._waits and not self._owed:
                self._answer = (message, fds[0] if fds else -1)
            else:  # It comes so late that nobody waits for it any more.
                _close(fds)


def _understood(data: bytes) -> AgentMessage | None:
    """What an agent says; None if it has hung up, or is of a version that this one does not understand."""
    try:
        return told.decode(data) if data else None
    except ValueError:  # msgspec's own errors are ValueErrors.
        return None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _readable(end: socket.socket, timeout_s: float) -> bool:
    """Wait until something can be read. Unlike `select.select` it takes any descriptor."""
    poll = select.poll()
    try:
        poll.register(end, select.POLLIN)
    except ValueError:  # It was closed in this moment.
        return False
    return bool(poll.poll(timeout_s * 1000))


def _receive(end: socket.socket) -> tuple[bytes, list[int]]:
    space = socket.CMSG_SPACE(array.array("i").itemsize)
    data, ancillary, _, _ = end.recvmsg(PACKET_MAX, space, socket.MSG_CMSG_CLOEXEC | socket.MSG_DONTWAIT)
    fds = array.array("i")
    for level, kind, raw in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(raw[: len(raw) - len(raw) % fds.itemsize])
    return data, list(fds)


_ends: dict[int, ChannelClient | None] = {}
"""The end of this process, by its pid: a fork has none."""


def hello(environ: Mapping[str, str], *, stacks_signal: int) -> WorkerHello:
    """Who this process is."""
    server = environ.get("ELASTIC_ROLE") == "server"
    return WorkerHello(
        rank=SERVERS_FROM + int(environ.get("ELASTIC_INDEX") or 0) if server else int(environ.get("RANK") or 0),
        local_rank=int(environ.get("ELASTIC_SLOT") or environ.get("LOCAL_RANK") or 0),
        pid=os.getpid(),
        generation=int(environ.get("ELASTIC_GENERATION") or 0),
        stacks_signal=stacks_signal,
    )


def connected_client() -> ChannelClient | None:
    """The end that this process already has, None if it has not used the library."""
    return _ends.get(os.getpid())


def channel_client(environ: Mapping[str, str], *, stacks_signal: int = 0) -> ChannelClient | None:
    """This process's end, connected at the first call; None outside elastic-launch or in a process that was forked.

    The first caller's `stacks_signal` counts.
    """
    pid = os.getpid()
    if pid not in _ends:
        _ends[pid] = None
        if not any(end is not None for end in _ends.values()) and environ.get(VARIABLE):
            try:
                _ends[pid] = ChannelClient(environ[VARIABLE], hello(environ, stacks_signal=stacks_signal))
            except OSError:
                return None  # An agent of another life; it was the script that kept its environment.
    return _ends[pid]
