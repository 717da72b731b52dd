"""A job in the store as a transcript: what happens to it, line by line, and what `decide` says of it.

Nodes are named by letters and written as words of one text: `job.join("a b")`. Times are the proposer's clock.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

import msgspec

from elastic.core.decide import decide
from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import (
    ConcludeJob,
    Decision,
    DecisionPolicy,
    FormGeneration,
    OpenGate,
    Reason,
    WaitDecision,
)
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Budget, Generation, JobSpec, Member, MemberState, Outcome, OutcomeKind, WorkerExit
from elastic.core.transactions import verdict_at
from elastic.core.view import StoredDocument, StoreView
from launcher.config.readers import np as read_np

KILL_S = 1.0
POLICY = DecisionPolicy("a", kill_s=KILL_S)

D = TypeVar("D", FormGeneration, OpenGate, ConcludeJob, WaitDecision)


def member(host: str = "h", slots: int = 1, **others: Any) -> Member:
    """A node that is ready; it holds three ports for torch's store."""
    ports = tuple(8000 + number for number in range(slots))
    return Member(host=host, slots=slots, masters=(7000, 7001, 7002), ports=ports, **others)


def worker_exit(rank: int = 0, code: int = 1, **others: Any) -> WorkerExit:
    """A worker that ended with this code."""
    return WorkerExit(rank=rank, code=code, words=f"exit code {code}", **others)


def nodes_of(decision: FormGeneration) -> list[str]:
    """The members of the generation that is proposed, by M_id."""
    return [place.node for place in decision.generation.members]


