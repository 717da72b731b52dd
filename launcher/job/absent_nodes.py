"""Finds registered nodes that do not count while a job waits, and why, from the store (pure).

Hosts of --ips that have not joined are not among them: the leader's message names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic._text import shortened
from elastic.core.membership.decision import Reason
from elastic.core.model import JobMode, MemberState
from elastic.core.view import StoreView

NAMED_MAX = 5
"""Nodes that one line names; the others are counted."""
ASKED = (Reason.MISSING, Reason.BELOW_MIN)
"""The job waits for nodes."""


def absent_nodes(view: StoreView, unreached: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return one part of a sentence for each registered node that does not count.

    `view` must be complete. `unreached`: the registered nodes that this node cannot connect to, and why.
    """
    if view.spec is None:
        return ()
    spec, unreached = view.spec.value, unreached or {}
    parts: list[str] = []
    for node, stored in sorted(view.members.items(), key=lambda item: item[1].create_revision):
        member = stored.value
        if spec.mode is JobMode.COLLECTIVE and member.slots != spec.slots:
            parts.append(f"{node} does not count: it offers {member.slots} workers per node, the job uses {spec.slots}")
        elif member.state is MemberState.DRAINING:
            parts.append(f"{node} does not count: it is leaving ({member.drain_reason or 'drained'})")
        elif node in unreached:
            parts.append(f"{node} is registered, but this node cannot connect to it: {unreached[node]}")
    return tuple(parts)


def words(found: tuple[str, ...]) -> str:
    """Return the end of a sentence about missing nodes that names them; "" if none can be named."""
    return f"; {shortened(found, NAMED_MAX, '; ')}" if found else ""
