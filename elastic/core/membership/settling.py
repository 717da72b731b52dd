"""The join window: how long the leader collects nodes before they train, and how many nodes end it early (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from elastic.core import listed_hosts
from elastic.core.membership.decision import Reason, WaitDecision
from elastic.core.membership.situation import Situation
from elastic.core.model import JOIN_WINDOW_MAX_S
from elastic.core.text import settling_text


def settling_wait(s: Situation, expected: int) -> WaitDecision | None:
    """Wait for joining nodes until the join window ends, or the expected number of nodes is here."""
    here, until = len(s.joining_nodes), settled_at(s, s.joining_nodes)
    if here >= expected or s.now >= until:
        return None
    whom = listed_hosts.possible_hosts_text(s.spec.ips, s.hosts(s.joining_nodes))
    return s.wait(Reason.SETTLING, settling_text(here, expected, whom), until)


def settled_at(s: Situation, nodes: Iterable[str]) -> float:
    """When the join window of these nodes ends; nodes that are in the generation already do not count."""
    times = [s.memory.ready_since[node] for node in nodes if node in s.memory.ready_since]
    if not times:
        return s.now
    return min(max(times) + s.spec.join_window_s, min(times) + JOIN_WINDOW_MAX_S)


def expected_nodes(s: Situation, before: int) -> int:
    """How many nodes end a join window early: np's maximum.

    A job without a maximum expects the number of its first start, or of nodes that there were `before` if that is
    larger. Without `before`, the first node to find an empty etcd would train alone.
    """
    return max(s.spec.np.first, before) if s.spec.np.unlimited else s.spec.np.high
