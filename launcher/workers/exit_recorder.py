"""How the end of a worker, a hang or a peer that cannot be reached becomes a `WorkerExit`, with the end of its log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from elastic.channel.messages import truncate_text
from elastic.core.model import Cause, WorkerExit
from launcher.config.config import Config
from launcher.health.partition_detector import FORMS
from launcher.logs.worker_log import WorkerStartLog
from launcher.text import failure_report, sanitize
from launcher.text.sanitize import OutputTail
from launcher.workers import exit_classification, process_events
from launcher.workers.hang_watch import HungWorker
from launcher.workers.reports import error_file
from launcher.workers.reports.worker_channel import WorkerChannel
from launcher.workers.spec import WorkerSpec

SIGNS_LINES = 3000
"""Lines of a log's end that are searched for the exception and for signs of its cause."""


@dataclass
class RunningWorkers:
    """The workers of a generation: their specs, and which run, ended by losing a peer, or were stopped for hanging.

    Workers are known by their local rank. `first`: none of this run of the job has started before.
    """

    g: int
    specs: dict[int, WorkerSpec]
    first: bool
    waiting: set[int] = field(default_factory=set)
    secondary: set[int] = field(default_factory=set)
    hanging: set[int] = field(default_factory=set)
    why_stopped: str = ""


class ExitRecorder:
    """Makes the `WorkerExit` of a worker from its log, its error file and what it has said."""

    def __init__(self, config: Config, talk: WorkerChannel, log: Callable[[int], WorkerStartLog | None]) -> None:
        """`log` is the log of a worker that runs, by its local rank."""
        self._config = config
        self._worker_channel = talk
        self._log = log

    def exited(
        self, running: RunningWorkers, event: process_events.ProcessExited
    ) -> tuple[WorkerExit, WorkerExit | None]:
        """How a worker ended; and how it was ending on its own if it was stopped meanwhile."""
        spec = running.specs[event.local_rank]
        lines = sanitize.tail_lines(event.said, lines=SIGNS_LINES)
        log = log_text(spec)
        exit_ = exit_classification.worker_exit(
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
            also = exit_classification.stopped_while_ending(spec.rank, event.code, log, lines, role=spec.role)
        return exit_, also

    def _may_not_start(self, running: RunningWorkers, local_rank: int) -> bool:
        """Tell whether an error at the start of this worker's script ends the job."""
        return running.first and not self._config.retry_startup_errors and not self._worker_channel.started(local_rank)

    def hung(self, running: RunningWorkers, late: Sequence[HungWorker]) -> tuple[WorkerExit, ...]:
        """How these workers failed: they make no steps any more."""
        failures = []
        for worker in late:
            spec = running.specs[worker.local_rank]
            lines = self._last_lines(worker.local_rank)
            limit_s, log = self._config.hang_timeout_s, log_text(spec)
            exit_ = exit_classification.hung_exit(
                spec.rank, log, lines, limit_s, worker.step, shown=worker.shown, frozen=worker.frozen, role=spec.role
            )
            failures.append(exit_)
        return tuple(failures)

    def unreached(
        self, running: RunningWorkers, local_ranks: Iterable[int], nodes: Sequence[str]
    ) -> tuple[WorkerExit, ...]:
        """How those of these workers failed that run: they wait, and `nodes` cannot be reached."""
        limit_s = self._config.reach_timeout_s
        return self._given_up(
            running,
            local_ranks,
            lambda spec, lines: exit_classification.unreached_exit(spec.rank, log_text(spec), lines, limit_s, nodes),
        )

    def unformed(self, running: RunningWorkers, local_ranks: Iterable[int]) -> tuple[WorkerExit, ...]:
        """How those of these workers failed that run: they have met the others, but have formed no process group."""
        limit_s = FORMS * self._config.reach_timeout_s
        return self._given_up(
            running,
            local_ranks,
            lambda spec, lines: exit_classification.unformed_exit(spec.rank, log_text(spec), lines, limit_s),
        )

    def _given_up(
        self,
        running: RunningWorkers,
        local_ranks: Iterable[int],
        how: Callable[[WorkerSpec, Sequence[str]], WorkerExit],
    ) -> tuple[WorkerExit, ...]:
        """How workers failed that run and are to be stopped, by rank."""
        failures = []
        for local in running.waiting.intersection(local_ranks):
            spec = running.specs[local]
            failures.append(how(spec, self._last_lines(local)))
        return tuple(sorted(failures, key=lambda exit_: exit_.rank))

    def _last_lines(self, local_rank: int) -> tuple[str, ...]:
        """What a worker that runs has said last."""
        said = self._log(local_rank)
        return sanitize.tail_lines(said.ending, lines=SIGNS_LINES) if said is not None else ()


def lost_exit(spec: WorkerSpec, ending: OutputTail | None) -> WorkerExit:
    """How a worker ended that died with the nursery; `ending` is its last words, if they are known."""
    return WorkerExit(
        rank=spec.rank,
        code=-9,
        words="killed with its nursery",
        log=log_text(spec),
        tail=exit_classification.last_lines(sanitize.tail_lines(ending, lines=SIGNS_LINES))
        if ending is not None
        else (),
        machine_fault="the nursery died",
        role=spec.role,
    )


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
