"""The facts that the rules of `decide` derive from the view and the memory (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Final

from msgspec.structs import replace

from elastic.core import listed_hosts
from elastic.core.membership.decision import DecisionPolicy, Reason, WaitDecision
from elastic.core.membership.evictions import STEADY_S, Eviction
from elastic.core.membership.memory import LINK_PATIENCE_S, DecisionMemory
from elastic.core.model import (
    Generation,
    GenerationMember,
    JobSpec,
    Member,
    MemberState,
    Outcome,
    OutcomeKind,
    Predecessor,
    StopOrder,
)
from elastic.core.restart_policy import HEALTHY_S, Judgement, judge
from elastic.core.run_deadline import NEVER
from elastic.core.text import COUNTED, lost_text
from elastic.core.view import StoredDocument, StoreView

BATCH_S = 0.3
"""Drains, and joining nodes while the gate is closed, are collected for this long."""
INFINITY: Final = float("inf")
RETURN_S = 1.0
"""A node whose lease ended early registers again within this time."""


class Stage(StrEnum):
    """The stage of the newest generation; each stage has its own rules."""

    FIRST_START = "no generation yet"
    RUNNING = "the newest generation has its start signal"
    GATE = "the newest generation waits at its gate"


@dataclass(frozen=True)
class Situation:
    """One call of `decide`: the view, the memory, and the facts that several rules derive from both.

    `now` is the leader's monotonic clock in seconds. Each fact is computed at most once for each call.
    """

    view: StoreView
    spec: JobSpec
    memory: DecisionMemory
    policy: DecisionPolicy
    now: float

    # The newest generation

    @cached_property
    def generation(self) -> Generation | None:
        """The newest generation of this run."""
        stored = self.view.generation
        return stored.value if stored is not None and stored.value.run == self.spec.run else None

    @property
    def current(self) -> Generation:
        """The newest generation of this run, for rules that apply only if there is one."""
        assert self.generation is not None
        return self.generation

    @cached_property
    def stage(self) -> Stage:
        """The stage whose rules apply."""
        if self.generation is None:
            return Stage.FIRST_START
        return Stage.RUNNING if self.started else Stage.GATE

    @property
    def started(self) -> bool:
        """Whether the newest generation has its start signal."""
        return self.view.go is not None and self.view.go.value.g == self.current.g

    @cached_property
    def nodes(self) -> list[str]:
        """The members of the newest generation, in the order of their M_id."""
        return [member.node for member in self.generation.members] if self.generation is not None else []

    @cached_property
    def outcomes(self) -> Mapping[str, Outcome]:
        """The outcomes that members of the newest generation have recorded for it."""
        return {node: end for node in self.nodes if (end := self.outcome(self.current.g, node)) is not None}

    def ended(self, kind: OutcomeKind) -> list[str]:
        """The members whose workers of the newest generation ended in this way."""
        return [node for node, outcome in self.outcomes.items() if outcome.ended is kind]

    @property
    def previous(self) -> Predecessor | None:
        """The generation whose workers the gate waits for."""
        return self.current.before

    @cached_property
    def previous_outcomes(self) -> Mapping[str, Outcome]:
        """The outcomes that members of the previous generation have recorded for their last start in it."""
        before = self.previous
        if before is None:
            return {}
        last_start = dict(zip(before.nodes, before.since, strict=False))
        ends = ((node, self.outcome(before.g, node)) for node in before.nodes)
        return {node: end for node, end in ends if end is not None and end.since == last_start.get(node, 0)}

    def stopped(self, node: str) -> bool:
        """Return whether a node has recorded that none of its workers of the previous generation is left."""
        outcome = self.previous_outcomes.get(node)
        return outcome is not None and outcome.over

    @cached_property
    def judgement(self) -> Judgement:
        """What the end of the previous generation costs the job."""
        budget, before = self.current.budget, self.previous
        if before is None or not self.spec.one_world:  # Without one world, failures are charged while other tasks run.
            return Judgement(budget)
        outcomes = {node: stored for (g, node), stored in self.view.outcomes.items() if g == before.g}
        lost = frozenset(node for node in before.nodes if node not in outcomes)
        healthy = max((stored.value.ran_s for stored in outcomes.values()), default=0.0) >= HEALTHY_S
        return judge(before, outcomes, lost, budget, self.spec, healthy=healthy)

    @property
    def gate_since(self) -> tuple[int, float]:
        """The newest generation, and since when only a back-off has kept its gate closed."""
        since = self.memory.gate_since
        return since if since is not None and since[0] == self.current.g else (self.current.g, self.now)

    @property
    def stop_order(self) -> StopOrder | None:
        """The operator's order to stop this run, None without one."""
        stored = self.view.halt
        return stored.value if stored is not None and stored.value.run == self.spec.run else None

    # Members

    def member(self, node: str) -> StoredDocument[Member] | None:
        """The registered member; None if it is not registered or its death is proven."""
        stored, memory = self.view.members.get(node), self.memory
        if stored is None or not (memory.gone or memory.dead):
            return stored
        return None if (node, stored.create_revision) in memory.gone or node in memory.dead else stored

    def vouched(self, node: str) -> bool:
        """Return whether an unregistered member is still heard and has time left to register again."""
        absent = self.memory.absent_since.get(node)
        return absent is not None and node in self.memory.linked and self.now < absent + 2 * self.spec.lease_ttl_s

    def working(self, node: str) -> bool:
        """Return whether a member of a running generation still works, even if it cannot reach the store for a while.

        At the gate a member has less time (`vouched`): the gate would wait for it, and it could not report its stop.
        """
        if node in self.evicted_members:
            return False
        if self.member(node) is not None:
            return True
        absent = self.memory.absent_since.get(node)
        in_time = absent is not None and self.now < absent + self.spec.etcd_outage_timeout_s
        return in_time and node in self.memory.linked

    def returns_until(self, node: str) -> float | None:
        """Until when a member without a key may register again; None if there is no reason to expect that.

        A store that was suspended has ended every lease when it resumes. The first node that registers again gives the
        others the time of a lease. A store can also end leases that were refreshed in time. An agent that becomes the
        leader because of that has never heard the others, and gives them a moment.
        """
        memory = self.memory
        if node in memory.dead or any(node == gone for gone, _ in memory.gone) or node in self.evicted:
            return None
        back_at = NEVER if memory.back_at is None else memory.back_at
        absent = NEVER if node in memory.unheard else memory.absent_since.get(node, NEVER)
        until = max(back_at + self.spec.lease_ttl_s, absent + RETURN_S)
        return until if self.now < until else None

    def here(self, node: str) -> bool:
        """Return whether the node counts as present."""
        if node in self.evicted_members:
            return False
        return self.member(node) is not None or self.vouched(node)

    def is_draining(self, node: str) -> bool:
        """Return whether the node has announced a drain."""
        if not self.memory.draining_since:  # It has every member that drains.
            return False
        stored = self.view.members.get(node)
        return stored is not None and stored.value.state is MemberState.DRAINING

    def lost_text(self, nodes: Iterable[str]) -> str:
        """Say which nodes were lost, and how that was detected."""
        return lost_text(nodes, self.view.members, self.evicted)

    def drain_reasons(self, nodes: Iterable[str]) -> list[str]:
        """The reasons that these nodes have given for their drains."""
        return [self.view.members[node].value.drain_reason for node in nodes if node in self.view.members]

    def outcome(self, g: int, node: str) -> Outcome | None:
        """How a node's workers of generation g ended; None if the node has not recorded it."""
        stored = self.view.outcomes.get((g, node))
        return stored.value if stored is not None else None

    @cached_property
    def returning(self) -> Mapping[str, float]:
        """Members without an outcome that do not work and may register again, each with the end of that time."""
        away = [node for node in self.nodes if node not in self.outcomes and not self.working(node)]
        return {node: until for node in away if (until := self.returns_until(node)) is not None}

    @cached_property
    def lost(self) -> list[str]:
        """Members of a running generation that are gone without an outcome."""
        away = [node for node in self.nodes if node not in self.outcomes and not self.working(node)]
        return [node for node in away if node not in self.returning]

    @cached_property
    def evicted(self) -> frozenset[str]:
        """Nodes that were evicted as silent, except nodes of older generations that have registered again."""
        away = frozenset(
            eviction.node for eviction in self.memory.evictions if not eviction.returned and self._took_place(eviction)
        )
        return away | self.evicted_members

    @cached_property
    def evicted_members(self) -> frozenset[str]:
        """Members that this agent has evicted from the newest generation: they are lost even if they register again.

        A member that reaches the store registers again within milliseconds, before a generation without it is made.
        """
        g = self.generation.g if self.generation is not None else 0
        return frozenset(
            eviction.node for eviction in self.memory.evictions if g and eviction.g == g and self._took_place(eviction)
        )

    def _took_place(self, eviction: Eviction) -> bool:
        """Return whether the registration is gone: an eviction whose answer was lost may have failed."""
        stored = self.view.members.get(eviction.node)
        return stored is None or stored.create_revision != eviction.create_revision

    @cached_property
    def missing(self) -> list[str]:
        """Members of a generation at its gate that are absent, or that would start too early."""
        return [node for node in self.nodes if not self.here(node) or self.starts_too_early(node)]

    @cached_property
    def draining(self) -> list[str]:
        """Members of the newest generation that drain."""
        return [node for node in self.nodes if self.is_draining(node)]

    @cached_property
    def staying(self) -> list[GenerationMember]:
        """The present members of the newest generation that do not drain, in their order, with their newest ports.

        A member that has registered again with another number of slots cannot stay.
        """
        members = self.generation.members if self.generation is not None else ()
        here = [member for member in members if self.here(member.node) and not self.is_draining(member.node)]
        here = [member for member in here if not self.starts_too_early(member.node)]
        return [member for member in map(self._newest, here) if len(member.ports) == self.spec.slots]

    def _newest(self, member: GenerationMember) -> GenerationMember:
        stored = self.member(member.node)
        return generation_member(member.node, stored.value) if stored is not None else member

    # Joining nodes

    @cached_property
    def joining_nodes(self) -> list[str]:
        """Nodes that can be admitted, oldest first; with --ips one for each host without a node.

        A node counts only if the job could not start or run without it in these cases: it is silent, or its host is
        quarantined, unreachable, or that of an evicted node and not heard steadily.
        """
        silent, avoided = self.memory.silent, self.quarantined() | self.out_of_reach() | self.unsteady()
        if not avoided and not silent:
            return self._one_for_each_host(self.ready)
        hosts = zip(self.ready, self.hosts(self.ready), strict=True)
        candidates = self._one_for_each_host(
            [node for node, host in hosts if host not in avoided and node not in silent]
        )
        needed = self.spec.np.first if self.generation is None else self.spec.np.low
        enough = len(self.staying) + len(candidates) >= needed
        return candidates if enough else self._one_for_each_host(self.ready)

    @cached_property
    def ready(self) -> list[str]:
        """Nodes that are ready and outside the generation, oldest first."""
        ready = [
            (stored.create_revision, node)
            for node in self.memory.ready_since
            if (stored := self.member(node)) is not None
            and stored.value.slots == self.spec.slots
            and not self._may_meet_workers(node, stored.value.host)
        ]
        return [node for _, node in sorted(ready)]

    def starts_too_early(self, node: str) -> bool:
        """Return whether a member that joins at the gate is on a host where an evicted node may still run workers."""
        if not self.memory.evictions or self.stage is not Stage.GATE:
            return False
        before, stored = self.previous, self.member(node)
        joins = before is None or node not in before.nodes
        return joins and stored is not None and self._may_meet_workers(node, stored.value.host)

    def _may_meet_workers(self, node: str, host: str) -> bool:
        """Return whether workers of another, evicted node may still run on this host."""
        return self.now < self.free_at(node, host)

    def free_at(self, node: str, host: str) -> float:
        """From when on workers of another, evicted node certainly no longer run on this host."""
        evictions, ttl_s = self.memory.evictions, self.spec.lease_ttl_s
        others = (
            one for one in evictions if one.host == host and one.node != node and one.node not in self.memory.dead
        )
        return max((one.workers_gone_at(ttl_s) for one in others), default=NEVER)

    def _one_for_each_host(self, ready: list[str]) -> list[str]:
        if not self.spec.ips:
            return ready
        taken = {member.host for member in self.staying}
        return listed_hosts.one_node_per_host(self.spec.ips, taken, zip(ready, self.hosts(ready), strict=True))

    @cached_property
    def admissible(self) -> list[str]:
        """The joining nodes that np's maximum allows in addition to the members of the newest generation."""
        members = len(self.staying) if self.stage is Stage.GATE else len(self.nodes)
        return self.joining_nodes[: max(self.spec.np.high - members, 0)]

    @property
    def joined_until(self) -> float | None:
        """Until when joining nodes are collected before a gate admits them; None if there are none."""
        return max((self.memory.ready_since[node] + BATCH_S for node in self.admissible), default=None)

    def hosts(self, nodes: Iterable[str]) -> list[str]:
        """The hosts of these members."""
        return [self.view.members[node].value.host for node in nodes]

    def quarantined(self) -> frozenset[str]:
        """The hosts that are quarantined now."""
        return frozenset(host for (host, _), until in self.memory.quarantine_deadlines.items() if self.now < until)

    def out_of_reach(self) -> frozenset[str]:
        """The hosts that were left out because of a network partition, have a node, and cannot be reached yet."""
        apart = {entry.host for entry in self.view.budget.hosts if entry.unreachable}
        if not apart:
            return frozenset()
        members, linked = self.view.members, self.memory.linked
        reached = {
            stored.value.host
            for node, stored in members.items()
            if node in linked or node == self.policy.node or not stored.value.link
        }
        return frozenset(apart & {stored.value.host for stored in members.values()} - reached)

    def unsteady(self) -> frozenset[str]:
        """The hosts of evicted nodes with a new node that has not yet sent heartbeats for long enough."""
        hosts = frozenset(one.host for one in self.memory.evictions if self.now < one.silence_counts_at)
        if not hosts:
            return hosts
        joining = zip(self.ready, self.hosts(self.ready), strict=True)
        return frozenset(host for node, host in joining if host in hosts and self.now < self.steady_at(node))

    def steady_at(self, node: str) -> float:
        """When a node will have been heard for long enough; infinity while it is not heard."""
        if node == self.policy.node:
            return NEVER
        return self.memory.heard_since.get(node, INFINITY) + STEADY_S

    # When to decide again

    def wait(self, code: Reason, text: str, *until: float | None) -> WaitDecision:
        """Wait for a change of the view, or until the earliest of these times and of `next_deadline`.

        The text counts down the first of these times, one for each `COUNTED` in it.
        """
        ends = tuple(end for end in until[: text.count(COUNTED)] if end is not None)
        wait = WaitDecision(code, text, earliest(*until, self.next_deadline), text, ends)
        return replace(wait, reason=wait.reason_at(self.now))

    @cached_property
    def next_deadline(self) -> float | None:
        """When a node can join without a change in the store: a link is no longer awaited, a quarantine ends, ..."""
        memory = self.memory
        unlinked = [since + LINK_PATIENCE_S for since in memory.seen_since.values()]
        steady = [self.steady_at(node) for node in memory.ready_since] if memory.evictions else []
        gone = [one.workers_gone_at(self.spec.lease_ttl_s) for one in memory.evictions]
        later = (at for at in (*memory.quarantine_deadlines.values(), *steady, *gone) if self.now < at < INFINITY)
        return earliest(*unlinked, *later)


def generation_member(node: str, member: Member) -> GenerationMember:
    """A registered node as a member of a generation."""
    return GenerationMember(node, member.host, member.masters, member.ports)


def all_completed(nodes: Iterable[str], outcomes: Mapping[str, Outcome]) -> bool:
    """Return whether the workers of every one of these nodes ended with exit code 0 and are gone."""
    ends = [outcomes.get(node) for node in nodes]
    return bool(ends) and all(end is not None and end.ended is OutcomeKind.OK and end.over for end in ends)


def earliest(*times: float | None) -> float | None:
    """The earliest of these times, without those that are None; None if there are no others."""
    return min((time for time in times if time is not None), default=None)
