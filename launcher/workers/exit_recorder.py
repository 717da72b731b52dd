"""How the end of a worker, a hang or a peer that cannot be reached becomes a `WorkerExit`, with the end of its log."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from elastic.channel.messages import truncate_text
from elastic.core.model import Cause, WorkerExit
from launcher.config.worker_settings import SupervisionSettings
from launcher.logs.worker_log import WorkerStartLog
from launcher.system.worker_signals import STOP
from launcher.text import failure_report, sanitize
from launcher.text.sanitize import OutputTail
from launcher.workers import process_events
from launcher.workers.exit_classification import Numbers, stopped_while_ending, watched_exit, worker_exit
from launcher.workers.failure_causes import NURSERY_DIED, FailureCause
from launcher.workers.reports import error_file
from launcher.workers.reports.worker_channel import WorkerChannel
from launcher.workers.spec import WorkerSpec

SIGNS_LINES = 3000
"""Lines of a log's end that are searched for the exception and for signs of its cause."""


@dataclass
class RunningWorkers:
    """The workers of a generation: their specs, and which run, ended by losing a peer, or were given up.

    Workers are known by their local rank. `first`: none of this run of the job has started before.
    """

    g: int
    specs: dict[int, WorkerSpec]
    first: bool
    waiting: set[int] = field(default_factory=set)
    secondary: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    why_stopped: str = ""


class ExitRecorder:
    """Makes the `WorkerExit` of a worker from its log, its error file and what it has said."""

    def __init__(
        self, settings: SupervisionSettings, talk: WorkerChannel, log: Callable[[int], WorkerStartLog | None]
    ) -> None:
        """`log` is the log of a worker that runs, by its local rank."""
        self._settings = settings
        self._worker_channel = talk
        self._log = log

    def exited(
        self, running: RunningWorkers, event: process_events.ProcessExited
    ) -> tuple[WorkerExit, WorkerExit | None]:
        """How a worker ended; and how it was ending on its own if it was stopped meanwhile."""
        spec = running.specs[event.local_rank]
        lines = sanitize.tail_lines(event.said, lines=SIGNS_LINES)
        log = log_text(spec)
        exit_ = worker_exit(
            spec.rank,
            event.code,
            log,
            lines,
            stopped=event.stopped,
            asked=event.asked,
            role=spec.role,
            recorded=error_file.traceback_lines(spec.env["TORCHELASTIC_ERROR_FILE"]) if event.code else (),
            unrecoverable=self._worker_channel.unrecoverable(event.local_rank, event.code),
            starting=self._may_not_start(running, event.local_rank),
        )
        also = None
        if event.stopped and event.said_before is not None:
            lines = sanitize.tail_lines(event.said_before, lines=SIGNS_LINES)
            also = stopped_while_ending(spec.rank, event.code, log, lines, role=spec.role)
        return exit_, also

    def _may_not_start(self, running: RunningWorkers, local_rank: int) -> bool:
        """Tell whether an error at the start of this worker's script ends the job."""
        return (
            running.first and not self._settings.retry_startup_errors and not self._worker_channel.started(local_rank)
        )

    def watched(
        self, running: RunningWorkers, cause: FailureCause, seen: Mapping[int, Numbers]
    ) -> tuple[WorkerExit, ...]:
        """How those of these workers failed that run; `seen` are the numbers of each, by its local rank."""
        return tuple(
            watched_end(running.specs[local], cause, self._last_lines(local), numbers)
            for local, numbers in seen.items()
            if local in running.waiting
        )

    def _last_lines(self, local_rank: int) -> tuple[str, ...]:
        """What a worker that runs has said last."""
        said = self._log(local_rank)
        return sanitize.tail_lines(said.ending, lines=SIGNS_LINES) if said is not None else ()


def watched_end(
    spec: WorkerSpec, cause: FailureCause, lines: Sequence[str], numbers: Numbers, code: int = -STOP
) -> WorkerExit:
    """How a worker failed whose failure was seen by watching; `lines` are the end of its log."""
    return watched_exit(cause, numbers, spec.rank, log_text(spec), lines, code=code, role=spec.role)


def killed_with_nursery(spec: WorkerSpec, ending: OutputTail | None) -> WorkerExit:
    """How a worker ended that died with the nursery; `ending` is its last words, if they are known."""
    lines = sanitize.tail_lines(ending, lines=SIGNS_LINES) if ending is not None else ()
    return watched_end(spec, NURSERY_DIED, lines, {}, -signal.SIGKILL)


def cause_lines(newest: RunningWorkers, cause: Cause) -> Iterator[tuple[WorkerSpec, str]]:
    """The workers that ended because of another, with the line for their logs that says which one failed first.

    Those are left out whose log says so already.
    """
    failed = {(worker.role, worker.rank) for worker in cause.exits if not worker.secondary}
    failed |= {(other.role, other.rank) for other in cause.others}
    why = failure_report.stop_reason(cause)
    for local, spec in newest.specs.items():
        echo = local in newest.secondary
        if (spec.role, spec.rank) in failed or (newest.why_stopped == why and not echo):
            continue
        line = failure_report.secondary_line(cause) if echo else failure_report.stopped_worker_line(why)
        yield spec, sanitize.sanitize_line(line)


def log_text(spec: WorkerSpec) -> str:
    """Where a worker's log is, as documents may hold it."""
    return truncate_text(str(spec.log))
