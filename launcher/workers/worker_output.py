"""One process of a node as the agent sees it: where its output goes, and how it ended.

Its output passes through the agent on its way from a pipe to its log and, if it is shown, to the console: so the log is
bounded, and a full disk costs the worker's output and not the worker.
"""

from __future__ import annotations

import asyncio
import os

from launcher.logs.console import Console
from launcher.logs.console_streams import ConsoleStream, ConsoleStreams
from launcher.logs.file_names import closing_line, signal_info_line
from launcher.logs.worker_log import WorkerStartLog
from launcher.logs.writer_client import LogSink
from launcher.logs.writer_protocol import UNBOUND, LogLimits
from launcher.system.descriptors import widen_pipe
from launcher.workers.spec import WorkerSpec

READ_BYTES = 1 << 17
"""The capacity of a worker's pipe, and of one read: with the usual 64 kB the agent would wake twice as often."""
DRAIN_BYTES = 4 << 20
"""Maximum that `drain` reads: a pipe holds at most 1 MB, but a grandchild may keep writing meanwhile."""


class PipeReader:
    """One pipe. The agent reads one piece per turn of its loop, so that an endless writer does not starve the rest.

    While the log, or a file that is the console, has more queued than its disk takes, the pipe is left to fill.
    """

    def __init__(self, log: WorkerStartLog, show: ConsoleStream | None = None) -> None:
        """Create the pipe and start reading. Without `show` the output is only logged."""
        self._log = log
        self._show = show
        self._flows: tuple[LogSink | Console, ...] = (log.sink,) if show is None else (log.sink, show.console)
        self._loop = asyncio.get_running_loop()
        reader, writer = os.pipe2(os.O_CLOEXEC)
        widen_pipe(writer, READ_BYTES)
        self._writer: int | None = writer
        os.set_blocking(reader, False)
        self._reader = open(reader, "rb", buffering=0)  # noqa: SIM115  # `_release` closes it.
        self._resume()

    def writer(self) -> int:
        """Hand over the end for the worker, once; the caller closes it."""
        writer, self._writer = self._writer, None
        assert writer is not None
        return writer

    def drain(self) -> None:
        """Forward everything that is in the pipe. A worker has written all its output before its exit is reported."""
        taken = 0
        while taken < DRAIN_BYTES and (size := self._carry()):
            taken += size

    def close(self) -> None:
        """Forward the rest, and close the pipe."""
        if self._writer is not None:
            os.close(self._writer)  # Its worker was never started.
        self._writer = None
        self.drain()
        self._release()

    def _resume(self) -> None:
        if self._reader.closed:
            return
        for flow in self._flows:
            if flow.paused:
                self._loop.remove_reader(self._reader)
                flow.on_writable(self._resume)
                return
        self._loop.add_reader(self._reader, self._read)

    def _read(self) -> None:
        self._carry()
        for flow in self._flows:
            if flow.paused:
                self._resume()
                return

    def _carry(self) -> int:
        data = None if self._reader.closed else self._reader.read(READ_BYTES)
        if data == b"":
            self._release()
        if not data:  # None: the pipe is empty.
            return 0
        self._log.write(data)
        if self._show is not None:
            self._show.write(data)
        return len(data)

    def _release(self) -> None:
        if not self._reader.closed:
            self._loop.remove_reader(self._reader)
            self._reader.close()
            if self._show is not None:
                self._show.end()


class WorkerProcess:
    """A worker that is being started, runs, or has ended: its log is open until `close`.

    `asked`: it was asked to save and to exit without a signal; after its end, whether it exited as requested.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        g: int,
        showing: ConsoleStreams,
        sink: LogSink,
        bound: LogLimits = UNBOUND,
    ) -> None:
        """Open its log and its pipes; it is one of generation `g`.

        If it is not shown, stdout and stderr share one pipe, so that the log has them in their order.
        """
        self.spec = spec
        self.pid = 0
        self.running = True
        self.asked = False
        self._explained = False
        self.log = WorkerStartLog(sink, spec.log, spec.header, bound)
        """This start in its log."""
        self._readers: tuple[PipeReader, ...]
        if spec.shown:
            shown = showing.of(spec.role, spec.rank, spec.local_rank, g, shared=spec.shared)
            self._readers = tuple(PipeReader(self.log, show) for show in shown)
        else:
            self._readers = (PipeReader(self.log),)

    def outputs(self) -> list[int]:
        """Return descriptors for its stdout and its stderr; the caller closes them."""
        writers = [reader.writer() for reader in self._readers]
        return writers if len(writers) > 1 else [*writers, os.dup(writers[0])]

    def to_be_stopped(self) -> None:
        """Note where its log ends before it is signalled: anything before that is not an answer to the signal."""
        if self.running and self.log.ending_at_mark is None:
            self._drain()
            self.log.set_mark()

    def asked_to_leave(self, note: str) -> None:
        """Note that it was asked to save and to exit, without a signal; `note` is the line with the reason."""
        self.to_be_stopped()
        self.asked = True
        self.log.line(note)

    def signalled(self, sender: int, note: str) -> None:
        """Record in its log that it was stopped from outside, and why."""
        self._drain()
        self.log.line(signal_info_line(pid=self.pid, sender=sender))
        self._explain(note)

    def ended(self, g: int, words: str, note: str = "") -> None:
        """Forward the rest of its output to the log and close this start there; `note` as in `signalled`."""
        self.running = False
        self._drain()
        self._explain(note)
        self.log.line(closing_line(rank=self.spec.rank, g=g, words=words, role=self.spec.role))

    def _explain(self, note: str) -> None:
        """Log once why it was stopped: a worker that is killed at once gets no signal before."""
        if note and not self._explained:
            self._explained = True
            self.log.line(note)

    def close(self) -> None:
        """Close pipes and log, after the last write."""
        try:
            for reader in self._readers:
                reader.close()
        finally:
            self.log.close()

    def _drain(self) -> None:
        for reader in self._readers:
            reader.drain()
