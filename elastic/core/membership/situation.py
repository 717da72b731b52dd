"""One question to `decide`: what stands in the store, what is remembered, and what several rules ask of both (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from elastic.core import listed_hosts
from elastic.core.membership.decision import ConcludeJob, DecisionMemory, DecisionPolicy, Reason
from elastic.core.model import FinalStatus, Generation, GenerationMember, JobSpec, Member, MemberState, Outcome, Verdict
from elastic.core.restart_budget import budget_of
from elastic.core.run_deadline import NEVER
from elastic.core.view import StoredDocument, StoreView

BATCH_S = 0.3
"""Drains, and newcomers while the gate is closed, are collected for this long."""
RETURN_S = 1.0
"""A node whose lease has ended before its time is registered again within this time."""
LINK_PATIENCE_S = 3.0
"""A registered node whose agent cannot be linked is taken all the same after this time; its lease tells of its loss."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One call of `decide`, with what several rules ask for."""

    view: StoreView
    spec: JobSpec
    memory: DecisionMemory
    policy: DecisionPolicy
    now: float

    @property
    def generation(self) -> Generation | None:
        """The newest generation of this run."""
        stored = self.view.generation
        return stored.value if stored is not None and stored.value.run == self.spec.run else None

    def member(self, node: str) -> StoredDocument[Member] | None:
        """The registered member, None also when its death is proven."""
        stored, memory = self.view.members.get(node), self.memory
        if stored is None or not (memory.gone or memory.dead):
            return stored
        return None if (node, stored.create_revision) in memory.gone or node in memory.dead else stored

    def vouched(self, node: str) -> bool:
        """Tell whether an unregistered member is still heard, within the time it has to register again."""
        absent = self.memory.absent_since.get(node)
        return absent is not None and node in self.memory.linked and self.now < absent + 2 * self.spec.lease_ttl_s

    def working(self, node: str) -> bool:
        """Tell whether a member of a running generation works on, though it may not reach the store for a while.

        One late answer is forgiven, because a busy machine can pause for longer than a question waits. At the gate it
        would be waited for, and could not say that it has stopped: there it has less time (`vouched`).
        """
        if self.member(node) is not None:
            return True
        absent = self.memory.absent_since.get(node)
        in_time = absent is not None and self.now < absent + self.spec.store_outage_limit_s
        return in_time and node in self.memory.linked | self.memory.late

    def returns_until(self, node: str) -> float | None:
        """Until when a member without a key may register again; None if nothing speaks for it.

        A store that stood still has ended every lease when it is back. Whoever is the first to be registered again
        gives the others the time of a lease, too. A store can also end leases that were refreshed in time. Who proposes
        because of that has never heard the others, and gives them a moment.
        """
        memory = self.memory
        if node in memory.dead or any(node == gone for gone, _ in memory.gone):
            return None
        back_at = NEVER if memory.back_at is None else memory.back_at
        absent = NEVER if node in memory.unheard else memory.absent_since.get(node, NEVER)
        until = max(back_at + self.spec.lease_ttl_s, absent + RETURN_S)
        return until if self.now < until else None

    def here(self, node: str) -> bool:
        """Tell whether the node counts as present."""
        return self.member(node) is not None or self.vouched(node)

    def draining(self, node: str) -> bool:
        """Tell whether the node has said that it leaves."""
        if not self.memory.draining_since:  # It has every member that drains.
            return False
        stored = self.view.members.get(node)
        return stored is not None and stored.value.state is MemberState.DRAINING

    def outcome(self, g: int, node: str) -> Outcome | None:
        """How a node's workers of generation g ended, as far as it has said so."""
        stored = self.view.outcomes.get((g, node))
        return stored.value if stored is not None else None

    def joining_nodes(self) -> list[str]:
        """Nodes that can be taken into the generation, oldest first; with --ips one for each host without a node.

        Those on hosts that are kept out, or cannot be reached, count only where the job could not run without them.
        """
        ready = self.ready()
        avoided = self.quarantined() | self.out_of_reach()
        if not avoided:
            return self._one_for_each(ready)
        candidates = self._one_for_each([node for node in ready if self.view.members[node].value.host not in avoided])
        staying = self.staying(self.generation) if self.generation is not None else []
        return candidates if len(staying) + len(candidates) >= self.spec.np.low else self._one_for_each(ready)

    def quarantined(self) -> frozenset[str]:
        """The hosts that are kept out at this moment."""
        return frozenset(host for (host, _), until in self.memory.quarantine_deadlines.items() if self.now < until)

    def out_of_reach(self) -> frozenset[str]:
        """The hosts that were left out of a split network, have a node, and are not reached by this one yet."""
        apart = {entry.host for entry in budget_of(self.view).hosts if entry.unreachable}
        if not apart:
            return frozenset()
        apart &= {stored.value.host for stored in self.view.members.values()}
        reached = {
            stored.value.host
            for node, stored in self.view.members.items()
            if node in self.memory.linked or node == self.policy.node or not stored.value.link
        }
        return frozenset(apart - reached)

    def _one_for_each(self, ready: list[str]) -> list[str]:
        if not self.spec.ips:
            return ready
        taken = {place.host for place in self.staying(self.generation)} if self.generation is not None else set()
        return listed_hosts.one_node_per_host(self.spec.ips, taken, zip(ready, self.hosts(ready), strict=True))

    def hosts(self, nodes: Iterable[str]) -> list[str]:
        """The hosts of these members."""
        return [self.view.members[node].value.host for node in nodes]

    def ready(self) -> list[str]:
        """Nodes that are ready and outside the generation, oldest first."""
        ready = [
            (stored.create_revision, node)
            for node in self.memory.ready_since
            if (stored := self.member(node)) is not None and stored.value.slots == self.spec.slots
        ]
        return [node for _, node in sorted(ready)]

    def staying(self, generation: Generation) -> list[GenerationMember]:
        """The members of the generation that are here and do not leave, in their order, with their newest ports.

        One that has another number of slots than the spec by now cannot stay.
        """
        here = [place for place in generation.members if self.here(place.node) and not self.draining(place.node)]
        return [place for place in map(self.place, here) if len(place.ports) == self.spec.slots]

    def place(self, place: GenerationMember) -> GenerationMember:
        """A member's place, with the ports it registered last."""
        stored = self.member(place.node)
        return place_of(place.node, stored.value) if stored is not None else place


def completed(q: Situation, g: int) -> ConcludeJob:
    """The job is completed by generation g."""
    reason = f"every worker of generation {g} ended with exit code 0"
    verdict = Verdict(status=FinalStatus.COMPLETED, reason=reason, run=q.spec.run, g=g, tag="", at=0.0)
    return ConcludeJob(Reason.COMPLETED, reason, verdict)


def place_of(node: str, member: Member) -> GenerationMember:
    """A registered node as a member of a generation."""
    return GenerationMember(node, member.host, member.masters, member.ports)


def earliest(*times: float | None) -> float | None:
    """The earliest of the times that there are."""
    return min((time for time in times if time is not None), default=None)
