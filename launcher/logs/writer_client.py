"""The agent's view of the log directory: a separate process writes there, so the agent never waits for a disk.

    agent ── orders, with workers' output, by a pipe ──► launcher.logs.writer ──► the directory
          ◄── progress and errors, by another pipe ──

While the disk makes progress, the readers of workers' output wait a moment when more than `FLOW_BYTES` are in transit:
then a worker that writes faster than the disk waits, as at any pipe. A disk that has done nothing for `STILL_S` is
stalled: then nothing waits. `KEEP_BYTES` are kept for it, output that does not fit is dropped, and the log says how
much is missing once the disk works again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections import Counter, deque
from collections.abc import Callable
from types import TracebackType
from typing import Final, Protocol, Self

from elastic._text import counted, size_text
from launcher.logs.writer import SyncSink
from launcher.logs.writer_process import CLOSE_LIMIT_S, CLOSE_MAX_S, WriterProcess
from launcher.logs.writer_protocol import (
    FLOW_BYTES,
    KEEP_BYTES,
    STILL_S,
    AnyLogOrder,
    AppendShared,
    CloseLog,
    LogAck,
    LogFrameReader,
    LogNotice,
    OpenLog,
    WriteChunk,
    WriteLine,
    bytes_path,
    bytes_text,
    packed,
    path_bytes,
)
from launcher.system.processes import is_frozen, signal_one

SAY_AFTER_S: Final = 5.0
"""How long the disk may be stalled before a message reports it, unless output is dropped before."""
READ_BYTES: Final = 1 << 16
ORDER_BYTES: Final = 512
"""Bytes that an order counts in addition to its data, for its size in memory."""


class LogSink(Protocol):
    """Has orders done, in their order. Errors of a disk are reported in messages, and never raised here."""

    @property
    def paused(self) -> bool:
        """Whether the readers of workers' output should pause; `on_writable` reports when they may continue."""

    def put(self, order: AnyLogOrder, of: str) -> bool:
        """Have an order done, for the file `of`. False: there was no room, it is dropped."""

    def on_writable(self, go_on: Callable[[], None]) -> None:
        """Call back once when it is no longer `paused`."""


