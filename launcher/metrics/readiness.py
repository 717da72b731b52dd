"""Whether an agent is well, and whether its node takes part: the answers of /healthz and /readyz (pure)."""

from __future__ import annotations

from typing import NamedTuple

from elastic._text import counted
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import Generation
from launcher.metrics.collector import is_spare


class HealthAnswer(NamedTuple):
    """Yes or no, and one line that says why."""

    yes: bool
    words: str


def healthy(*, nursery: bool) -> HealthAnswer:
    """Whether the agent is alive and can start workers. Whoever hears the answer knows that its loop goes round."""
    if nursery:
        return HealthAnswer(True, "the agent and its nursery live")
    return HealthAnswer(False, "the nursery is dead; the agent starts another one")


def ready(facts: AgentState | None, *, running: int, reason: str) -> HealthAnswer:
    """Whether this node's workers run, or it is a spare; `running` are those that do.

    `reason` is what the agent last said that it waits for, or why it does not join yet; "" if that is nothing.
    """
    if facts is None:
        return HealthAnswer(False, reason or "this agent has not reached etcd yet")
    generation = facts.generation
    if facts.phase is Phase.RUNNING and running and generation is not None:
        return HealthAnswer(True, f"{counted(running, 'worker runs', 'workers run')} in generation {generation.g}")
    if is_spare(facts) and generation is not None:
        return HealthAnswer(True, f"spare: generation {generation.g} goes on without this node")
    return HealthAnswer(False, _waits(facts, generation, reason))


def _waits(facts: AgentState, generation: Generation | None, reason: str) -> str:
    """What a node that is not ready waits for."""
    if not facts.registration.prepared:
        return "this node loads torch for its workers"
    match facts.phase:
        case Phase.JOINING:
            return facts.registration.refusal or "this node is not registered yet"
        case Phase.RUNNING:
            return "this node's workers start"
        case Phase.STOPPING:
            return "this node stops its workers" + (f": {generation.reason}" if generation is not None else "")
        case Phase.LEAVING | Phase.ENDED:
            return "this node leaves the job"
        case _:
            return reason or "this node waits for the others"
