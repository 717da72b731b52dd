"""What follows for a generation that has its go: completion, losses, failures, stops, then what is planned (pure)."""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core.membership.decision import (
    Decision,
    DecisionMemory,
    Reason,
    WaitDecision,
)
from elastic.core.membership.next_generation import failure_words, form, is_secondary, lost_words, reform
from elastic.core.membership.planned_changes import planned_change
from elastic.core.membership.situation import Situation, completed
from elastic.core.model import ChangeReason, Generation, OutcomeKind
from elastic.core.text import join_names, node_count


def while_running(q: Situation, generation: Generation) -> tuple[Decision, DecisionMemory]:
    """Complete the generation, replace it, or wait: what was not planned comes first."""
    nodes = [place.node for place in generation.members]
    outcomes = {node: outcome for node in nodes if (outcome := q.outcome(generation.g, node)) is not None}
    done = [node for node, outcome in outcomes.items() if outcome.ended is OutcomeKind.OK and outcome.over]
    if nodes and len(done) == len(nodes):
        return completed(q, generation.g), q.memory
    failed = [node for node, outcome in outcomes.items() if outcome.ended is OutcomeKind.FAILED]
    stopped = [node for node, outcome in outcomes.items() if outcome.ended is OutcomeKind.STOPPED]
    away = [node for node in nodes if node not in outcomes and not q.working(node)]
    returning = {node: until for node in away if (until := q.returns_until(node)) is not None}
    lost = [node for node in away if node not in returning]
    if lost or failed or stopped:
        staying = q.staying(generation)
        if not staying:
            gone = f"{join_names(lost or failed or stopped)} left, nobody of this world remains"
            return reform(q, gone, lost), q.memory
        if lost:
            return replace(
                form(q, Reason.LOST, ChangeReason.LOSS, lost_words(q, lost), staying), lost=tuple(lost)
            ), q.memory
        if failed:
            to_ask = (q.memory.linked & set(nodes)) - set(failed)
            asked = bool(to_ask) or q.memory.asked_g == generation.g
            if asked and q.memory.answered_g < generation.g and all(is_secondary(outcomes[node]) for node in failed):
                text = f"{failure_words(q, generation.g, failed)}; asking the other nodes whether they are still there"
                return WaitDecision(Reason.ASKING, text), q.memory
            return form(
                q, Reason.FAILED, ChangeReason.FAILURE, failure_words(q, generation.g, failed), staying
            ), q.memory
        return form(
            q, Reason.STOPPED, ChangeReason.STOPPED, f"{join_names(stopped)} stopped its workers", staying
        ), q.memory
    if returning:
        until = max(returning.values())
        whose = f"the lease{'s' if len(returning) > 1 else ''} of {join_names(returning)} ended"
        text = f"{whose}; waiting {max(until - q.now, 1):.0f} s more for a new one"
        return WaitDecision(Reason.RETURNING, text, until), q.memory
    if done:
        return WaitDecision(
            Reason.FINISHING, f"{len(done)} of {node_count(len(nodes))} done; waiting for the others"
        ), q.memory
    return planned_change(q, generation, nodes), q.memory
