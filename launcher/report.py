"""What people read when a job or a generation ended badly, or had ended before they came (pure text)."""

from __future__ import annotations

from collections.abc import Sequence

from elastic.model import Cause, Status, Verdict

INDENT = "    "
RANKS_MAX = 64
"""Ranks that one sentence names; a list of thousands helps nobody."""


def abort_line(world_size: int, ranks: Sequence[int]) -> str:
    """The sentence that says which workers failed."""
    named = ",".join(str(rank) for rank in ranks[:RANKS_MAX])
    more = ",..." if len(ranks) > RANKS_MAX else ""
    return (
        f"ABORT!!! Out of all {world_size} trainers, the trainer process with rank=[{named}{more}] was aborted. "
        "Please check its log."
    )


def failure_lines(cause: Cause) -> list[str]:
    """Where, who, how, which log, and the log's last lines, of the first failure of a generation."""
    if not cause.exits:
        return [f"Generation {cause.g} failed on host {cause.host} (node {cause.node})."]
    first = cause.first
    lines = [f"The first to fail was rank {first.rank} on host {cause.host} (node {cause.node}): {first.words}."]
    if first.infra:
        lines.append(f"It looks like a fault of the machine, not of the script: {first.infra}.")
    elif first.consequence:
        lines.append("Its log says that it lost a peer: the cause may be elsewhere.")
    if first.log:
        lines.append(f"Its log is {first.log} on host {cause.host}.")
    for other in cause.exits[1:]:
        place = f", log {other.log}" if other.log else ""
        lines.append(f"On the same node: rank {other.rank}: {other.words}{place}.")
    if first.tail:
        lines.append(f"The last lines of rank {first.rank}'s log:")
        lines += [INDENT + line for line in first.tail]
    else:
        lines.append(f"Rank {first.rank} wrote nothing to its log.")
    return lines


def stopped_line(cause: Cause) -> str:
    """The line for the log of a worker that was stopped because another one failed."""
    first = f"rank=[{cause.first.rank}]" if cause.exits else "a worker"
    where = f", see workerlog.{cause.first.rank} there" if cause.exits else ""
    return f"==== stopped because {first} failed on host {cause.host}{where} ===="


def ended_lines(verdict: Verdict, job_id: str, now: float) -> list[str]:
    """For a node that comes after the end: when and how the job ended, and how to run it again.

    `now` is this node's wall clock, seconds since the epoch; the proposer's clock may differ.
    """
    how = "completed" if verdict.status is Status.COMPLETED else "failed"
    reason = f": {verdict.reason}" if verdict.reason else ""
    lines = [f"Job {job_id} {how} {_ago(now - verdict.at)} (run {verdict.run}, generation {verdict.g}){reason}."]
    if verdict.cause is not None:
        lines += failure_lines(verdict.cause)
    lines.append("To run it again, start it with --rerun; for another job, use another --job_id.")
    return lines


def _ago(seconds: float) -> str:
    if seconds < 1:
        return "just now"
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'s' if count != 1 else ''} ago"
    raise AssertionError("unreachable")
