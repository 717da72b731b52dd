"""When the watched nodes are pinged repeatedly (pure).

The links send the pings, and report with `LinksChanged` which nodes answer.
"""

from __future__ import annotations

from elastic.core.agent.actions import DoubtLinks
from elastic.core.agent.links.vouching import interval_s, store_is_silent, vouches
from elastic.core.agent.state import AgentState


def changes(agent: AgentState) -> bool:
    """The leader has begun or ceased to doubt its links."""
    return _doubts(agent) != agent.links.doubted


def change(agent: AgentState) -> None:
    """Start or stop the pings to the watched nodes."""
    agent.links.doubted = not agent.links.doubted
    agent.act(DoubtLinks(interval_s(agent) if agent.links.doubted else 0.0))


def _doubts(agent: AgentState) -> bool:
    """Return whether the leader must keep checking which nodes answer: a key is gone, or the store is silent."""
    if agent.leads and agent.workers.one_world and _may_be_lost(agent):
        return True
    return vouches(agent) and (not agent.registration.registered or store_is_silent(agent))


def _may_be_lost(agent: AgentState) -> bool:
    """Return whether a watched node without a key matters: a member, or at a closed gate also a former member."""
    generation, go = agent.generation, agent.view.go
    if generation is None:
        return False
    gate = go is None or go.value.g != generation.g
    absent = agent.memory.absent_since.keys() & agent.links.targets.keys()
    return any(gate or generation.index(node) is not None for node in absent)
