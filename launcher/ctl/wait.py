"""`elastic-ctl wait`: until a job runs, has a number of nodes, or has completed. It awaits changes in etcd."""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import partial
from typing import Final

from elastic._text import counted
from elastic.core.model import FinalStatus
from elastic.core.view import StoreView
from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text
from launcher.ctl.exit_codes import ENDED, OK, TIMED_OUT, exit_code_of
from launcher.job.listing import state_of
from launcher.job.named_job import WHO, NamedJob, NoSuchJob, Subcommand, write
from launcher.job.watch import JobWatch
from launcher.system.descriptors import write_stderr_line
from launcher.text.failure_report import HOW_ENDED

RUNNING: Final = "running"
COMPLETED: Final = "completed"
NODES: Final = "nodes="
NODES_MAX: Final = 100_000
FORMS: Final = "running, completed or nodes=N"


@dataclass(frozen=True, slots=True)
class Condition:
    """What is awaited: a state, or with `nodes` a running generation of at least that many nodes."""

    state: str
    nodes: int = 0

    def __str__(self) -> str:
        return f"{NODES}{self.nodes}" if self.nodes else self.state


@dataclass(frozen=True, slots=True)
class Reached:
    """The end of a wait: an exit code and a message."""

    code: int
    text: str


def condition(text: str) -> Condition:
    """Read a condition. Raises `ValueError`."""
    if text in (RUNNING, COMPLETED):
        return Condition(text)
    number = text.removeprefix(NODES)
    digits = text != number and number.isascii() and number.isdigit() and len(number) <= len(str(NODES_MAX))
    if not digits or not 0 < int(number) <= NODES_MAX:
        raise ValueError(f"{text!r} is not a condition; write {FORMS}")
    return Condition(RUNNING, int(number))


def reached(job_id: str, view: StoreView, wanted: Condition) -> Reached | None:
    """The end of the wait at this view; None if it continues."""
    state = state_of(view, len(view.members))
    verdict = view.verdict.value if view.verdict is not None else None
    if verdict is not None:
        text = f"Job {job_id} {HOW_ENDED[verdict.status]}: {verdict.reason}"
        unmet = wanted.nodes and verdict.status is FinalStatus.COMPLETED
        return Reached(ENDED if unmet else exit_code_of(state), text)
    generation = view.current_generation
    if state != RUNNING or wanted.state == COMPLETED or generation is None or len(generation.members) < wanted.nodes:
        return None
    nodes = counted(len(generation.members), "node")
    return Reached(OK, f"Job {job_id} runs: generation {generation.g}, {nodes}, world size {generation.world_size}")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--for",
        dest="wanted",
        required=True,
        type=readers.argument(condition),
        metavar="CONDITION",
        help="running (it runs or has completed), completed, or nodes=N (it runs with at least N nodes)",
    )
    parser.add_argument(
        "--timeout",
        type=readers.argument(duration(0)),
        metavar=METAVAR,
        help="exit with code 8 after this time (default: wait indefinitely)",
    )


async def _run(job: NamedJob, asked: argparse.Namespace) -> int:
    end, state = await _wait(job, asked.wanted, asked.timeout)
    if end is not None:
        write([end.text])
        return end.code
    limit = duration_text(asked.timeout)
    now = f"its state is: {state}" if state else "it does not exist"
    write_stderr_line(f"job {job.job_id} did not reach {asked.wanted} within {limit}; {now}", WHO)
    return TIMED_OUT


async def _wait(job: NamedJob, wanted: Condition, timeout_s: float | None) -> tuple[Reached | None, str]:
    """The end of the wait, None after the timeout; and the state of the job then, "" if there is no such job.

    Raises `StoreError` at the start.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    try:
        view: StoreView | None = await job.view()
    except NoSuchJob:
        view = None
    end = reached(job.job_id, view, wanted) if view is not None else None
    async with JobWatch(job, partial(write_stderr_line, who=WHO), job.keys.everything) as watch:
        while end is None and await watch.changes(None if until is None else max(until - time.monotonic(), 0.0)):
            if watch.entries is not None:
                view = watch.view if watch.entries else None
                job.check_schema(watch.view)
                end = reached(job.job_id, watch.view, wanted)
    return end, state_of(view, len(view.members)) if view is not None else ""


COMMAND: Final = Subcommand(
    "wait",
    "wait until a job runs, has a number of nodes, or has completed",
    _arguments,
    _run,
    examples=(
        ("Wait until the workers run, 5 minutes at most", "elastic-ctl wait --for running --timeout 5m"),
        ("Wait until 4 nodes run", "elastic-ctl wait --for nodes=4"),
        ("Wait for the end; the exit code is 0 only if the job has completed", "elastic-ctl wait --for completed"),
    ),
)
