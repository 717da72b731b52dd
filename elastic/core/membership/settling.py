"""How long nodes are collected before they train: the settling window, and how many nodes end it early (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from elastic.core import listed_hosts
from elastic.core.membership.decision import Reason, WaitDecision
from elastic.core.membership.situation import Situation
from elastic.core.model import SETTLE_MAX_S
from elastic.core.text import settling_text


def settling_wait(s: Situation, expected: int) -> WaitDecision | None:
    """Wait for nodes that join until the settling window ends, or as many are here as are expected."""
    here, until = len(s.joining_nodes), settled_at(s, s.joining_nodes)
    if here >= expected or s.now >= until:
        return None
    whom = listed_hosts.possible_hosts_text(s.spec.ips, s.hosts(s.joining_nodes))
    return s.wait(Reason.SETTLING, settling_text(here, expected, whom), until)


def settled_at(s: Situation, nodes: Iterable[str]) -> float:
    """When the settling window of those ends that arrived; who is in the generation has settled."""
    times = [s.memory.ready_since[node] for node in nodes if node in s.memory.ready_since]
    if not times:
        return s.now
    return min(max(times) + s.spec.settle_s, min(times) + SETTLE_MAX_S)


def expected_nodes(s: Situation, before: int) -> int:
    """How many nodes end a settling window before its time: as many as the job may have.

    A job without a maximum expects as many as at its first start, and as many as there were `before`. Without
    `before`, the first node to find etcd empty would train alone.
    """
    return max(s.spec.np.first, before) if s.spec.np.unlimited else s.spec.np.high
