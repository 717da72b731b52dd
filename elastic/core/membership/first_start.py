"""When the first generation is formed: enough nodes, and the time in which others may still come (pure)."""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core import listed_hosts
from elastic.core.membership.decision import (
    Decision,
    DecisionMemory,
    FormGeneration,
    OpenGate,
    Reason,
    WaitDecision,
)
from elastic.core.membership.gate import open_gate
from elastic.core.membership.next_generation import form
from elastic.core.membership.settling import expected_nodes, settled_at
from elastic.core.membership.situation import Situation
from elastic.core.model import ChangeReason
from elastic.core.text import n_of_m, settling_text


def first_start(q: Situation) -> tuple[Decision, DecisionMemory]:
    """Wait for the nodes that a job needs, then for as many as it may have, then form and start them."""
    nodes = q.joining_nodes()
    need = q.spec.np.first
    if len(nodes) < need:
        more = listed_hosts.missing_hosts_text(q.spec.ips, q.hosts(nodes), need - len(nodes))
        text = f"{n_of_m(len(nodes), need)} here; waiting for {more}"
        return WaitDecision(Reason.MISSING, text), q.memory
    until = settled_at(q, nodes)
    expected = expected_nodes(q, max(len(nodes), q.memory.size_before))
    if len(nodes) < expected and q.now < until:
        whom = listed_hosts.possible_hosts_text(q.spec.ips, q.hosts(nodes))
        return WaitDecision(Reason.SETTLING, settling_text(len(nodes), expected, until - q.now, whom), until), q.memory
    reason = f"{n_of_m(len(nodes), expected)} here"
    return open_at_once(q, form(q, Reason.FORMED, ChangeReason.FIRST, reason, [])), q.memory


def open_at_once(q: Situation, first: Decision) -> Decision:
    """Return a first generation with its go: nobody can still run an older world, so it needs no gate."""
    if not isinstance(first, FormGeneration):
        return first
    opened, _ = open_gate(q, first.generation, None, None)
    return replace(first, go=opened.go) if isinstance(opened, OpenGate) else first
