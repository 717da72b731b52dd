"""The rules for a running generation: completion, node and worker failures, stops, then planned changes (pure)."""

from __future__ import annotations

from typing import Final

from elastic._text import counted
from elastic.core.membership.conclusion import completed
from elastic.core.membership.decision import FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import form
from elastic.core.membership.planned_changes import PLANNED
from elastic.core.membership.reform import nobody_left
from elastic.core.membership.rule import Rule
from elastic.core.membership.situation import Situation
from elastic.core.model import OutcomeKind
from elastic.core.text import COUNTED, failure_text, join_names

CAUSE_S = 0.15
"""Seconds after a secondary failure within which the root cause is known: a link shows a dead process within
milliseconds, and the node that failed first records its failure at once."""


def lost(s: Situation) -> FormGeneration | None:
    """A member is lost: continue with the remaining members and with spares."""
    return form(s, Reason.LOST, s.lost_text(s.lost), s.staying, lost=s.lost) if s.lost else None


def secondary(s: Situation) -> WaitDecision | None:
    """Every worker that failed lost a peer: wait a moment for the node or worker failure that was the cause."""
    failed_nodes = s.ended(OutcomeKind.FAILED)
    exits = [worker for node in failed_nodes for worker in s.outcomes[node].exits]
    if not exits or len(s.outcomes) == len(s.nodes):
        return None
    until = min(s.memory.failed_since[node] for node in failed_nodes) + CAUSE_S
    if s.now >= until or not all(worker.secondary for worker in exits):
        return None
    text = f"{failure_text(failed_nodes, s.outcomes, s.current)}; waiting a moment for the cause"
    return s.wait(Reason.SECONDARY, text, until)


def failed(s: Situation) -> FormGeneration | None:
    """A worker failed: start again with the same members."""
    nodes = s.ended(OutcomeKind.FAILED)
    return form(s, Reason.FAILED, failure_text(nodes, s.outcomes, s.current), s.staying) if nodes else None


def stopped(s: Situation) -> FormGeneration | None:
    """A member had to stop its workers: start again with the same members."""
    nodes = s.ended(OutcomeKind.STOPPED)
    return form(s, Reason.STOPPED, f"{join_names(nodes)} stopped its workers", s.staying) if nodes else None


def returning(s: Situation) -> WaitDecision | None:
    """The leases of members ended, and these members may register again: give them a moment."""
    if not s.returning:
        return None
    until = max(s.returning.values())
    leases = f"the lease{'s' if len(s.returning) > 1 else ''} of {join_names(s.returning)} ended"
    return s.wait(Reason.RETURNING, f"{leases}; waiting {COUNTED} more for a new one", until)


def finishing(s: Situation) -> WaitDecision | None:
    """The workers of some members ended with exit code 0: wait for the others, and make no more changes."""
    done = [node for node in s.ended(OutcomeKind.OK) if s.outcomes[node].over]
    text = f"{len(done)} of {counted(len(s.nodes), 'node')} done; waiting for the others"
    return s.wait(Reason.FINISHING, text) if done else None


RUNNING: Final[tuple[Rule, ...]] = (
    completed, nobody_left, lost, secondary, failed, stopped, returning, finishing, *PLANNED,
)  # fmt: skip
