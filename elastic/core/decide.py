"""The leader's decision: which nodes form the next generation, and when its workers may start (pure).

`decide(view, memory, policy, now)` reads the documents and returns one decision, with its reason as a sentence. The
leader calls it after every change and at the time that the last decision gives. The same input gives the same answer.

The rules are tables; the first rule that decides is used:

1. `PRECONDITIONS`: a verdict ends the job, and nothing is decided without readable documents.
2. `RULES`: those of the job's kind, for the stage of its newest generation. If an operator has stopped the job, only
   the rules for that apply.

These rules do not provide safety between two leaders: the compares of the transaction do (`elastic.core.transactions`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from elastic.core.membership.decision import Decision, DecisionPolicy, Reason, WaitDecision
from elastic.core.membership.first_start import FIRST_START
from elastic.core.membership.gate import GATE
from elastic.core.membership.memory import DecisionMemory, observe
from elastic.core.membership.opening import OPENING
from elastic.core.membership.rule import Rule, first_decision
from elastic.core.membership.running import RUNNING
from elastic.core.membership.situation import Situation, Stage
from elastic.core.operator_stop import STOP
from elastic.core.ps.cluster_spec import PS_FIRST_START, PS_GATE, PS_RUNNING, PS_STOP
from elastic.core.ps.model import PsJobSpec
from elastic.core.text import schemas_text
from elastic.core.view import StoreView

RESTORE: Final = "restore it from a backup, or end the agents and delete the job's record (elastic-ctl forget)"


class Kind(StrEnum):
    """The kind of job whose rules apply."""

    COLLECTIVE = "a collective job"
    PARAMETER_SERVERS = "a parameter-server job"
    STOPPED = "an operator has stopped a collective job"
    PARAMETER_SERVERS_STOPPED = "an operator has stopped a parameter-server job"


RULES: Final[Mapping[Kind, Mapping[Stage, Sequence[Rule]]]] = {
    Kind.COLLECTIVE: {Stage.FIRST_START: FIRST_START, Stage.RUNNING: RUNNING, Stage.GATE: GATE},
    Kind.PARAMETER_SERVERS: {Stage.FIRST_START: PS_FIRST_START, Stage.RUNNING: PS_RUNNING, Stage.GATE: PS_GATE},
    Kind.STOPPED: STOP,
    Kind.PARAMETER_SERVERS_STOPPED: PS_STOP,
}


def rules_of(s: Situation) -> Sequence[Rule]:
    """Return the rules that apply in a situation, in their order."""
    of_servers = isinstance(s.spec, PsJobSpec)
    if s.stop_order is not None:
        return RULES[Kind.PARAMETER_SERVERS_STOPPED if of_servers else Kind.STOPPED][s.stage]
    return RULES[Kind.PARAMETER_SERVERS if of_servers else Kind.COLLECTIVE][s.stage]


def decide(
    view: StoreView, memory: DecisionMemory, policy: DecisionPolicy, now: float
) -> tuple[Decision, DecisionMemory]:
    """Decide what the leader does now, with the reason, and return the memory for the next call.

    `view` must be complete; `now` is the leader's monotonic clock in seconds. Never raises, whatever the store holds.
    """
    for precondition in PRECONDITIONS:
        if (wait := precondition(view)) is not None:
            return wait, memory
    assert view.spec is not None
    s = Situation(view, view.spec.value, observe(view, memory, policy, now), policy, now)
    rule, decision = first_decision(rules_of(s), s)
    return decision, replace(s.memory, gate_since=s.gate_since) if rule in OPENING else s.memory


def ended(view: StoreView) -> WaitDecision | None:
    """There is a verdict: the job has ended."""
    if view.verdict is None:
        return None
    return WaitDecision(Reason.ENDED, f"the job has ended: {view.verdict.value.reason}")


def unreadable(view: StoreView) -> WaitDecision | None:
    """A document cannot be read, or all have another schema: wait until a person has repaired it."""
    if view.schema is not None:
        return WaitDecision(Reason.UNREADABLE, f"the spec {schemas_text(view.schema, 'agent')}; {RESTORE}")
    if view.unreadable:
        return WaitDecision(Reason.UNREADABLE, f"{view.unreadable[0]} cannot be read; {RESTORE}")
    return None


def no_incarnation(view: StoreView) -> WaitDecision | None:
    """The incarnation of a job that has begun was deleted: wait until a person has restored it."""
    if view.incarnation is not None or (view.spec is None and view.generation is None):
        return None
    return WaitDecision(Reason.NO_INCARNATION, f"the key incarnation of this job was deleted; {RESTORE}")


def no_spec(view: StoreView) -> WaitDecision | None:
    """The job has no spec: a node that joins writes it."""
    if view.spec is not None:
        return None
    gone = "the key spec of this job was deleted; a node that joins writes it again"
    return WaitDecision(Reason.NO_SPEC, "the job has no spec yet" if view.generation is None else gone)


PRECONDITIONS: Final[Sequence[Callable[[StoreView], WaitDecision | None]]] = (
    ended,
    unreadable,
    no_incarnation,
    no_spec,
)
"""Conditions that are checked before any rule; each returns a wait if it does not hold."""
