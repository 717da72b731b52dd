"""The state of a job, from the documents in the store, as values and as text (pure).

A node that has just died is "running" here until its lease expires or its death is proven. What the job waits for is
what a new leader would report: it cannot know for how long nodes have been waiting, so its times are upper bounds. When
nodes join a running job depends on what only the leader remembers, so the status does not say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import msgspec

from elastic.core import quarantine, text
from elastic.core.decide import decide
from elastic.core.membership.decision import ConcludeJob, DecisionPolicy, FormGeneration, OpenGate, Reason
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import (
    Budget,
    ChangeReason,
    Generation,
    JobMode,
    MemberState,
    Outcome,
    SavedCheckpoint,
    Verdict,
)
from elastic.core.ps.model import TaskMember
from elastic.core.ps.text import tasks_in_words
from elastic.core.run_deadline import KILL_S, NEVER
from elastic.core.view import StoreView
from launcher.job.absent_nodes import absent_nodes

NO_LONGER_REGISTERED = "no longer registered"

SCALE_UPS = (Reason.SCALE_UP_SETTLING, Reason.SCALE_UP_LATER, Reason.SCALED_UP)
"""Nodes join later; only the leader knows since when they wait, and when the job last scaled up."""


class NodeState(StrEnum):
    """What a node does, according to the store."""

    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "at the barrier"
    SPARE = "spare"
    QUARANTINED = "quarantined"
    READY = "ready"
    DRAINING = "draining"
    LOST = "lost"
    DONE = "done"


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node. A node outside the newest generation has no `m_id` and no ranks. `note` adds to the state.

    In a parameter-server job it has no ranks but `tasks`: "server 0, workers 2-3".
    """

    m_id: int | None
    node: str
    host: str
    ranks: tuple[int, ...]
    state: NodeState
    note: str = ""
    tasks: str = ""


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    `generation` is the newest of this run, None before the first; `go` tells whether its workers may run. `restarts`
    are those that count. `leader` is the leading node, `now` what it would report. `damaged` are the keys of documents
    that cannot be parsed; `saved` is the newest committed checkpoint. Values of the spec are None while there is no
    readable one; under torchrun `restarts_max` is also None, because each of its agents counts its own. `lacking` is
    the number of nodes that are missing for np; `missing` lists nodes that do not count, and why.
    """

    job_id: str
    run: int | None
    np: str | None
    generation: int | None
    why: ChangeReason | None
    reason: str
    go: bool
    world_size: int
    restarts: int
    restarts_max: int | None
    leader: str | None = msgspec.field(name="proposer")
    now: str
    verdict: Verdict | None
    damaged: tuple[str, ...]
    saved: SavedCheckpoint | None
    nodes: tuple[NodeStatus, ...]
    lacking: int = 0
    missing: tuple[str, ...] = ()


def describe(view: StoreView, job_id: str) -> JobStatus:
    """Return the status of a job. `view` must be complete."""
    world = _JobWorld.of(view)
    spec = view.spec.value if view.spec is not None else None
    generation = world.generation
    budget = view.budget if generation is not None else Budget()
    nodes = tuple(world.nodes())
    return JobStatus(
        job_id=job_id,
        run=spec.run if spec is not None else None,
        np=str(spec.np) if spec is not None else None,
        generation=generation.g if generation is not None else None,
        why=generation.why if generation is not None else None,
        reason=generation.reason if generation is not None else "",
        go=world.go,
        world_size=generation.world_size if generation is not None else 0,
        restarts=budget.charged,
        restarts_max=spec.restarts_max if spec is not None and spec.mode is not JobMode.TORCHRUN else None,
        leader=view.leader.value.node if view.leader is not None else None,
        now=_now(view),
        verdict=view.verdict.value if view.verdict is not None else None,
        damaged=view.damaged,
        saved=view.saved.value if view.saved is not None else None,
        nodes=nodes,
        lacking=_lacking(view, nodes),
        missing=_missing(view, nodes),
    )


@dataclass(frozen=True, slots=True)
class _JobWorld:
    """The newest generation of this run, and the generation whose workers may still run.

    After the start signal that is the newest generation itself; before it, the one `before`.
    """

    view: StoreView
    generation: Generation | None
    go: bool
    inside: frozenset[str]
    g: int
    workers: tuple[str, ...]

    @classmethod
    def of(cls, view: StoreView) -> _JobWorld:
        generation = view.current_generation
        if generation is None:
            return cls(view, None, False, frozenset(), 0, ())
        names = tuple(place.node for place in generation.members)
        if view.go is not None and view.go.value.g == generation.g:
            return cls(view, generation, True, frozenset(names), generation.g, names)
        before = generation.before
        old = (before.g, before.nodes) if before is not None else (0, ())
        return cls(view, generation, False, frozenset(names), *old)

    def nodes(self) -> Iterator[NodeStatus]:
        """Yield members by M_id, then other registered nodes by age, then nodes that disappeared and may still run."""
        members = self.view.members
        if self.generation is not None:
            slots = self.generation.slots
            for m_id, place in enumerate(self.generation.members):
                if isinstance(place, TaskMember) and place.tasks:
                    yield self._task_assignments(place, m_id)
                    continue
                ranks = tuple(range(m_id * slots, (m_id + 1) * slots))
                yield self._node(place.node, place.host, m_id, ranks)
        others = [(stored.create_revision, node) for node, stored in members.items() if node not in self.inside]
        for _, node in sorted(others):
            yield self._node(node, members[node].value.host)
        if self.view.verdict is None:
            for node in self.workers:
                if node not in self.inside and node not in members and not self._ended(node):
                    yield self._node(node, node.rpartition("-")[0])

    def _node(self, node: str, host: str, m_id: int | None = None, ranks: tuple[int, ...] = ()) -> NodeStatus:
        state, note = self._state(node)
        return NodeStatus(m_id=m_id, node=node, host=host, ranks=ranks, state=state, note=note)

    def _task_assignments(self, place: TaskMember, m_id: int) -> NodeStatus:
        """Return the status of a node of a parameter-server job."""
        status = self._node(place.node, place.host, m_id)
        if place.leaving and status.state is NodeState.RUNNING:
            status = msgspec.structs.replace(status, state=NodeState.STOPPING, note="draining")
        return msgspec.structs.replace(status, tasks=tasks_in_words(place))

    def _state(self, node: str) -> tuple[NodeState, str]:
        stored, outcome = self.view.members.get(node), self._outcome(node)
        ended = self.view.verdict is not None
        if self.go and outcome is not None:
            return NodeState.DONE if outcome.over else NodeState.STOPPING, _outcome_words(outcome)
        if stored is None:
            if ended and not self.go:
                return NodeState.DONE, "left"
            return NodeState.LOST, NO_LONGER_REGISTERED
        works = node in self.workers and not self._ended(node)
        if works and (ended or not self.go):
            return NodeState.STOPPING, _outcome_words(outcome) if outcome is not None else ""
        if stored.value.state is MemberState.DRAINING:
            return NodeState.DRAINING, stored.value.drain_reason
        if works:
            return NodeState.RUNNING, ""
        if node in self.inside:
            return NodeState.DONE if ended else NodeState.WAITING, ""
        if self.generation is None:
            return NodeState.READY, ""
        spec = self.view.spec.value if self.view.spec is not None else None
        room = spec is not None and len(self.inside) < spec.np.high
        for record in self.view.budget.hosts:
            if record.host == stored.value.host and (record.left_s > 0 or (record.unreachable and room)):
                parts = []
                if record.left_s > 0:
                    parts.append(f"for {text.duration_in_words(record.left_s)} (or less)")
                parts += ["until it can be reached"] if record.unreachable else []
                return (
                    NodeState.QUARANTINED,
                    f"{' and '.join(parts)}: {quarantine.reason_text(record)}; it rejoins automatically",
                )
        return NodeState.SPARE, ""

    def _outcome(self, node: str) -> Outcome | None:
        stored = self.view.outcomes.get((self.g, node)) if node in self.workers else None
        start = self.generation.start_of(node) if self.generation is not None and self.go else None
        if stored is None or self.generation is None:
            return None
        if start is not None and stored.value.since != start[1]:
            return None  # From an earlier start of this node in the same generation.
        return stored.value

    def _ended(self, node: str) -> bool:
        outcome = self._outcome(node)
        return outcome is not None and outcome.over


def _lacking(view: StoreView, nodes: tuple[NodeStatus, ...]) -> int:
    """Return how many nodes are missing for the size that the job should grow to, or that it needs."""
    if view.spec is None or view.verdict is not None or view.spec.value.mode is not JobMode.COLLECTIVE:
        return 0
    np, away = view.spec.value.np, (NodeState.LOST, NodeState.DRAINING, NodeState.QUARANTINED)
    wanted = np.first if np.unlimited or np.first == np.high else np.low
    return max(wanted - sum(node.node in view.members and node.state not in away for node in nodes), 0)


def _missing(view: StoreView, nodes: tuple[NodeStatus, ...]) -> tuple[str, ...]:
    if view.verdict is not None:
        return ()
    lost = [f"{node.node} is {NO_LONGER_REGISTERED}" for node in nodes if node.state is NodeState.LOST]
    out = [f"{node.node} is quarantined {node.note}" for node in nodes if node.state is NodeState.QUARANTINED]
    return (*lost, *absent_nodes(view), *out)


def _now(view: StoreView) -> str:
    if not view.members and view.verdict is None and not view.unreadable:
        return "No node is registered; the job resumes when elastic-launch is started again"
    inside = {place.node for place in view.generation.value.members} if view.generation is not None else set()
    # A reader has no links: it assumes that all nodes are reachable, except those quarantined as unreachable.
    apart = {record.host for record in view.budget.hosts if record.unreachable}
    linked = {node for node, stored in view.members.items() if node in inside or stored.value.host not in apart}
    memory = DecisionMemory(linked=frozenset(linked), unheard=frozenset(inside - view.members.keys()))
    policy = DecisionPolicy("", kill_s=2 * KILL_S)
    decision, memory = decide(view, memory, policy, 0.0)
    if decision.code in SCALE_UPS:
        settled = msgspec.structs.replace(memory, scaled_up_at=None, ready_since=dict.fromkeys(view.members, NEVER))
        who = decide(view, settled, policy, 0.0)[0].reason
        return f"{who} after --join-window or --scale-up-interval; only the leader knows when"
    match decision:
        case FormGeneration():
            return f"about to form the next generation: {decision.reason}"
        case OpenGate():
            return f"about to send the start signal: {decision.reason}"
        case ConcludeJob():
            return f"about to end the job: {decision.reason}"
        case _:
            return decision.reason + (" (or less)" if decision.ends else "")


def _outcome_words(outcome: Outcome) -> str:
    if outcome.exits:
        first = outcome.exits[0]
        return f"{outcome.ended}: {text.process_name(first.role, first.rank)}: {first.words}"
    return str(outcome.ended)
