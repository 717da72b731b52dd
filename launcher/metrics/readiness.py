"""Whether an agent is healthy, and whether its node takes part: the answers of /healthz and /readyz (pure)."""

from __future__ import annotations

from typing import NamedTuple

from elastic._text import counted
from elastic.core.agent.state import AgentState, Phase
from elastic.core.model import Generation
from launcher.metrics.collector import is_spare


class HealthAnswer(NamedTuple):
    """Yes or no, and one line with the reason."""

    yes: bool
    words: str


def healthy(*, nursery: bool) -> HealthAnswer:
    """Return whether the agent can start workers. An answer at all shows that the agent's loop runs."""
    if nursery:
        return HealthAnswer(True, "the agent and its fork server run")
    return HealthAnswer(False, "the fork server died; the agent is starting another one")


def ready(facts: AgentState | None, *, running: int, reason: str) -> HealthAnswer:
    """Return whether this node's workers run, or it is a spare; `running` is the number of running workers.

    `reason` is what the agent last logged that it waits for, or why it does not join yet; "" if that is nothing.
    """
    if facts is None:
        return HealthAnswer(False, reason or "this agent has not connected to etcd yet")
    generation = facts.generation
    if facts.phase is Phase.RUNNING and running and generation is not None:
        return HealthAnswer(True, f"{counted(running, 'worker runs', 'workers run')} in generation {generation.g}")
    if is_spare(facts) and generation is not None:
        return HealthAnswer(True, f"spare: generation {generation.g} runs without this node")
    return HealthAnswer(False, _waits(facts, generation, reason))


def _waits(facts: AgentState, generation: Generation | None, reason: str) -> str:
    """Return what a node that is not ready waits for."""
    if not facts.registration.prepared:
        return "importing torch for workers"
    match facts.phase:
        case Phase.JOINING:
            return facts.registration.refusal or "this node is not registered yet"
        case Phase.RUNNING:
            return "this node is starting its workers"
        case Phase.STOPPING:
            return "this node is stopping its workers" + (f": {generation.reason}" if generation is not None else "")
        case Phase.LEAVING | Phase.ENDED:
            return "this node is leaving the job"
        case _:
            return reason or "this node is waiting for the others"
