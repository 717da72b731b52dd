"""The text of a run that failed: who, what, and the last lines of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic.testing.replica import ReplicaFailed
from elastic.testing.result import text
from elastic.testing.world_run import RunningReplica, WorldRun

LINES_MAX = 20
"""Of a replica's output, from its end."""
REPLICAS_MAX = 8
"""Whose output is shown, the one that failed first."""


def failed_text(story: WorldRun, failures: Mapping[int, ReplicaFailed | None], details: Sequence[str]) -> str:
    """Why a world was not as scheduled. The replica whose error was the first is named, whoever ended first.

    `details` are lines about the local channel: a replica that it does not understand, for instance.
    """
    raised = {rank: failed for rank, failed in failures.items() if failed is not None and not failed.injected}
    actors = list(story.actors)
    head = story.broken
    if raised:
        first = min(raised, key=lambda rank: raised[rank].at_s)
        actors.sort(key=lambda actor: (actor.place.rank != first, actor.place.rank))
        head = f"{actors[0]} raised {raised[first].line}"
    parts = [head, *details]
    shown = [actor for actor in actors if actor.seen.output.strip()]
    parts += [_tail(actor) for actor in shown[:REPLICAS_MAX]]
    return "\n".join(parts)


def hung_text(
    story: WorldRun, hanging: Sequence[RunningReplica], timeout_s: float, waiting: str, details: Sequence[str]
) -> str:
    """Who was still there at the end of the time, and where in the program."""
    ranks = ", ".join(str(actor.place.rank) for actor in hanging)
    noun = "rank" if len(hanging) == 1 else "ranks"
    head = f"after {timeout_s:g} s world {story.result.generation - 1} still runs: {noun} {ranks}"
    parts = [head + (f"; {waiting}" if waiting else ""), *details]
    for actor in hanging[:REPLICAS_MAX]:
        stacks = text(f"{actor.files}.stacks").strip() or "(it did not answer: it hangs outside of python)"
        parts += [f"--- {actor}, its stacks:", stacks]
        if actor.seen.output.strip():
            parts.append(_tail(actor))
    return "\n".join(parts)


def _tail(actor: RunningReplica) -> str:
    lines = actor.seen.output.rstrip().splitlines()
    return "\n".join([f"--- {actor}, the last lines of its output:", *lines[-LINES_MAX:]])
