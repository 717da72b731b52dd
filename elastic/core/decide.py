"""Who is in the next generation, when it is made, and when its workers may start (pure).

`decide(view, memory, policy, now)` looks at what stands in the store and says one thing to do, with the reason as a
sentence. The proposer calls it after every change and at the time it asked for; the same input gives the same answer.

The rules, in the order they are asked:

1. A verdict ends everything. A document that cannot be read stops everything until a person has looked. Where an
   operator stops the job, nothing else is asked (`elastic.core.operator_stop`).
2. No generation yet (`membership.first_start`): wait for the first nodes, then for the settling window, then form, with
   the go: nobody ran before. With a list of hosts (`--ips`) members stand in its order, and each host has one place
   (`elastic.core.listed_hosts`).
3. The newest generation has its go (`membership.running`): complete it, or replace it because of a loss, a failure or
   workers that had to be stopped; then what can wait (`membership.planned_changes`): a drain, fewer nodes wanted, nodes
   that join. Nothing planned after the first ok.
4. The newest generation waits at the gate (`membership.gate`): replace it if its members changed, or if the planned
   stop before it went wrong; otherwise open it once nobody can still be running an older world, and the failure before
   it has been judged.

A parameter-server job has rules of its own for what runs (`elastic.core.ps.cluster_spec`); the gate and the budget are
the same.

Nothing here is about safety between two proposers: that is the compare of the transaction
(`elastic.core.transactions`).
"""

from __future__ import annotations

from msgspec.structs import replace

from elastic.core import operator_stop
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
from elastic.core.membership.first_start import first_start, open_at_once
from elastic.core.membership.gate import at_gate, open_gate
from elastic.core.membership.observations import observe, remember
from elastic.core.membership.running import while_running
from elastic.core.membership.situation import LINK_PATIENCE_S, Situation, earliest
from elastic.core.model import PsLayout
from elastic.core.ps import cluster_spec
from elastic.core.text import schemas_text
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


def decide(
    view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, now: float
) -> tuple[Decision, DecisionMemory]:
    """Say what the proposer does now, why, and what to remember.

    `view` must be complete; `now` is the asker's monotonic clock in seconds. Never raises on anything that the store
    can hold.
    """
    if view.verdict is not None:
        return WaitDecision(Reason.ENDED, f"the job has ended: {view.verdict.value.reason}"), memory
    if view.schema is not None:
        return WaitDecision(Reason.UNREADABLE, f"the spec {schemas_text(view.schema, 'agent')}; put it right"), memory
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
    halt = operator_stop.current_order(q)
    if halt is not None:
        return operator_stop.decide_stop(q, halt), q.memory
    roles = cluster_spec.roles_of(q.spec)
    if roles is not None:
        return _decide_ps(q, roles)
    if q.generation is None:
        return first_start(q)
    if q.view.go is not None and q.view.go.value.g == q.generation.g:
        return while_running(q, q.generation)
    return at_gate(q, q.generation)


def _decide_ps(q: Situation, roles: PsLayout) -> tuple[Decision, DecisionMemory]:
    """The same for a parameter-server job."""
    generation = q.generation
    if generation is None:
        return open_at_once(q, cluster_spec.form_first(q, roles)), q.memory
    if q.view.go is not None and q.view.go.value.g == generation.g:
        return cluster_spec.running(q, roles, generation)
    if not cluster_spec.any_member_present(q, generation) or cluster_spec.below_np(q, roles, generation):
        return cluster_spec.reform(q, roles, generation), q.memory
    if generation.before is not None and (closed := cluster_spec.gate_wait(q, generation.before)) is not None:
        return closed, q.memory
    return open_gate(q, generation, generation.before, None, charge=False)  # Its revisions were paid for one by one.