class LogWriterClient:
    """The directory of this process, until it is closed. Everything after `open` belongs to a loop."""

    def __init__(self, process: WriterProcess) -> None:
        """`process` writes; no other client has it. Wait until the directory is known to be writable.

        Raises `ConfigError` if it is not, or does not respond.
        """
        held = process.held()
        self.path = bytes_path(held.path)
        """The directory of the logs."""
        self.notes = [*map(bytes_text, held.notes)]
        """Messages: where the logs are, if not where requested, and what could not be locked."""
        self.warning = bytes_text(held.warning)
        """A warning about the directory, "" if there is none."""
        self._process = process
        self._orders, self._answers = self._process.orders, self._process.answers
        self._frames = LogFrameReader()
        self._queue: deque[AnyLogOrder] = deque()
        self._sending: AnyLogOrder | None = None
        self._queued: Counter[int] = Counter()
        self._kept = 0
        """The sum of `_queued`, which is needed for each piece of output."""
        self._on_its_way: deque[int] = deque()
        """The sizes of orders that were sent and are not done."""
        self._on_its_way_bytes = 0
        self._rest = memoryview(b"")
        self._put = self._done = self._seen = self._looks = 0
        self._still = self._said = self._writing = False
        self._left_out: Counter[str] = Counter()
        self.left_out_bytes = 0
        """Bytes that were dropped since the start, of all files."""
        self._begun: dict[int, OpenLog] = {}
        self._instead: SyncSink | None = None
        self._waiting: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._progress = asyncio.Event()
        self._on_told: Callable[[str, bool], None] = lambda text, quietly: None

    def __enter__(self) -> Self:
        """Enter; the directory is known to be writable."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pipes; the process releases the directory when it has done every order."""
        self._process.hang_up()

    def open(self, on_told: Callable[[str, bool], None]) -> None:
        """Read the answers of the process from now on, in the running loop.

        `on_told` receives messages for users, and whether only `--verbose` shows them.
        """
        self._on_told = on_told
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._orders, False)
        os.set_blocking(self._answers, False)
        self._loop.add_reader(self._answers, self._on_answers)

    @property
    def paused(self) -> bool:
        """Whether more is in transit than a working disk should have queued."""
        return self._more_than(FLOW_BYTES)

    def on_writable(self, go_on: Callable[[], None]) -> None:
        """Call back once when it is no longer `paused`."""
        self._waiting.append(go_on)
        self._resume()

    def appending(self, name: str) -> Callable[[bytes], object]:
        """Return a function that appends lines to the file `name`."""
        path = path_bytes(self.path / name)
        return lambda line: self.put(AppendShared(path, line), name)

    def put(self, order: AnyLogOrder, of: str) -> bool:
        """Have an order done, as `LogSink` says. There is always room for the frame of a start."""
        if self._instead is not None:
            return self._instead.put(order, of)
        if self._still and not isinstance(order, OpenLog | WriteLine | CloseLog) and not self._fits(order):
            size = _text_bytes(order)
            self._left_out[of] += size
            self.left_out_bytes += size
            self._warn_stalled()
            return False
        self._put += 1
        if self._queue or self._rest:
            self._queue.append(order)
            self._keep(order, 1)
        else:
            self._send(order)
        if self._timer is None and self._loop is not None:
            self._timer = self._loop.call_later(STILL_S, self._check_progress)
        return True

    async def close(self, limit_s: float = CLOSE_LIMIT_S) -> str:
        """Wait until everything is written, as long as the disk makes progress; return a message, "" if it was.

        The process that writes may have been suspended (SIGSTOP). It is resumed, so that it can exit.
        """
        assert self._loop is not None
        if is_frozen(self._process.pid):
            signal_one(self._process.pid, signal.SIGCONT)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_MAX_S):
                while self._done < self._put and self._instead is None:
                    self._progress.clear()
                    async with asyncio.timeout(limit_s):
                        await self._progress.wait()
        self._loop.remove_reader(self._answers)
        self._loop.remove_writer(self._orders)
        if self._timer is not None:
            self._timer.cancel()
        if self._done == self._put or self._instead is not None:
            return ""
        pending = counted(self._put - self._done, "write")
        return (
            f"the log directory {self.path} does not accept writes: {pending} may be lost; process {self._process.pid} "
            "exits once the disk responds"
        )

    # Answers of the process that writes.

    def _on_answers(self) -> None:
        """Handle its answers."""
        try:
            data = os.read(self._answers, READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._fall_back_to_sync()
            return
        for answer in self._frames.answers(data):
            match answer:
                case LogAck():
                    for _ in range(answer.orders - self._done):
                        self._on_its_way_bytes -= self._on_its_way.popleft()
                    self._done = answer.orders
                    self._progress.set()
                case LogNotice():
                    self._on_told(bytes_text(answer.text), answer.quietly)
        self._send_more()
        if self._still and self._done > self._seen and not self._queue:
            self._on_resumed()

    def _fall_back_to_sync(self) -> None:
        """Write directly to the directory after the process was killed: a disk that may stall is better than no log."""
        assert self._loop is not None
        self._loop.remove_reader(self._answers)
        if self._writing:
            self._loop.remove_writer(self._orders)
        self._instead = SyncSink(self._on_told)
        for begin in self._begun.values():
            self._instead.put(begin, "")
        if self._rest and self._sending is not None:
            self._queue.appendleft(self._sending)
        self._rest, self._writing = memoryview(b""), False
        while self._queue:  # Orders that were not sent to it are kept.
            self._instead.put(self._queue.popleft(), "")
        self._progress.set()
        self._resume()
        self._on_told("the log writer was killed; parts of the logs may be missing", False)

    # Time.

    def _check_progress(self) -> None:
        """Check whether the disk has done anything since the last check."""
        assert self._loop is not None
        self._timer = None
        if self._instead is None:
            self._on_answers()  # Answers that arrived while this process was suspended.
        if self._done == self._put or self._instead is not None:
            return
        self._timer = self._loop.call_later(STILL_S, self._check_progress)
        if self._done > self._seen:
            self._seen, self._looks = self._done, 0
            return
        self._looks += 1
        self._still = True
        self._resume()
        if self._looks * STILL_S >= SAY_AFTER_S:
            self._warn_stalled()

    def _warn_stalled(self) -> None:
        if not self._said:
            self._said = True
            self._on_told(
                f"the log directory {self.path} does not accept writes (is its file server down?); the job "
                f"continues, up to {size_text(KEEP_BYTES)} of output wait for the disk, and more is dropped",
                False,
            )

    def _on_resumed(self) -> None:
        self._still, self._looks = False, 0
        if not self._said:
            return
        self._said = False
        left_out, self._left_out = self._left_out, Counter()
        lost = "nothing was dropped"
        if left_out:
            lost = f"{size_text(left_out.total())} of output were dropped from {', '.join(sorted(left_out))}"
        self._on_told(f"the log directory {self.path} accepts writes again; {lost}", False)

    # Orders to the process that writes.

    def _fits(self, order: AnyLogOrder) -> bool:
        """Each start may use as much as is still free: one that writes much leaves room for the others."""
        return self._queued[_start(order)] + _size(order) <= KEEP_BYTES - self._kept

    def _keep(self, order: AnyLogOrder, sign: int) -> None:
        """Count an order that enters (1) or leaves (-1) the queue."""
        self._kept += sign * _size(order)
        self._queued[_start(order)] += sign * _size(order)
        if not self._queued[_start(order)]:
            del self._queued[_start(order)]  # A job that runs for months has many starts.

    def _send(self, order: AnyLogOrder) -> None:
        """Send an order, as far as there is room for it."""
        self._sending, size = order, _size(order)
        self._on_its_way.append(size)
        self._on_its_way_bytes += size
        self._rest = memoryview(packed(order))
        self._send_rest()

    def _send_rest(self) -> None:
        """Send the rest of an order; the process acts on an order once it has received all of it."""
        try:
            self._rest = self._rest[os.write(self._orders, self._rest) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            return  # It has exited, which `_on_answers` detects.
        if not self._rest and self._sending is not None:
            match self._sending:
                case OpenLog() as begin:
                    self._begun[begin.start] = begin
                case CloseLog() as end:
                    del self._begun[end.start]
        if bool(self._rest) is not self._writing and self._loop is not None:
            self._writing = not self._writing
            if self._writing:
                self._loop.add_writer(self._orders, self._send_more)
            else:
                self._loop.remove_writer(self._orders)

    def _send_more(self) -> None:
        """Send the queue, as far as there is room."""
        if self._rest:
            self._send_rest()
        while self._queue and not self._rest:
            order = self._queue.popleft()
            self._keep(order, -1)
            self._send(order)
        self._resume()

    def _more_than(self, size: int) -> bool:
        """Return whether the disk makes progress, and more than `size` bytes are in transit."""
        goes_on = not self._still and self._instead is None
        return goes_on and (bool(self._queue) or self._on_its_way_bytes > size)

    def _resume(self) -> None:
        if self._waiting and not self._more_than(FLOW_BYTES // 2):
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()


def _text_bytes(order: AnyLogOrder) -> int:
    """Return the bytes of the text that an order has."""
    return len(order.data if isinstance(order, WriteChunk) else order.line if isinstance(order, AppendShared) else b"")


def _size(order: AnyLogOrder) -> int:
    """Return the bytes that an order counts."""
    return ORDER_BYTES + _text_bytes(order)


def _start(order: AnyLogOrder) -> int:
    """Return the start whose share of the room an order takes; 0 is the agent."""
    return order.start if isinstance(order, WriteChunk) else 0
