"""Who is in the next generation, when it is made, and when its workers may start (pure).

`decide(view, memory, policy, now)` looks at what stands in the store and says one thing to do, with the reason as a
sentence. The proposer calls it after every change and at the time it asked for; the same input gives the same answer.

The rules, in the order they are asked:

1. A verdict ends everything. A document that cannot be read stops everything until a person has looked. Where an
   operator stops the job, nothing else is asked (`elastic.core.operator_stop`).
2. No generation yet: wait for the first nodes, then for the settling window, then form, with the go: nobody ran before.
   With a list of hosts (`--ips`) members stand in its order, and each host has one place (`elastic.core.host_order`).
3. The newest generation has its go: complete it, or replace it because of a loss, a failure, workers that had to be
   stopped, a drain, fewer nodes wanted, or newcomers. Unplanned before planned; nothing planned after the first ok.
4. The newest generation waits at the gate: replace it if its members changed, or if the planned stop before it went
   wrong; otherwise open it once nobody can still be running an older world, and the failure before it has been judged.

A parameter-server job has rules of its own for what runs (`elastic.core.ps.cluster_spec`); the gate and the budget are
the same.

Nothing here is about safety between two proposers: that is the compare of the transaction
(`elastic.core.transactions`).
"""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core import host_order, operator_stop
from elastic.core.membership.decision import (
    ConcludeJob,
    Decision,
    DecisionMemory,
    DecisionPolicy,
    FormGeneration,
    OpenGate,
    Reason,
    WaitDecision,
)
from elastic.core.membership.gate import at_gate, open_gate
from elastic.core.membership.next_generation import draining_text, failure_words, form, is_secondary, lost_words, reform
from elastic.core.membership.observations import observe, remember
from elastic.core.membership.situation import BATCH_S, LINK_PATIENCE_S, Situation, completed, earliest
from elastic.core.model import ChangeReason, Generation, OutcomeKind, PsLayout
from elastic.core.ps import cluster_spec
from elastic.core.quarantine import duration_in_words, quarantine_summary
from elastic.core.text import join_names, n_of_m, node_count, settling_text, with_verb
from elastic.core.view import StoreView

__all__ = [
    "ConcludeJob",
    "Decision",
    "DecisionMemory",
    "DecisionPolicy",
    "FormGeneration",
    "OpenGate",
    "Reason",
    "WaitDecision",
    "decide",
    "remember",
]

GROW_EVERY_S = 60.0
"""A job whose workers lose what they have not saved grows at most once in this time, if `--grow_every` says nothing."""


def decide(
    view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, now: float
) -> tuple[Decision, DecisionMemory]:
    """Say what the proposer does now, why, and what to remember.

    `view` must be complete; `now` is the asker's monotonic clock in seconds. Never raises on anything that the store
    can hold.
    """
    if view.verdict is not None:
        return WaitDecision(Reason.ENDED, f"the job has ended: {view.verdict.value.reason}"), memory
    if view.unreadable:
        return WaitDecision(Reason.UNREADABLE, f"{view.unreadable[0]} cannot be read; put it right"), memory
    if view.incarnation is None and (view.spec is not None or view.generation is not None):
        return WaitDecision(Reason.UNREADABLE, "the key incarnation of this job was deleted; put it back"), memory
    if view.spec is None:
        gone = "the key spec of this job was deleted; a node that joins writes it anew"
        return WaitDecision(Reason.NO_SPEC, "the job has no spec yet" if view.generation is None else gone), memory
    memory = observe(view, memory, policy, now)
    decision, memory = _answer(Situation(view, view.spec.value, memory, policy, now))
    if (
        isinstance(decision, WaitDecision) and memory.seen_since
    ):  # Who cannot be linked is taken without a link in the end.
        until = min(memory.seen_since.values()) + LINK_PATIENCE_S
        decision = replace(decision, until=earliest(decision.until, until))
    if isinstance(decision, WaitDecision) and (
        times := [at for at in memory.quarantine_deadlines.values() if now < at]
    ):
        decision = replace(decision, until=earliest(decision.until, *times))  # Whose host is a newcomer then.
    return decision, memory


def _answer(q: Situation) -> tuple[Decision, DecisionMemory]:
    halt = operator_stop.asked(q)
    if halt is not None:
        return operator_stop.answer(q, halt), q.memory
    roles = cluster_spec.roles_of(q.spec)
    if roles is not None:
        return _decide_ps(q, roles)
    if q.generation is None:
        return _first(q)
    if q.view.go is not None and q.view.go.value.g == q.generation.g:
        return _running(q, q.generation)
    return at_gate(q, q.generation)


