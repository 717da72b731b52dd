"""Reports for users about a generation or job that failed, and about a job that ended before a node joined (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from elastic._text import counted
from elastic.core.model import Cause, FinalStatus, OtherFailure, Verdict, WorkerExit
from elastic.core.ps.model import Role
from elastic.core.text import failed_processes_text, listed, process_name

INDENT = "    "
HOW_ENDED = {
    FinalStatus.COMPLETED: "has completed",
    FinalStatus.FAILED: "has failed",
    FinalStatus.STOPPED: "was stopped",
}
"""What to say of a job with a final status."""


def abort_line(world_size: int, ranks: Sequence[int]) -> str:
    """Return the sentence that lists the failed workers."""
    return (
        f"ABORT!!! Out of all {world_size} trainers, the trainer process with rank={listed(ranks)} was aborted. "
        "Please check its log."
    )


def failure_lines(cause: Cause) -> list[str]:
    """Return the report of a failure: all failed processes, and host, node, exit, log and last lines of the first."""
    return [*_abort_lines(cause), *_details(cause)]


def _abort_lines(cause: Cause) -> list[str]:
    lines = [abort_line(cause.world_size, cause.ranks)] if cause.ranks else []
    for role, what in ((Role.SERVER, "parameter server"), (Role.HETER, "heterogeneous trainer")):
        named = {worker.rank for worker in cause.exits if worker.role == role}
        named |= {other.rank for other in cause.others if other.role == role}
        if named:
            lines.append(f"ABORT!!! The {what} with index={listed(sorted(named))} was aborted. Please check its log.")
    return lines


def _details(cause: Cause) -> list[str]:
    if not cause.exits:
        return [f"Generation {cause.g} failed on host {cause.host} (node {cause.node})."]
    first = cause.first
    name = process_name(first.role, first.rank)
    lines = [f"Root cause: {name} on host {cause.host} (node {cause.node}): {first.words}."]
    if first.failure.of_machine:
        lines.append(f"The host is the likely cause, not the script: {first.why}.")
    elif first.secondary:
        lines.append("Its log says that it lost a peer: the root cause may be on another node.")
    if first.log:
        lines.append(f"Its log is {first.log} on host {cause.host}.")
    lines += [f"On the same node: {_other(other)}." for other in cause.exits[1:]]
    lines += [f"On host {other.host}: {_other(other)}." for other in cause.others]
    if first.tail:
        lines.append(f"The last lines of {name}'s log:")
        lines += [INDENT + line for line in first.tail]
    else:
        lines.append(f"{name[0].upper()}{name[1:]} wrote nothing to its log.")
    return lines


def _other(other: WorkerExit | OtherFailure) -> str:
    return f"{process_name(other.role, other.rank)}: {other.words}" + (f", log {other.log}" if other.log else "")


def stopped_worker_line(why: str) -> str:
    """Return the line for the log of a worker that the agent stopped; `why` is that of `StopWorkers`."""
    return f"==== stopped {why} ===="


def asked_worker_line(why: str) -> str:
    """Return the line for the log of a worker that got a planned stop, without a signal; `why` as in `StopWorkers`."""
    return f"==== asked to save and to exit {why} ===="


def stop_reason(cause: Cause) -> str:
    """Return why workers stopped, once the root cause of a failure is known."""
    return f"because {failed_processes_text([cause.first], cause.host)}"


def secondary_line(cause: Cause) -> str:
    """Return the line for the log of a worker that ended because it lost the worker that is the root cause."""
    return f"==== ended {stop_reason(cause)} ===="


def ended_lines(verdict: Verdict, job_id: str, now: float) -> list[str]:
    """Return, for a node that starts after the end of the job, when and how it ended, and how to run it again.

    `now` is this node's wall clock, seconds since the epoch; the leader's clock may differ.
    """
    how = {FinalStatus.COMPLETED: "completed", FinalStatus.FAILED: "failed", FinalStatus.STOPPED: "was stopped"}[
        verdict.status
    ]
    reason = f": {verdict.reason}" if verdict.reason else ""
    lines = [f"Job {job_id} {how} {ago(now - verdict.at)} (run {verdict.run}, generation {verdict.g}){reason}."]
    if verdict.cause is not None:
        lines += failure_lines(verdict.cause)
    lines.append("To run it again, start it with --rerun; for another job, use another --job-id.")
    return lines


def ago(seconds: float) -> str:
    """Format the age of an event: "just now", "3 minutes ago"."""
    if seconds < 1:
        return "just now"
    units = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    size, unit = next((size, unit) for size, unit in units if seconds >= size)
    return f"{counted(int(seconds // size), unit)} ago"
