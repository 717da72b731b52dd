"""What a worker writes, on its way from a pipe to its log and, if it is shown, to the console.

It passes through the agent so that its log has a bound, and a full disk costs what the worker says and not the worker.
"""

from __future__ import annotations

import asyncio
import os

from launcher.logs.console import Console
from launcher.logs.console_streams import ConsoleStream
from launcher.logs.worker_log import WorkerStartLog
from launcher.logs.writer_client import LogSink

READ_BYTES = 1 << 16
DRAIN_BYTES = 4 << 20
"""Most that `drain` reads: a pipe holds at most 1 MB, but a grandchild may go on writing meanwhile."""


class PipeReader:
    """One pipe. The agent reads one piece per turn of its loop, so that an endless writer does not starve the rest.

    While the log, or a file that is the console, has more on its way than its disk takes, the pipe is left to fill.
    """

    def __init__(self, log: WorkerStartLog, show: ConsoleStream | None = None) -> None:
        """Make the pipe and start reading. Without a `show` nothing is shown."""
        self._log = log
        self._show = show
        self._flows: tuple[LogSink | Console, ...] = (log.sink,) if show is None else (log.sink, show.console)
        self._loop = asyncio.get_running_loop()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        self._writer: int | None = writer
        os.set_blocking(reader, False)
        self._reader: int | None = reader
        self._resume()

    def writer(self) -> int:
        """Hand over the end for the worker, once; whoever takes it closes it."""
        writer, self._writer = self._writer, None
        assert writer is not None
        return writer

    def drain(self) -> None:
        """Carry everything that is in the pipe now. A worker that exited wrote all it had before its exit was told."""
        taken = 0
        while taken < DRAIN_BYTES and (size := self._carry()):
            taken += size

    def close(self) -> None:
        """Carry the rest and let go."""
        if self._writer is not None:
            os.close(self._writer)  # Its worker was never started.
        self._writer = None
        self.drain()
        self._release()

    def _resume(self) -> None:
        if self._reader is None:
            return
        for flow in self._flows:
            if flow.paused:
                self._loop.remove_reader(self._reader)
                flow.on_writable(self._resume)
                return
        self._loop.add_reader(self._reader, self._read)

    def _read(self) -> None:
        self._carry()
        if any(flow.paused for flow in self._flows):
            self._resume()

    def _carry(self) -> int:
        if self._reader is None:
            return 0
        try:
            data = os.read(self._reader, READ_BYTES)
        except BlockingIOError:
            return 0
        if not data:
            self._release()
            return 0
        self._log.write(data)
        if self._show is not None:
            self._show.write(data)
        return len(data)

    def _release(self) -> None:
        if self._reader is not None:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            if self._show is not None:
                self._show.end()
        self._reader = None