def _decide_ps(q: Situation, roles: PsLayout) -> tuple[Decision, DecisionMemory]:
    """The same for a parameter-server job."""
    generation = q.generation
    if generation is None:
        return _at_once(q, cluster_spec.first(q, roles)), q.memory
    if q.view.go is not None and q.view.go.value.g == generation.g:
        return cluster_spec.running(q, roles, generation)
    if not cluster_spec.any_member_present(q, generation) or cluster_spec.too_few(q, roles, generation):
        return cluster_spec.reform(q, roles, generation), q.memory
    if generation.before is not None and (closed := cluster_spec.closed(q, generation.before)) is not None:
        return closed, q.memory
    return open_gate(q, generation, generation.before, None, charge=False)  # Its revisions were paid for one by one.


def _first(q: Situation) -> tuple[Decision, DecisionMemory]:
    nodes = q.joining_nodes()
    need = q.spec.np.first
    if len(nodes) < need:
        more = host_order.awaited(q.spec.ips, q.hosts(nodes), need - len(nodes))
        text = f"{n_of_m(len(nodes), need)} here; waiting for {more}"
        return WaitDecision(Reason.MISSING, text), q.memory
    until = q.settled_at(nodes)
    expected = q.expected(max(len(nodes), q.memory.size_before))
    if len(nodes) < expected and q.now < until:
        whom = host_order.others(q.spec.ips, q.hosts(nodes))
        return WaitDecision(Reason.SETTLING, settling_text(len(nodes), expected, until - q.now, whom), until), q.memory
    reason = f"{n_of_m(len(nodes), expected)} here"
    return _at_once(q, form(q, Reason.FORMED, ChangeReason.FIRST, reason, [])), q.memory


def _at_once(q: Situation, first: Decision) -> Decision:
    """A first generation with its go: nobody can still run an older world, so it needs no gate."""
    if not isinstance(first, FormGeneration):
        return first
    opened, _ = open_gate(q, first.generation, None, None)
    return replace(first, go=opened.go) if isinstance(opened, OpenGate) else first


def _running(q: Situation, generation: Generation) -> tuple[Decision, DecisionMemory]:
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
    return _planned(q, generation, nodes), q.memory


def _planned(q: Situation, generation: Generation, nodes: list[str]) -> Decision:
    """Changes that can wait: drains, fewer nodes wanted, newcomers."""
    draining = [node for node in nodes if q.draining(node)]
    if draining:
        until = min(q.memory.draining_since[node] for node in draining) + BATCH_S
        if q.now < until:
            return WaitDecision(Reason.DRAIN_BATCH, draining_text(q, draining), until)
        return form(
            q, Reason.DRAINED, ChangeReason.DRAIN, draining_text(q, draining), q.staying(generation), planned=True
        )
    high = q.spec.np.high
    joining_nodes = q.joining_nodes()[: max(0, high - len(nodes))]
    out_of_reach = [node for node in nodes if q.member(node) is None or node in q.memory.astray]
    if out_of_reach and (joining_nodes or len(nodes) > high):  # It would work on with workers that have stopped.
        change = with_verb(joining_nodes, "join") if joining_nodes else f"{node_count(high)} wanted"
        text = f"{change}; waiting for {join_names(out_of_reach)} to reach the store again"
        return WaitDecision(Reason.OUT_OF_REACH, text)
    if len(nodes) > high:
        reason = f"{len(nodes)} nodes run, {high} are wanted"
        return form(q, Reason.SHRUNK, ChangeReason.SHRINK, reason, q.staying(generation), planned=True)
    if joining_nodes:
        until = q.settled_at(joining_nodes)
        if len(nodes) + len(joining_nodes) < high and q.now < until:
            return WaitDecision(
                Reason.GROW_SETTLING, settling_text(len(nodes) + len(joining_nodes), high, until - q.now), until
            )
        grown_at, every_s = q.memory.grown_at, _grow_every_s(q, generation)
        if grown_at is not None and q.now < grown_at + every_s:
            until = grown_at + every_s
            text = f"{with_verb(joining_nodes, 'join')} in {until - q.now:.0f} s (--grow_every {every_s:g})"
            return WaitDecision(Reason.GROW_LATER, text, until)
        return form(
            q, Reason.GROWN, ChangeReason.GROWTH, with_verb(joining_nodes, "join"), q.staying(generation), planned=True
        )
    text = f"training with {node_count(len(nodes))}"
    spares = len(q.ready())
    kept_out = [
        f"{host} is kept out for {duration_in_words(until - q.now)} more"
        for (host, _), until in q.memory.quarantine_deadlines.items()
        if q.now < until
    ]
    kept_out += [f"{host} is kept out until it can be reached" for host in sorted(q.out_of_reach() - q.quarantined())]
    parts = [text + (f", {spares} spare" if spares else ""), *([quarantine_summary(kept_out)] if kept_out else [])]
    return WaitDecision(Reason.TRAINING, "; ".join(parts))


def _grow_every_s(q: Situation, generation: Generation) -> float:
    """How far apart two growths are: workers that save before they leave lose nothing by another one."""
    if q.spec.grow_every_s is not None:
        return q.spec.grow_every_s
    return 0.0 if q.memory.listening == generation.g else GROW_EVERY_S
