"""A job as it stands in the store, as values and as text for people (pure).

It says what the documents say. A node that died a moment ago is "running" here until its lease ends or its death is
proven, and what is being waited for is what a leader would say that had just begun to lead: it cannot know for how long
others have been waiting, so that its times are the longest possible ones. When nodes join a running job hangs on what
only the leader remembers, and is not said.
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

GROWTH = (Reason.GROW_SETTLING, Reason.GROW_LATER, Reason.GROWN)
"""Nodes join as soon as it is time; the leader knows since when they are here, and when the job grew last."""


class NodeState(StrEnum):
    """What a node does, as far as the store shows it."""

    RUNNING = "running"
    STOPPING = "stopping"
    WAITING = "waiting for go"
    SPARE = "spare"
    QUARANTINED = "kept out"
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
    tasks: str = msgspec.field(default="", name="seats")


class JobStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One job.

    `generation` is the newest of this run, None before the first; `go` tells whether its workers may run. `restarts`
    are those charged. `proposer` is the leader, `now` what it would say. `damaged` are the keys of documents
    that cannot be read; `saved` is the newest committed checkpoint. What the spec says is None while there is no
    readable one; under torchrun `restarts_max` is None, too, because each of its agents counts its own. `lacking` nodes
    are missing, of those that np asks for; `absent_nodes` says who is known not to count, and why.
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
    """Say how a job stands. `view` must be complete."""
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
    """The newest generation of this run, and the world whose workers may still be there.

    With a go that is the newest generation itself; while its gate is closed, the one `before` it.
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
        """Members by M_id, then the other registered nodes by age, then who vanished and may still run."""
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
        """A node of a parameter-server job."""
        status = self._node(place.node, place.host, m_id)
        if place.leaving and status.state is NodeState.RUNNING:
            status = msgspec.structs.replace(status, state=NodeState.STOPPING, note="asked to leave")
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
                    f"{' and '.join(parts)}: {quarantine.reason_text(record)}; it comes back by itself",
                )
        return NodeState.SPARE, ""

    def _outcome(self, node: str) -> Outcome | None:
        stored = self.view.outcomes.get((self.g, node)) if node in self.workers else None
        start = self.generation.start_of(node) if self.generation is not None and self.go else None
        if stored is None or self.generation is None:
            return None
        if start is not None and stored.value.since != start[1]:
            return None  # Of an older start of this node in the same generation.
        return stored.value

    def _ended(self, node: str) -> bool:
        outcome = self._outcome(node)
        return outcome is not None and outcome.over


def _lacking(view: StoreView, nodes: tuple[NodeStatus, ...]) -> int:
    """How many nodes fewer there are than the job is to grow to, or than it needs."""
    if view.spec is None or view.verdict is not None or view.spec.value.mode is not JobMode.COLLECTIVE:
        return 0
    np, away = view.spec.value.np, (NodeState.LOST, NodeState.DRAINING, NodeState.QUARANTINED)
    wanted = np.first if np.unlimited or np.first == np.high else np.low
    return max(wanted - sum(node.node in view.members and node.state not in away for node in nodes), 0)


def _missing(view: StoreView, nodes: tuple[NodeStatus, ...]) -> tuple[str, ...]:
    if view.verdict is not None:
        return ()
    lost = [f"{node.node} is {NO_LONGER_REGISTERED}" for node in nodes if node.state is NodeState.LOST]
    out = [f"{node.node} is kept out {node.note}" for node in nodes if node.state is NodeState.QUARANTINED]
    return (*lost, *absent_nodes(view), *out)


def _now(view: StoreView) -> str:
    if not view.members and view.verdict is None and not view.unreadable:
        return "No node is registered, so nobody works on this job; it goes on when elastic-launch is started again"
    inside = {place.node for place in view.generation.value.members} if view.generation is not None else set()
    # A reader without links takes everybody for reached, but who was left out for not being reached, and is not back.
    apart = {record.host for record in view.budget.hosts if record.unreachable}
    linked = {node for node, stored in view.members.items() if node in inside or stored.value.host not in apart}
    memory = DecisionMemory(linked=frozenset(linked), unheard=frozenset(inside - view.members.keys()))
    policy = DecisionPolicy("", kill_s=2 * KILL_S)
    decision, memory = decide(view, memory, policy, 0.0)
    if decision.code in GROWTH:
        settled = msgspec.structs.replace(memory, grown_at=None, ready_since=dict.fromkeys(view.members, NEVER))
        who = decide(view, settled, policy, 0.0)[0].reason
        return f"{who} as soon as it is time (--settle, --grow_every); only the leader knows when"
    match decision:
        case FormGeneration():
            return f"about to make the next generation: {decision.reason}"
        case OpenGate():
            return f"about to give the go: {decision.reason}"
        case ConcludeJob():
            return f"about to end the job: {decision.reason}"
        case _:
            return decision.reason + (" (or less)" if decision.ends else "")


def _outcome_words(outcome: Outcome) -> str:
    if outcome.exits:
        first = outcome.exits[0]
        return f"{outcome.ended}: {text.process_name(first.role, first.rank)}: {first.words}"
    return str(outcome.ended)
