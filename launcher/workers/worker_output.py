"""One process of a node as the agent sees it: where its output goes, and how it ended."""

from __future__ import annotations

import os

from launcher.logs.console_streams import ConsoleStreams, ProcessId
from launcher.logs.file_names import closing_line, signal_info_line
from launcher.logs.pipe_reader import PipeReader
from launcher.logs.worker_log import WorkerStartLog
from launcher.logs.writer_client import LogSink
from launcher.logs.writer_protocol import UNBOUND, LogLimits
from launcher.workers.spec import WorkerSpec


class WorkerProcess:
    """A worker that is being started, runs, or has ended: its log is open until `close`.

    `asked`: it was asked to save and to leave without a signal; when it has ended, whether it left like that.
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

        Where it is not shown both go through one pipe, so that the log has them in the order in which they came.
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
            process = ProcessId(spec.role, spec.rank, spec.local_rank, spec.shared)
            self._readers = tuple(PipeReader(self.log, show) for show in showing.of(process, g))
        else:
            self._readers = (PipeReader(self.log),)

    def outputs(self) -> list[int]:
        """Descriptors for its stdout and its stderr; whoever takes them closes them."""
        writers = [reader.writer() for reader in self._readers]
        return writers if len(writers) > 1 else [*writers, os.dup(writers[0])]

    def to_be_stopped(self) -> None:
        """Note where its log ends before it is signalled: what stands before that is not an answer to the signal."""
        if self.running and self.log.ending_at_mark is None:
            self._drain()
            self.log.set_mark()

    def asked_to_leave(self, note: str) -> None:
        """It was asked to save and to leave, without a signal; `note` is the line that says why."""
        self.to_be_stopped()
        self.asked = True
        self.log.line(note)

    def signalled(self, sender: int, note: str) -> None:
        """Tell readers of its log that it was stopped from outside, and why."""
        self._drain()
        self.log.line(signal_info_line(pid=self.pid, sender=sender))
        self._explain(note)

    def ended(self, g: int, words: str, note: str = "") -> None:
        """Bring the rest of its output into the log and close this start there; `note` as in `signalled`."""
        self.running = False
        self._drain()
        self._explain(note)
        self.log.line(closing_line(rank=self.spec.rank, g=g, words=words, role=self.spec.role))

    def _explain(self, note: str) -> None:
        """Say once why it was stopped: a worker that is killed at once gets no signal before."""
        if note and not self._explained:
            self._explained = True
            self.log.line(note)

    def close(self) -> None:
        """Let go of pipes and log; nothing writes any more."""
        try:
            for reader in self._readers:
                reader.close()
        finally:
            self.log.close()

    def _drain(self) -> None:
        for reader in self._readers:
            reader.drain()
