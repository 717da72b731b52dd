"""When the watched nodes are asked again and again whether they are there (pure).

The links ask, and say with `LinksChanged` who answers.
"""

from __future__ import annotations

from elastic.core.agent.actions import DoubtLinks
from elastic.core.agent.links.vouching import interval_s, store_is_silent, vouches
from elastic.core.agent.state import AgentState


def changes(agent: AgentState) -> bool:
    """The leader has begun to doubt that a node is there, or doubts no more."""
    return _doubts(agent) != agent.links.doubted


def change(agent: AgentState) -> None:
    """Have the watched nodes asked at each interval from now on, or not any more."""
    agent.links.doubted = not agent.links.doubted
    agent.act(DoubtLinks(interval_s(agent) if agent.links.doubted else 0.0))


def _doubts(agent: AgentState) -> bool:
    """Tell whether the leader must know again and again who is there: a key is gone, or the store is silent."""
    if agent.leads and agent.workers.one_world and _may_be_lost(agent):
        return True
    return vouches(agent) and (not agent.registration.registered or store_is_silent(agent))


def _may_be_lost(agent: AgentState) -> bool:
    """Tell whether a watched node without a key counts: a member; at a closed gate, one of those before, too."""
    generation, go = agent.generation, agent.view.go
    if generation is None:
        return False
    gate = go is None or go.value.g != generation.g
    absent = agent.memory.absent_since.keys() & agent.links.targets.keys()
    return any(gate or generation.index(node) is not None for node in absent)
