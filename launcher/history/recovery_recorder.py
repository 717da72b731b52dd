"""What one node notes of each recovery, moment by moment (pure).

It is told of every event and of what the core asked for, after each other, and of what the workers say; it never asks
for anything. Every node notes; the one that made the proposal tells the others' people, or, where it left with that
proposal (it drained), the first node of the new generation: `RecoveryRecorder.take` gives the recovery there, once.

Moments are seconds of the clock that the agent and its workers share. What a worker says of itself is believed within
the time in which it can have happened.

A recovery is told at the first step of the new world. A script that never reports a step is followed to its process
group, or only until its workers run: how far was learned from the start before, or after `PATIENCE_S` without a word.
Where the next change comes before that is known, it is told as far as it is known: its workers did run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from elastic.core.agent.actions import Action, SendTransaction, StartWorkers, StopWorkers
from elastic.core.agent.events import Event, WorkersGone
from elastic.core.agent.state import AgentState
from elastic.core.model import ChangeReason, Generation
from launcher.history.failure_signals import FailureSignals, ProposalTracker, SentProposal
from launcher.history.recovery import PhaseEnd, Recovery, phases

LINGER_S: Final = 0.05
"""After its last moment: the other workers of this node may say something of the same moment."""
PATIENCE_S: Final = 10.0
"""So long a further moment is waited for where nobody knows whether it will come."""
START_PATIENCE_S: Final = 60.0
"""The same in a first start, whose first step may be slow to come, and until workers say their first word."""

ORDER: Final = {mark: index for index, mark in enumerate(PhaseEnd)}


@dataclass
class _OngoingRecovery:
    """A recovery on its way. `workers` are this node's in it; `formed` those in the process group, by local rank."""

    generation: Generation
    began: float
    start: bool
    planned: bool
    before: int
    text: str
    tells: bool
    member: bool
    marks: dict[PhaseEnd, float] = field(default_factory=dict)
    last: tuple[int, float] | None = None
    workers: int = 0
    formed: dict[int, float] = field(default_factory=dict)
    restored_step: int | None = None

    def mark(self, mark: PhaseEnd, at: float) -> None:
        """Note a moment, the first time that it comes."""
        self.marks.setdefault(mark, at)

    @property
    def reached(self) -> PhaseEnd | None:
        """How far the workers are known to have come."""
        if PhaseEnd.STEPPED in self.marks:
            return PhaseEnd.STEPPED
        if self.workers and len(self.formed) == self.workers:
            return PhaseEnd.GROUPED
        return PhaseEnd.SPAWNED if PhaseEnd.SPAWNED in self.marks else None

    @property
    def between(self) -> bool:
        """Whether it is counted from the last step of the old world."""
        return self.planned and self.last is not None

    @property
    def origin(self) -> float:
        """The moment from which it is counted."""
        return self.last[1] if self.planned and self.last is not None else self.began


