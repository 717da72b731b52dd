"""How the end of a worker, a hang or a peer that cannot be reached becomes a `WorkerExit`, with the end of its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from elastic.channel.messages import truncate_text
from elastic.core.model import Cause, WorkerExit
from launcher.nursery.protocol import ChildExited
from launcher.system.worker_signals import STOP
from launcher.text import failure_report, sanitize
from launcher.workers.exit_classification import Numbers, stopped_while_ending, watched_exit, worker_exit
from launcher.workers.failure_causes import FailureCause
from launcher.workers.reports import worker_files
from launcher.workers.reports.states import WorkerReport
from launcher.workers.spec import WorkerSpec
from launcher.workers.worker_output import WorkerProcess

SIGNS_LINES = 3000
"""Lines of a log's end that are searched for the exception and for signs of its cause."""


@dataclass
class RunningWorkers:
    """The workers of a generation: their specs, and which ended by losing a peer, or were given up.

    Workers are known by their local rank. `first`: none of this run of the job has started before. `processes` are none
    where no nursery has taken them.
    """

    g: int
    specs: dict[int, WorkerSpec]
    first: bool
    secondary: set[int] = field(default_factory=set)
    given_up: set[int] = field(default_factory=set)
    processes: Mapping[int, WorkerProcess] = field(default_factory=dict)
    why_stopped: str = ""


def worker_end(
    running: RunningWorkers, event: ChildExited, heard: WorkerReport, *, retry_startup_errors: bool
) -> tuple[WorkerExit, WorkerExit | None]:
    """How a worker ended; and how it was ending on its own if it was stopped meanwhile. `heard` is what it has said."""
    spec, process = running.specs[event.local_rank], running.processes[event.local_rank]
    before = process.log.ending_at_mark
    log = log_text(spec)
    exit_ = worker_exit(
        spec.rank,
        event.code,
        log,
        _last_lines(process),
        stopped=event.stopped,
        asked=process.asked,
        role=spec.role,
        recorded=worker_files.traceback_lines(spec.env["TORCHELASTIC_ERROR_FILE"]) if event.code else (),
        unrecoverable=heard.unrecoverable_with(event.code),
        # An error at the start of this worker's script ends the job.
        starting=running.first and not (retry_startup_errors or heard.started),
    )
    also = None
    if event.stopped and before is not None:
        lines = sanitize.tail_lines(before, lines=SIGNS_LINES)
        also = stopped_while_ending(spec.rank, event.code, log, lines, role=spec.role)
    return exit_, also


def watched_end(
    running: RunningWorkers, local_rank: int, cause: FailureCause, numbers: Numbers, code: int = -STOP
) -> WorkerExit:
    """How a worker failed whose failure was seen by watching."""
    spec, lines = running.specs[local_rank], _last_lines(running.processes.get(local_rank))
    return watched_exit(cause, numbers, spec.rank, log_text(spec), lines, code=code, role=spec.role)


def _last_lines(process: WorkerProcess | None) -> tuple[str, ...]:
    """What a worker has said last."""
    return sanitize.tail_lines(process.log.ending, lines=SIGNS_LINES) if process is not None else ()


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
