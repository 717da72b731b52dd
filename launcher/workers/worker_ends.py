"""How the exit of a worker, a hang or an unreachable peer becomes a `WorkerExit`, with the end of its log."""

from __future__ import annotations

from collections.abc import Iterator

from elastic.core.model import Cause, WorkerExit
from launcher.nursery.protocol import ChildExited
from launcher.system.worker_signals import STOP
from launcher.text import failure_report, sanitize
from launcher.workers.exit_classification import Numbers, stopped_while_ending, watched_exit, worker_exit
from launcher.workers.failure_causes import FailureCause
from launcher.workers.reports import worker_files
from launcher.workers.reports.states import TrackedProcess, WorkerStates
from launcher.workers.spec import WorkerSpec

SIGNS_LINES = 3000
"""Lines of a log's end that are searched for the exception and for the symptoms of its cause."""


def worker_end(process: TrackedProcess, event: ChildExited, *, starting: bool) -> tuple[WorkerExit, WorkerExit | None]:
    """Return how a worker ended; and how it was failing on its own if it was stopped meanwhile.

    `starting`: an error at the start of its script ends the job.
    """
    spec, output = process.spec, process.output
    assert output is not None
    before = output.log.ending_at_mark
    exit_ = worker_exit(
        spec.rank,
        event.code,
        spec.log_text,
        _last_lines(process),
        stopped=event.stopped,
        asked=output.asked,
        role=spec.role,
        recorded=worker_files.traceback_lines(spec.env["TORCHELASTIC_ERROR_FILE"]) if event.code else (),
        unrecoverable=process.report.unrecoverable_with(event.code),
        starting=starting and not process.report.started,
    )
    also = None
    if event.stopped and before is not None:
        lines = sanitize.tail_lines(before, lines=SIGNS_LINES)
        also = stopped_while_ending(spec.rank, event.code, spec.log_text, lines, role=spec.role)
    return exit_, also


def watched_end(process: TrackedProcess, cause: FailureCause, numbers: Numbers, code: int = -STOP) -> WorkerExit:
    """Return the record of a worker that a watcher declared failed."""
    spec, lines = process.spec, _last_lines(process)
    return watched_exit(cause, numbers, spec.rank, spec.log_text, lines, code=code, role=spec.role)


def _last_lines(process: TrackedProcess) -> tuple[str, ...]:
    """Return the last lines of a worker's output."""
    output = process.output
    return sanitize.tail_lines(output.log.ending, lines=SIGNS_LINES) if output is not None else ()


def cause_lines(states: WorkerStates, cause: Cause) -> Iterator[tuple[WorkerSpec, str]]:
    """Yield the workers that ended because of another, with the line for their logs that names the root cause.

    Workers whose log shows it already are left out.
    """
    failed = {(worker.role, worker.rank) for worker in cause.exits if not worker.secondary}
    failed |= {(other.role, other.rank) for other in cause.others}
    why = failure_report.stop_reason(cause)
    for process in states.seen.values():
        spec, echo = process.spec, process.secondary
        if (spec.role, spec.rank) in failed or (states.why_stopped == why and not echo):
            continue
        line = failure_report.secondary_line(cause) if echo else failure_report.stopped_worker_line(why)
        yield spec, sanitize.sanitize_line(line)
