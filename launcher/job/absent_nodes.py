"""Which nodes are registered and do not count while a job waits, and why, as far as the store tells (pure).

Hosts of --ips that have not come are not among them: the leader's own sentence names them.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic._text import shortened
from elastic.core.membership.decision import Reason
from elastic.core.model import JobMode, MemberState
from elastic.core.view import StoreView

NAMED_MAX = 5
"""A line names so many; the rest is counted."""
ASKED = (Reason.MISSING, Reason.BELOW_MIN)
"""What is waited for is nodes."""


def absent_nodes(view: StoreView, unreached: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """One part of a sentence for each registered node that cannot be counted on.

    `view` must be complete. `unreached`: nodes that are registered and cannot be reached from here, and why.
    """
    if view.spec is None:
        return ()
    spec, unreached = view.spec.value, unreached or {}
    parts: list[str] = []
    for node, stored in sorted(view.members.items(), key=lambda item: item[1].create_revision):
        member = stored.value
        if spec.mode is JobMode.COLLECTIVE and member.slots != spec.slots:
            parts.append(f"{node} does not count: it brings {member.slots} cards, the job uses {spec.slots}")
        elif member.state is MemberState.DRAINING:
            parts.append(f"{node} does not count: it leaves ({member.drain_reason or 'asked to'})")
        elif node in unreached:
            parts.append(f"{node} is registered but cannot be reached from here: {unreached[node]}")
    return tuple(parts)


def words(found: tuple[str, ...]) -> str:
    """What follows a sentence that says how many are missing; "" if nobody is known by name."""
    return f"; {shortened(found, NAMED_MAX, '; ')}" if found else ""
