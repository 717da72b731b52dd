"""How a job ends because an operator stops it: workers save and leave, then the verdict is written (pure).

An operator writes `model.StopOrder`, and nothing else is decided from then on. Where workers run, an empty generation
asks all of them to finish a common step and to save, as in any planned change. When every member has recorded its
outcome, the verdict follows. Where that cannot be hoped for, because a member was lost or a worker ended meanwhile, it
comes at once, and who still has workers stops them fast. A job whose workers all ended well in that moment has
completed.
"""

from __future__ import annotations

from elastic.core.membership.decision import ConcludeJob, Decision, FormGeneration, Reason, WaitDecision
from elastic.core.membership.next_generation import successor
from elastic.core.membership.situation import Situation, completed
from elastic.core.model import (
    ChangeReason,
    FinalStatus,
    Generation,
    Outcome,
    OutcomeKind,
    Predecessor,
    StopOrder,
    Verdict,
)
from elastic.core.ps import cluster_spec
from elastic.core.text import join_names


def current_order(q: Situation) -> StopOrder | None:
    """What an operator wrote about this run, None if nothing."""
    stored = q.view.halt
    return stored.value if stored is not None and stored.value.run == q.spec.run else None


def decide_stop(q: Situation, halt: StopOrder) -> Decision:
    """What the proposer does for it now."""
    generation = q.generation
    if generation is None:
        return _conclude_stopped(q, halt)
    if q.view.go is not None and q.view.go.value.g == generation.g:
        return _running(q, halt, generation)
    before = generation.before
    if before is None:
        return _conclude_stopped(q, halt)
    return _stopping(q, halt, before)


def _running(q: Situation, halt: StopOrder, generation: Generation) -> Decision:
    roles = cluster_spec.roles_of(q.spec)
    if roles is not None:  # Who has a seat there goes on whatever becomes of others, and can save.
        decision, _ = cluster_spec.running(q, roles, generation)
        return decision if isinstance(decision, ConcludeJob) else _empty_generation(q, halt, generation)
    nodes = [place.node for place in generation.members]
    outcomes = {node: outcome for node in nodes if (outcome := q.outcome(generation.g, node)) is not None}
    if nodes and _all_ok(outcomes, nodes):
        return completed(q, generation.g)
    away = {node: q.returns_until(node) for node in nodes if node not in outcomes and not q.working(node)}
    if away and None not in away.values():
        until = max(at for at in away.values() if at is not None)
        return WaitDecision(Reason.RETURNING, f"{halt.reason}; waiting for {join_names(away)} to register again", until)
    return _empty_generation(q, halt, generation)


def _empty_generation(q: Situation, halt: StopOrder, generation: Generation) -> FormGeneration:
    """An empty world: it tells everybody to save and to stop. Where some ended well, the others may be about to."""
    ended = {node for (g, node) in q.view.outcomes if g == generation.g}
    going = tuple(place.node for place in generation.members if place.node not in ended)
    empty = successor(q, [], ChangeReason.STOP, halt.reason)
    return FormGeneration(Reason.HALTED, halt.reason, empty, planned=not ended, unfinished=going)


def _stopping(q: Situation, halt: StopOrder, before: Predecessor) -> Decision:
    """Wait for those who still have workers of the world before, while that is any use."""
    outcomes = {node: outcome for node in before.nodes if (outcome := _latest_outcome(q, before, node)) is not None}
    if _all_ok(outcomes, before.nodes):
        return completed(q, before.g)
    busy = [node for node in before.nodes if node not in outcomes or not outcomes[node].over]
    waited = [node for node in busy if q.here(node) or q.returns_until(node) is not None]
    broken = len(waited) < len(busy) or _has_failure(outcomes)
    if not waited or (broken and cluster_spec.roles_of(q.spec) is None):
        return _conclude_stopped(q, halt)
    absent = [q.memory.absent_since[node] + 2 * q.spec.lease_ttl_s for node in waited if node in q.memory.absent_since]
    returns = [at for node in waited if not q.here(node) and (at := q.returns_until(node)) is not None]
    until = min(absent + returns, default=None)
    whose = "their" if len(waited) > 1 else "its"
    return WaitDecision(
        Reason.STOPPING, f"{halt.reason}; waiting for {join_names(waited)} to stop {whose} workers", until
    )


def _latest_outcome(q: Situation, before: Predecessor, node: str) -> Outcome | None:
    """How the last start of a node's workers ended; what earlier starts said does not count."""
    end, start = q.outcome(before.g, node), before.start(node)
    return end if end is not None and (before.g, end.since) == start else None


def _has_failure(outcomes: dict[str, Outcome]) -> bool:
    """A worker failed, or had to be stopped for a reason of its node: those that are left cannot meet any more."""
    return any(one.ended is OutcomeKind.FAILED or one.forced for one in outcomes.values())


def _all_ok(outcomes: dict[str, Outcome], nodes: list[str] | tuple[str, ...]) -> bool:
    return len(outcomes) == len(nodes) and all(one.ended is OutcomeKind.OK and one.over for one in outcomes.values())


def _conclude_stopped(q: Situation, halt: StopOrder) -> ConcludeJob:
    g = q.generation.g if q.generation is not None else 0
    verdict = Verdict(status=FinalStatus.STOPPED, reason=halt.reason, run=q.spec.run, g=g, tag="", at=0.0)
    return ConcludeJob(Reason.HALTED, halt.reason, verdict)
