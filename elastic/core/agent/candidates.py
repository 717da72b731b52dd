"""The leader succession order, and which nodes watch the leader for it (pure).

The members of the generation that are not proven dead try to lead in the order of their M_ids. Beyond the first
`RANKS_MAX` of them, the order is random; each node derives its place from its name.
"""

from __future__ import annotations

import zlib
from itertools import islice

from elastic.core.agent.state import AgentState

RANK_S = 0.01
"""Seconds that each member waits longer than the one before it: more than most writes take."""
RANKS_MAX = 10
"""The most members that one waits for: a rack that fails together with the leader must not cost seconds."""
SPREAD_S = 0.05
"""Members beyond these spread over this number of seconds per member of the generation: one tries in each interval."""
SPREAD_MAX_S = 5.0
"""The longest wait of any member: if no node leads by then, few are left to try."""
OUTSIDE_S = 0.05
"""Nodes without an M_id spread over this time."""
WATCHERS = 16
"""The approximate number of nodes with a random order that watch the leader. If all did, a job of a thousand nodes
would have a thousand more links, all to one agent."""


def patience_s(agent: AgentState) -> float:
    """Seconds that this node waits for the nodes before it to take the lead.

    The wait is random if many nodes are dead together with the leader, and for nodes without an M_id. It is spread over
    a longer time the more nodes there are, so that usually one tries first.
    """
    rank, generation = _rank(agent), agent.generation
    if generation is None or generation.index(agent.me.node) is None:
        return rank * RANK_S + _chance(agent) * OUTSIDE_S
    if rank < RANKS_MAX:
        return rank * RANK_S
    return rank * RANK_S + min(_chance(agent) * len(generation.members) * SPREAD_S, SPREAD_MAX_S)


def watches_leader(agent: AgentState) -> bool:
    """Return whether this node must detect the leader's death at once, because it is one of the first to succeed it."""
    generation = agent.generation
    size = agent.spec.np.first
    if generation is not None:
        if generation.index(agent.me.node) is not None and _rank(agent) < RANKS_MAX:
            return True
        size = max(size, len(generation.members))
    return _chance(agent) * size < WATCHERS


def _rank(agent: AgentState) -> int:
    """The number of members that try before this node, at most `RANKS_MAX`."""
    generation = agent.generation
    if generation is None:
        return 0
    dead = {node for node, _ in agent.memory.gone} | agent.memory.dead
    before = generation.members[: generation.index(agent.me.node)]
    return len(list(islice((member for member in before if member.node not in dead), RANKS_MAX)))


def _chance(agent: AgentState) -> float:
    return zlib.crc32(agent.me.node.encode()) % 1024 / 1024