class RecoveryRecorder:
    """The notes of one node. Nothing here raises on any order of events."""

    def __init__(self, node: str, command_at: float) -> None:
        """`command_at`: when this agent was started."""
        self._node = node
        self._command_at = command_at
        self._seen = (0, 0)
        self._signs = FailureSignals(node)
        self._proposals = ProposalTracker()
        self._open: _OngoingRecovery | None = None
        self._last: tuple[int, float] | None = None
        self._gone_at: float | None = None
        self._level: PhaseEnd | None = None
        self._groups = False
        self._due_at: float | None = None
        self._over: list[Recovery] = []
        self._own: list[Recovery] = []

    # --- what the agent does --------------------------------------------------------------------------------------

    def observe(
        self, facts: AgentState, event: Event, actions: Sequence[Action], *, arrived: float, now: float
    ) -> None:
        """Note what an event brought. It came at `arrived`; the core has just answered with `actions`, at `now`."""
        self._signs.notice(facts, event, arrived, settled=self._open is None)
        if isinstance(event, WorkersGone):
            self._gone(event.g, arrived)
        self._proposals.observe(facts, event, actions, arrived=arrived, now=now)
        self._on_generation(facts, arrived)
        record = self._open
        if record is None:
            return
        for action in actions:
            match action:
                case SendTransaction() if action.transaction.kind == "go":
                    record.mark(PhaseEnd.OPENED, now)
                case StopWorkers() if action.g < record.generation.g:
                    record.mark(PhaseEnd.TOLD, now)
                case StartWorkers() if action.generation.g == record.generation.g:
                    record.mark(PhaseEnd.HEARD_GO, now)
                    record.last, self._last = self._last or record.last, None
                    record.workers = facts.me.member.slots
        go = facts.view.go
        if not record.member and go is not None and go.value.g >= record.generation.g:
            self._open = None  # Who runs in it sees the rest.

    def _gone(self, g: int, at: float) -> None:
        self._gone_at = at
        if self._open is not None and g < self._open.generation.g:
            self._open.mark(PhaseEnd.STOPPED, at)

    # --- what the workers do --------------------------------------------------------------------------------------

    def spawned(self, g: int, at: float) -> None:
        """This node's workers of `g` run."""
        record = self._open
        if record is not None and record.generation.g == g:
            record.mark(PhaseEnd.SPAWNED, at)
            self._plan(at)

    def failed(self, g: int, at: float, now: float) -> None:
        """A worker of this node ended by itself, and not well; `at` is when it did, before anybody knew."""
        if self._open is None or self._open.generation.g == g:
            self._signs.failed(at, now)

    def grouped(self, g: int, local_rank: int, at: float, now: float) -> None:
        """A worker is in the process group since `at`, as it says at `now`."""
        record = self._of(g)
        if record is not None and PhaseEnd.STEPPED not in record.marks:
            self._groups = True
            record.formed.setdefault(local_rank, _believed(record, at, now))
            record.marks[PhaseEnd.GROUPED] = max(record.formed.values())
            self._plan(now)

    def restored(self, g: int, step: int, at: float, now: float) -> None:
        """A worker has its state, of this step (-1: from the beginning)."""
        record = self._of(g)
        if record is not None:
            record.restored_step = step if record.restored_step is None else max(step, record.restored_step)
            record.marks[PhaseEnd.RESTORED] = max(_believed(record, at, now), record.marks.get(PhaseEnd.RESTORED, 0.0))
            self._plan(now)

    def stepped(self, g: int, step: int | None, at: float, now: float) -> None:
        """A worker has made a step."""
        self._level = PhaseEnd.STEPPED
        at = min(at, now) if at > 0 else now
        if step is not None and (self._last is None or at >= self._last[1]):
            self._last = (step, at)
        record = self._of(g)
        if record is not None:
            at = _believed(record, at, now)
            record.marks[PhaseEnd.STEPPED] = min(at, record.marks.get(PhaseEnd.STEPPED, at))
            self._plan(now)

    def _of(self, g: int) -> _OngoingRecovery | None:
        record = self._open
        return record if record is not None and record.generation.g == g and PhaseEnd.HEARD_GO in record.marks else None

    # --- what becomes of it ---------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float | None:
        """When `take` is to be called, None while nothing can be told."""
        return self._due_at if not self._over else 0.0

    def take(self, now: float) -> Recovery | None:
        """The recovery, if it is over and this node is the one to tell it. Its notes are closed."""
        if self._over:
            return self._over.pop(0)
        record = self._open
        if record is None or record.reached is None or self._due_at is None or now < self._due_at:
            return None
        if self._level is None or ORDER[record.reached] > ORDER[self._level]:
            self._level = record.reached
        return self.end()

    def end(self) -> Recovery | None:
        """The same, whether it is over or not: this agent ends."""
        record, self._open, self._due_at = self._open, None, None
        if record is None or record.reached is None:
            return None
        self._own.append(recovery := self._recovery(record))
        return recovery if record.tells else None

    @property
    def own(self) -> list[Recovery]:
        """The recoveries that are over on this node, whoever tells of them; they are given once."""
        recoveries, self._own = self._own, []
        return recoveries

    def _plan(self, now: float) -> None:
        """Work out when this recovery can be told."""
        record = self._open
        reached = record.reached if record is not None else None
        if record is None or reached is None:
            self._due_at = None
        elif reached is PhaseEnd.STEPPED or reached is self._level:
            self._due_at = now + LINGER_S if self._due_at is None else min(self._due_at, now + LINGER_S)
        elif self._comes_further(record, reached):
            self._due_at = None
        else:
            early = record.start or reached is PhaseEnd.SPAWNED
            self._due_at = now + (START_PATIENCE_S if early else PATIENCE_S)

    def _comes_further(self, record: _OngoingRecovery, reached: PhaseEnd) -> bool:
        """Whether this one is known to come further, as a start before it did, or because it keeps its state."""
        known = PhaseEnd.GROUPED if self._groups and self._level is None else self._level
        if reached is not PhaseEnd.STEPPED and PhaseEnd.RESTORED in record.marks:
            return True  # A script that keeps its state commits its steps.
        return known is not None and ORDER[reached] < ORDER[known]

    def _recovery(self, record: _OngoingRecovery) -> Recovery:
        return Recovery(
            why=record.generation.why,
            text=record.text,
            before=record.before,
            g=record.generation.g,
            began=record.origin,
            phases=phases(record.origin, record.marks),
            between_steps=record.between,
            start=record.start,
            last_step=record.last[0] if record.last is not None else None,
            restored_step=record.restored_step,
            last_at=record.last[1] if record.last is not None else None,
        )

    # --- the generation that answers the signs -----------------------------------------------------------------------

    def _on_generation(self, facts: AgentState, arrived: float) -> None:
        """A new generation answers the signs so far; it begins a recovery, or goes on with one that came to nothing."""
        generation = facts.generation
        if generation is None or (generation.run, generation.g) == self._seen:
            return
        known, self._seen = self._seen, (generation.run, generation.g)
        old = self._open
        if old is not None and old.reached is not None and (old.start or not self._comes_further(old, old.reached)):
            recovery = self.end()
            self._over += [recovery] if recovery is not None else []
        proposal = self._proposals.of(generation)
        record = self._record(facts, generation, arrived, proposal)
        if record is not None:
            record.mark(PhaseEnd.PUBLISHED, (proposal.published_at if proposal is not None else None) or arrived)
            if facts.workers.gone and self._gone_at is not None:
                record.mark(PhaseEnd.STOPPED, self._gone_at)
            if self._open is not None and known[0] == generation.run:
                self._follow_on(record, self._open)
        self._open, self._due_at = record, None
        self._signs.keep([place.node for place in generation.members])

    def _record(
        self,
        facts: AgentState,
        generation: Generation,
        arrived: float,
        proposal: SentProposal | None,
    ) -> _OngoingRecovery | None:
        """Begin the notes about a generation; None where there is nothing to tell of it."""
        if not generation.members or not generation.one_world or facts.registration.joined_at is None:
            return None
        nodes = [place.node for place in generation.members]
        teller = generation.leader if generation.leader in nodes else nodes[0]
        evidence_at = proposal.evidence_at if proposal is not None else arrived
        signs = self._signs.found.items()
        wrong = [noticed.at for (what, node), noticed in signs if what == "failed" or node not in nodes]
        fresh = generation.why is ChangeReason.FIRST or (
            self._gone_at is None and generation.why is ChangeReason.REFORMED
        )
        record = _OngoingRecovery(
            generation=generation,
            began=self._command_at if fresh else min([evidence_at, *wrong]),
            start=generation.why is ChangeReason.FIRST,
            planned=generation.planned,
            before=0 if generation.why is ChangeReason.FIRST else generation.g - 1,
            text=generation.reason,
            tells=teller == self._node,
            member=self._node in nodes,
        )
        if fresh:
            record.mark(PhaseEnd.JOINED, facts.registration.joined_at)
            record.mark(PhaseEnd.MET, evidence_at)
        if proposal is not None:
            if not fresh:
                record.mark(PhaseEnd.NOTICED, evidence_at)
            record.mark(PhaseEnd.DECIDED, proposal.sent_at)
        return record

    def _follow_on(self, record: _OngoingRecovery, old: _OngoingRecovery) -> None:
        """What had begun came to nothing: both are one recovery, with the later generation's moments."""
        begins = record.began
        record.began = min(begins, self._last[1] if old.planned and self._last is not None else old.began)
        record.start, record.before, record.planned = old.start, old.before, False
        record.text = f"{old.text}; {record.text}"
        record.last = old.last
        if old.start:
            record.marks |= {mark: old.marks[mark] for mark in (PhaseEnd.JOINED, PhaseEnd.MET) if mark in old.marks}
        elif begins > record.began:
            record.mark(PhaseEnd.EARLIER, begins)


def _believed(record: _OngoingRecovery, at: float, now: float) -> float:
    """A worker's moment: between the go and now, or now if it says none."""
    return min(max(at, record.marks.get(PhaseEnd.HEARD_GO, at)), now) if at > 0 else now
