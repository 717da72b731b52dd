"""Proves that nodes of this host that disappeared are dead (`elastic.core.agent.links.deaths`)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elastic.core.agent.events import Event, NodeProvenDead, Tick
from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Reason
from elastic.core.membership.evictions import evicted_lately
from elastic.core.ps import cluster_spec
from elastic.core.ps.model import ClusterSpec
from elastic.errors import ConfigError
from launcher.logs.logger import AgentLog
from launcher.system import node_lock
from launcher.system.clock import boottime

EVERY_S = 1.0
"""Interval of the checks whether nodes that disappeared ran on this host and are dead."""
FIRST_S = 0.02
"""The pause before the second check; it doubles with each further one. Processes that disappear usually end soon."""


class DeathProver:
    """Checks the locks of nodes that disappeared; `put` takes the events."""

    def __init__(self, job_id: str, agent_log: AgentLog, put: Callable[[Event], None]) -> None:
        self._job_id = job_id
        self._agent_log = agent_log
        self._put = put
        self._at = 0.0
        self._pause_s = FIRST_S

    def check(self, facts: AgentState) -> None:
        """Check, after an event and if this node is the leader, whether missing nodes are proven dead."""
        generation = facts.generation
        if facts.succession.decision is None or generation is None or boottime() < self._at:
            return
        nodes = cluster_spec.vanished(facts.view, generation) if isinstance(generation, ClusterSpec) else []
        nodes += evicted_lately(facts.memory.evictions, facts.spec.lease_ttl_s, boottime())
        if facts.succession.decision.code is Reason.UNPROVEN and generation.before is not None:
            nodes += [node for node in generation.before.nodes if node not in nodes]
        if not nodes:
            self._pause_s = FIRST_S
            return
        pause_s = self._pause_s
        self._at, self._pause_s = boottime() + pause_s, min(2 * pause_s, EVERY_S)
        asyncio.get_running_loop().call_later(pause_s, self._put, Tick())
        for node in nodes:
            vanished = node not in facts.view.members and node not in facts.memory.dead
            if vanished and self._is_proven_dead(node):
                self._agent_log.info(f"{node} ran on this host, and all its processes have exited")
                self._put(NodeProvenDead(node))

    def _is_proven_dead(self, node: str) -> bool:
        try:
            return node_lock.proven_dead(node_lock.lock_path(self._job_id, node))
        except ConfigError:  # The directory of the locks was removed while this agent ran: no proof.
            return False
