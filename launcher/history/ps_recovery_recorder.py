"""Records each recovery of a parameter-server job on one node (pure).

In such a job a node failure does not interrupt tasks on other nodes, so a recovery concerns tasks: it lasts from the
first symptom of their former node until the processes on their new node do their work. The node that starts them
reports it. The node that proposed that start often knows better how the recovery began: it writes a
`RecoveryBeginning` into the job's history, and the other node reads it there.

Like `launcher.history.recovery_recorder`, it receives every event and never requests anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from elastic.core.agent.actions import Action, StartWorkers, StopWorkers
from elastic.core.agent.events import Event, WorkerExited, WorkersGone
from elastic.core.agent.state import AgentState
from elastic.core.model import PLANNED, MemberState
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from launcher.history.failure_signals import NoticedFailure, SentProposal
from launcher.history.recorder_base import (
    PATIENCE_S,
    START_PATIENCE_S,
    OngoingRecovery,
    RecorderBase,
    RecoveryBeginning,
)
from launcher.history.recovery import PS_ORDER, PhaseEnd, Recovery, phases


class _TaskVacancy(NamedTuple):
    """Since when no process does the work of a task, and why."""

    since: NoticedFailure
    text: str


@dataclass(kw_only=True)
class _TaskStart(OngoingRecovery):
    """A start of this node's tasks. `working` are the processes that do their work, by local rank.

    `asked_rev` and `asked_at`: the revision whose leader knows how it began, and when this node received it.
    """

    generation: ClusterSpec
    since: int
    tasks: tuple[Task, ...]
    asked_rev: int
    asked_at: float
    foreign: bool = False
    working: dict[int, float] = field(default_factory=dict)

    @property
    def workers(self) -> int:
        """The number of its processes that are no servers."""
        return sum(task.role is not Role.SERVER for task in self.tasks)

    @property
    def over(self) -> bool:
        """Whether all its processes do their work."""
        return len(self.working) >= len(self.tasks)


class PsRecoveryRecorder(RecorderBase[_TaskStart]):
    """The records of one node of a parameter-server job."""

    def __init__(self, node: str, command_at: float) -> None:
        """`command_at`: when this agent was started."""
        super().__init__(node, command_at)
        self._known: ClusterSpec | None = None
        self._vacant: dict[Task, _TaskVacancy] = {}
        self._speak: set[Task] = set()

    # --- the agent ------------------------------------------------------------------------------------------------

    def observe(
        self, facts: AgentState, event: Event, actions: Sequence[Action], *, arrived: float, now: float
    ) -> None:
        """Note what an event caused. It arrived at `arrived`; the core has just answered with `actions`, at `now`."""
        self._signs.notice(facts, event, actions, arrived, settled=True)
        self._proposals.observe(facts, event, actions, arrived=arrived, now=now)
        if isinstance(event, WorkersGone):
            self._gone_at = arrived
        if isinstance(event, WorkerExited) and event.own:
            self._exited(event, arrived)
        for action in actions:
            if isinstance(action, StopWorkers):  # From now on its tasks have no working process.
                self.failed(action.g, arrived, arrived)
        self._on_generation(facts, arrived)
        start = self._open
        for action in actions:
            if start is not None and isinstance(action, StartWorkers) and action.generation.g == start.generation.g:
                start.marks.setdefault(PhaseEnd.HEARD_GO, now)

    # --- the processes --------------------------------------------------------------------------------------------

    def failed(self, g: int, at: float, now: float) -> None:
        """Note that a process of this node failed on its own; `at` is when it did, before any node knew."""
        if self._known is not None and self._known.g == g:
            self._signs.failed(at, now)

    def grouped(self, g: int, local_rank: int, at: float, now: float) -> None:
        """Note that a worker is in the process group since `at`, as it reports at `now`."""
        start = self._of(g)
        if start is None or not _has(start, local_rank) or start.tasks[local_rank].role is Role.SERVER:
            return
        start.formed.setdefault(local_rank, start.believed(at, now))
        if len(start.formed) >= start.workers:
            start.marks[PhaseEnd.GROUPED] = max(start.formed.values())
        self._plan(now)

    def working(self, g: int, local_rank: int, at: float, now: float, step: int | None = None) -> None:
        """Note that a process does its work since `at`: a server listens, a worker has made a step."""
        start = self._of(g)
        if start is not None and _has(start, local_rank):
            self._speak.add(start.tasks[local_rank])
            self._mark_working(start, local_rank, start.believed(at, now), now)

    def _exited(self, event: WorkerExited, at: float) -> None:
        """Note an exit: a process that ended well has done its work; one that failed no longer does it."""
        if event.exit.code:
            self.failed(event.g, at, at)
            return
        start = self._of(event.g)
        ended = (event.exit.role, event.exit.rank)
        tasks = [(task.role, task.index) for task in start.tasks] if start is not None else []
        if start is not None and ended in tasks:
            self._mark_working(start, tasks.index(ended), at, at)

    def _mark_working(self, start: _TaskStart, local_rank: int, at: float, now: float) -> None:
        start.working.setdefault(local_rank, at)
        if start.over:
            start.marks.setdefault(PhaseEnd.STEPPED if start.workers else PhaseEnd.SERVED, max(start.working.values()))
        self._plan(now)

    # --- the recovery ---------------------------------------------------------------------------------------------

    def _recovery(self, start: _TaskStart) -> Recovery | None:
        if PhaseEnd.SPAWNED not in start.marks:
            return None
        return Recovery(
            why=start.generation.why,
            text=start.text,
            before=0 if start.start else start.generation.g if start.since else start.generation.g - 1,
            g=start.generation.g,
            began=start.began,
            phases=phases(start.began, start.marks, PS_ORDER),
            start=start.start,
            tells=start.tells,
            restored_step=start.restored_step,
            rev=start.asked_rev,
            foreign=start.foreign,
            asked_at=start.asked_at,
        )

    def _plan(self, now: float) -> None:
        """Determine when this start can be reported: at once, or when no further report of it arrives."""
        start = self._open
        if start is None or PhaseEnd.SPAWNED not in start.marks:
            self._due_at = None
        elif start.over:
            self._due_at = now
        elif all(task in self._speak for at, task in enumerate(start.tasks) if at not in start.working):
            self._due_at = None  # They reported at their last start on this node.
        else:
            early = start.start or PhaseEnd.GROUPED not in start.marks
            self._due_at = now + (START_PATIENCE_S if early else PATIENCE_S)

    # --- the revisions that answer the symptoms -------------------------------------------------------------------

    def _on_generation(self, facts: AgentState, arrived: float) -> None:
        """Another revision, or generation, removes tasks from some nodes, and assigns some."""
        generation, old = ClusterSpec.of(facts.generation) if facts.generation is not None else None, self._known
        if generation is None or generation is old:
            return
        self._known = generation
        if old is None or old.run != generation.run:
            old = None
            self._vacant.clear()
        elif (old.g, old.rev) == (generation.g, generation.rev):
            return
        proposal = self._proposals.of(generation)
        if old is not None:
            self._vacate(facts, old, generation, proposal.evidence_at if proposal is not None else arrived)
        starts = [place for place in generation.members if not place.leaving and _fresh(place, generation, old)]
        for place in starts:
            filled = [self._vacant.pop(task) for task in place.tasks if task in self._vacant]
            if place.node != self._node:
                self._note_beginning(generation, place, filled, proposal, arrived)
            else:
                self._begin(facts, generation, place, filled, proposal, arrived)
        self._signs.keep({place.node for place in generation.members} - {place.node for place in starts})

    def _vacate(self, facts: AgentState, old: ClusterSpec, new: ClusterSpec, evidence_at: float) -> None:
        """Note the tasks that have no working process, since the first symptom.

        A worker that leaves in a planned change does not count.
        """
        places = {place.node: place for place in new.members} if old.g == new.g else {}
        for place in old.members:
            now = places.get(place.node)
            kept_tasks = now.tasks if now is not None and not now.leaving and now.since == place.since else ()
            if place.leaving or kept_tasks == place.tasks:
                continue
            stored = facts.view.members.get(place.node)
            draining = stored is not None and stored.value.state is MemberState.DRAINING
            planned = old.g == new.g and (draining or new.why in PLANNED) and (now is None or now.since == place.since)
            since = self._signs.of(place.node) or NoticedFailure(evidence_at, evidence_at)
            for task in place.tasks:
                if task not in kept_tasks and (task.role is Role.SERVER or not planned):
                    self._vacant.setdefault(task, _TaskVacancy(since, new.reason))

    def _note_beginning(
        self,
        generation: ClusterSpec,
        place: TaskMember,
        filled: list[_TaskVacancy],
        proposal: SentProposal | None,
        arrived: float,
    ) -> None:
        """Note how the start of another node began, if this node proposed it: no other node knows it as well."""
        if proposal is None or not filled or not place.since:
            return
        since = min(filled).since
        marks = {PhaseEnd.DETECTED: since.known_at, PhaseEnd.ASSIGNED: proposal.evidence_at}
        marks |= {PhaseEnd.DECIDED: proposal.sent_at, PhaseEnd.PUBLISHED: proposal.published_at or arrived}
        lengths = phases(since.at, marks, PS_ORDER)
        self._beginnings.append(
            RecoveryBeginning(generation.g, place.since, place.node, _text(filled, generation.reason), lengths)
        )

    def _begin(
        self,
        facts: AgentState,
        generation: ClusterSpec,
        place: TaskMember,
        filled: list[_TaskVacancy],
        proposal: SentProposal | None,
        arrived: float,
    ) -> None:
        """Begin the record of a start of this node's tasks."""
        nodes = [member.node for member in generation.members]
        teller = generation.leader if generation.leader in nodes else nodes[0]
        evidence_at = proposal.evidence_at if proposal is not None else arrived
        start = _TaskStart(
            generation=generation,
            began=evidence_at,
            text=_text(filled, generation.reason),
            tells=bool(place.since) or teller == self._node,
            since=place.since,
            tasks=place.tasks,
            asked_rev=place.since,
            asked_at=arrived,
            foreign=bool(place.since) and generation.leader != self._node,
        )
        if filled:
            since = min(filled).since
            start.began = since.at
            start.marks |= {PhaseEnd.DETECTED: since.known_at, PhaseEnd.ASSIGNED: evidence_at}
            if self._gone_at is not None and self._gone_at >= since.at:
                start.marks[PhaseEnd.STOPPED] = self._gone_at
        elif self._gone_at is None:
            start.start, start.began = True, self._command_at
            start.marks[PhaseEnd.MET] = evidence_at
            if facts.registration.joined_at is not None:
                start.marks[PhaseEnd.JOINED] = facts.registration.joined_at
        else:
            start.marks[PhaseEnd.ASSIGNED] = evidence_at
        if proposal is not None:
            start.marks |= {PhaseEnd.DECIDED: proposal.sent_at, PhaseEnd.PUBLISHED: proposal.published_at or arrived}
        self._follow_on(start)
        self._open, self._due_at = start, None

    def _follow_on(self, start: _TaskStart) -> None:
        """Join a start that failed and the one that follows it into one recovery; close one that is over."""
        old = self._open
        if old is None or old.generation.run != start.generation.run:
            return
        if old.over:
            self._close()
            return
        start.continue_from(old, old.began)
        if old.foreign:
            start.foreign, start.asked_rev, start.asked_at = True, old.asked_rev, old.asked_at


def _has(start: _TaskStart, local_rank: int) -> bool:
    return 0 <= local_rank < len(start.tasks)


def _fresh(place: TaskMember, generation: ClusterSpec, old: ClusterSpec | None) -> bool:
    """Return whether a node's tasks start after the generation, or revision, that was known before."""
    return old is None or old.g != generation.g or place.since > old.rev


def _text(filled: Collection[_TaskVacancy], reason: str) -> str:
    """Return what happened, in the order in which it did."""
    return "; ".join(dict.fromkeys([*(vacancy.text for vacancy in sorted(filled)), reason]))
