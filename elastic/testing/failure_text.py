"""The message of a failed run: the replica, the error, and the last lines of the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elastic.testing.replica import ReplicaFailed
from elastic.testing.result import text
from elastic.testing.world_run import RunningReplica, WorldRun

LINES_MAX = 20
"""The number of lines of a replica's output, from its end."""
REPLICAS_MAX = 8
"""The number of replicas whose output is shown, starting with the root cause."""


def failed_text(story: WorldRun, failures: Mapping[int, ReplicaFailed | None], details: Sequence[str]) -> str:
    """Return why a world did not go as scheduled. It names the replica that raised first, even if another ended first.

    `details` are lines about the local channel, such as a message that it could not decode.
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
    """Return which replicas still ran at the timeout, with their stack traces."""
    ranks = ", ".join(str(actor.place.rank) for actor in hanging)
    noun = "rank" if len(hanging) == 1 else "ranks"
    head = f"world {story.result.generation - 1} is still running after {timeout_s:g} s: {noun} {ranks}"
    parts = [head + (f"; {waiting}" if waiting else ""), *details]
    for actor in hanging[:REPLICAS_MAX]:
        stacks = text(f"{actor.files}.stacks").strip() or "(no reply: it hangs outside of Python)"
        parts += [f"--- {actor}, stack traces:", stacks]
        if actor.seen.output.strip():
            parts.append(_tail(actor))
    return "\n".join(parts)


def _tail(actor: RunningReplica) -> str:
    lines = actor.seen.output.rstrip().splitlines()
    return "\n".join([f"--- {actor}, last lines of the output:", *lines[-LINES_MAX:]])
