"""In which order nodes try to lead, and which of them watch the leader for that (pure).

The members of the generation try in the order of their M_ids, without those that are proven dead. All beyond the first
`RANKS_MAX` of them are in an order by chance, which each works out from its name.
"""

from __future__ import annotations

import zlib
from itertools import islice

from elastic.core.agent.state import AgentState

RANK_S = 0.01
"""Seconds that each member leaves to the one before it to take the lead: longer than a write mostly takes."""
RANKS_MAX = 10
"""Members that one waits for at most: a rack that is lost with the leader must not cost seconds."""
SPREAD_S = 0.05
"""Members beyond that spread over this many seconds for each member of the generation: one tries in this time."""
SPREAD_MAX_S = 5.0
"""No member waits for longer: if no node leads by then, few are left to try."""
OUTSIDE_S = 0.05
"""Nodes without an M_id spread over this time."""
WATCHERS = 16
"""About this number of the nodes whose order is chance watch the leader. If all did, a job of a thousand nodes would
have a thousand links more, all to one agent."""


def patience_s(agent: AgentState) -> float:
    """How long this node leaves the lead to those before it, in seconds.

    Where many are dead with the leader, and for nodes without an M_id, chance decides; the more they are, the longer
    the time over which they spread, so that the first of them still comes at once.
    """
    rank, generation = _rank(agent), agent.generation
    if generation is None or generation.index(agent.me.node) is None:
        return rank * RANK_S + _chance(agent) * OUTSIDE_S
    if rank < RANKS_MAX:
        return rank * RANK_S
    return rank * RANK_S + min(_chance(agent) * len(generation.members) * SPREAD_S, SPREAD_MAX_S)


def watches_leader(agent: AgentState) -> bool:
    """Tell whether this node is to see at once that the leader is dead, because it would be one of the first to try."""
    generation = agent.generation
    size = agent.spec.np.first
    if generation is not None:
        if generation.index(agent.me.node) is not None and _rank(agent) < RANKS_MAX:
            return True
        size = max(size, len(generation.members))
    return _chance(agent) * size < WATCHERS


def _rank(agent: AgentState) -> int:
    """How many members try before this node, at most `RANKS_MAX`."""
    generation = agent.generation
    if generation is None:
        return 0
    dead = {node for node, _ in agent.memory.gone} | agent.memory.dead
    before = generation.members[: generation.index(agent.me.node)]
    return len(list(islice((member for member in before if member.node not in dead), RANKS_MAX)))


def _chance(agent: AgentState) -> float:
    return zlib.crc32(agent.me.node.encode()) % 1024 / 1024