class Job:
    """The documents of one job, and the memory of the proposer that looks at them."""

    spec_type: type[JobSpec] = JobSpec

    def __init__(self, np: str = "2", slots: int = 1, **spec: Any) -> None:
        self.memory = DecisionMemory()
        self.revision = 1
        self.view = StoreView(revision=1, complete=True, incarnation=self._stored("abc"))
        self._write_spec(self.spec_type(np=read_np(np), slots=slots, **spec))

    # --- what happens in the store --------------------------------------------------------------------------------

    def join(self, nodes: str, *, host: str = "", **others: Any) -> None:
        """These nodes register, in this order, each on a host of its own unless one is named."""
        for node in nodes.split():
            others.setdefault("slots", self.spec.slots)
            self.revision += 1
            stored = self._stored(member(host or f"host-{node}", **others), lease=1000 + self.revision)
            self._set(members={**self.view.members, node: stored})

    def vanish(self, nodes: str, *, heard: bool = True) -> None:
        """Their leases end. Those whose agents had been `heard` over links are so any more only if a test says it."""
        if heard:
            unheard = self.memory.unheard | set(nodes.split()) - self.memory.linked
            self.memory = msgspec.structs.replace(self.memory, unheard=unheard)
        self._set(members={node: stored for node, stored in self.view.members.items() if node not in nodes.split()})

    def drain(self, nodes: str, reason: str = "SIGTERM") -> None:
        """They say that they leave."""
        for node in nodes.split():
            stored = self.view.members[node]
            value = msgspec.structs.replace(stored.value, state=MemberState.DRAINING, drain_reason=reason)
            self._set(members={**self.view.members, node: replace(stored, value=value)})

    def scale(self, np: str) -> None:
        """The operator wants another number of nodes."""
        self._write_spec(msgspec.structs.replace(self.spec, np=read_np(np)))

    def ended(self, nodes: str, how: OutcomeKind, **others: Any) -> None:
        """They record how their workers of the generation that last got its go ended."""
        for node in nodes.split():
            self.revision += 1
            _, since = self.generation.start_of(node) or (0, 0)
            outcome = Outcome(ended=how, **{"host": f"host-{node}", "over": True, "since": since, **others})
            self._set(outcomes={**self.view.outcomes, (self.running_g, node): self._stored(outcome)})

    def ok(self, nodes: str) -> None:
        """Their workers ended with exit code 0."""
        self.ended(nodes, OutcomeKind.OK)

    def stopped(self, nodes: str, **others: Any) -> None:
        """Their workers were stopped."""
        self.ended(nodes, OutcomeKind.STOPPED, **others)

    def failed(
        self, nodes: str, *, code: int = 1, failure: FailureClass = FailureClass.SCRIPT, why: str = "", **others: Any
    ) -> None:
        """A worker of theirs ended with this code."""
        worker = worker_exit(code=code, failure=failure, why=why)
        self.ended(nodes, OutcomeKind.FAILED, exits=(worker,), **others)

    def write(self, decision: Decision) -> None:
        """The proposer's transaction for this decision went through."""
        self.revision += 1
        match decision:
            case FormGeneration(generation=generation):
                g = generation.g
                kept = {
                    key: end for key, end in self.view.outcomes.items() if key not in {(g, n) for n in decision.forget}
                }
                self._set(generation=self._stored(generation), outcomes=kept)
                if decision.go is not None:
                    self._set(go=self._stored(decision.go))
            case OpenGate(go=go):
                self._set(go=self._stored(go))
            case ConcludeJob():
                self._set(verdict=self._stored(verdict_at(decision, 0.0)))

    def run(self, nodes: str, now: float = 0.0) -> None:
        """The first generation runs with these nodes, in this order."""
        self.join(nodes)
        assert nodes_of(self.form(now, Reason.FORMED, Reason.SETTLING)) == nodes.split()

    # --- what the proposer says -----------------------------------------------------------------------------------

    def decide(self, now: float) -> Decision:
        """Ask, and remember."""
        decision, self.memory = decide(self.view, self.memory, POLICY, now)
        return decision

    def form(self, now: float, code: Reason, before: Reason | None = None) -> FormGeneration:
        """A generation is formed for this reason, and written; with `before`, after a wait for that one."""
        decision = self.decide(now)
        if before is not None and isinstance(decision, WaitDecision):
            assert decision.code is before
            assert decision.until is not None
            decision = self.decide(decision.until)
        return self._did(decision, FormGeneration, code)

    def open(self, now: float) -> OpenGate:
        """The go is given, and written."""
        return self._did(self.decide(now), OpenGate, Reason.OPENED)

    def conclude(self, now: float, code: Reason) -> ConcludeJob:
        """The job ends for this reason, and the verdict is written."""
        return self._did(self.decide(now), ConcludeJob, code)

    def wait(self, now: float, code: Reason) -> WaitDecision:
        """Nothing is done, for this reason."""
        return self._did(self.decide(now), WaitDecision, code)

    # --- what is there --------------------------------------------------------------------------------------------

    @property
    def spec(self) -> JobSpec:
        """The spec."""
        assert self.view.spec is not None
        return self.view.spec.value

    @property
    def generation(self) -> Generation:
        """The newest generation."""
        assert self.view.generation is not None
        return self.view.generation.value

    @property
    def running_g(self) -> int:
        """The generation that last got its go."""
        assert self.view.go is not None
        return self.view.go.value.g

    def spent(self, budget: Budget) -> None:
        """The job has used up this much before its present generation."""
        assert self.view.go is not None
        go = msgspec.structs.replace(self.view.go.value, budget=budget)
        self._set(go=self._stored(go))

    def prove_gone(self, node: str) -> None:
        """A link shows that the node's process is dead."""
        key = (node, self.view.members[node].create_revision)
        self.memory = msgspec.structs.replace(self.memory, gone=self.memory.gone | {key})

    def prove_dead(self, nodes: str) -> None:
        """This very machine shows that nothing of them is left."""
        self.memory = msgspec.structs.replace(self.memory, dead=self.memory.dead | set(nodes.split()))

    def distrust(self, host: str) -> None:
        """A node of this host spoke after a link had shown its death."""
        self.memory = msgspec.structs.replace(self.memory, distrusted=self.memory.distrusted | {host})

    def hear(self, nodes: str) -> None:
        """These, and no others, are heard over the links."""
        linked = frozenset(nodes.split())
        unheard = (self.memory.unheard | self.memory.linked) - linked
        self.memory = msgspec.structs.replace(self.memory, linked=linked, unheard=unheard)

    def _did(self, decision: Decision, kind: type[D], code: Reason) -> D:
        assert isinstance(decision, kind), decision
        assert decision.code is code, decision
        self.write(decision)
        return decision

    def _write_spec(self, spec: JobSpec) -> None:
        self.revision += 1
        self._set(spec=self._stored(spec))

    def _stored(self, value: Any, lease: int = 0) -> StoredDocument[Any]:
        return StoredDocument(value, self.revision, self.revision, lease)

    def _set(self, **documents: Any) -> None:
        self.view = replace(self.view, revision=self.revision, **documents)
