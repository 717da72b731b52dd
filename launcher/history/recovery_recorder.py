"""Records each recovery on one node (pure).

It receives every event and the actions of the core, one after the other, and the messages of the workers; it never
requests anything. Every node records; the one that made the proposal reports the recovery to users, or, if it left with
that proposal (it drained), the first node of the new generation: there the recovery that `RecoveryRecorder.take`
returns has `tells`.

Moments are seconds of the clock that the agent and its workers share. A time that a worker reports is accepted within
the interval in which it can have happened.

A recovery is reported at the first step of the new world. A script that never reports a step is followed to its process
group, or only until its workers run: how far is known from the previous start, or decided after `PATIENCE_S` without a
message. If the next change comes before that is known, it is reported as far as it is known: its workers did run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from elastic.core.agent.actions import Action, StartWorkers
from elastic.core.agent.events import Event, WorkersGone
from elastic.core.agent.state import AgentState
from elastic.core.model import ChangeReason, Generation
from launcher.history.failure_signals import SentProposal
from launcher.history.recorder_base import PATIENCE_S, START_PATIENCE_S, OngoingRecovery, RecorderBase
from launcher.history.recovery import PhaseEnd, Recovery, phases

LINGER_S: Final = 0.05
"""After its last moment: the other workers of this node may report something of the same moment."""

ORDER: Final = {mark: index for index, mark in enumerate(PhaseEnd)}


@dataclass(kw_only=True)
class _WorldRecovery(OngoingRecovery):
    """The recovery of a world. `last` is the last step before it; `workers` are this node's in it."""

    planned: bool
    before: int
    member: bool
    last: tuple[int, float] | None = None
    workers: int = 0

    @property
    def reached(self) -> PhaseEnd | None:
        """The last phase that the workers are known to have reached."""
        if PhaseEnd.STEPPED in self.marks:
            return PhaseEnd.STEPPED
        if self.workers and len(self.formed) == self.workers:
            return PhaseEnd.GROUPED
        return PhaseEnd.SPAWNED if PhaseEnd.SPAWNED in self.marks else None


class RecoveryRecorder(RecorderBase[_WorldRecovery]):
    """The records of one node of a collective job."""

    def __init__(self, node: str, command_at: float) -> None:
        """`command_at`: when this agent was started."""
        super().__init__(node, command_at)
        self._seen = (0, 0)
        self._last: tuple[int, float] | None = None
        self._level: PhaseEnd | None = None
        self._groups = False

    # --- the agent ------------------------------------------------------------------------------------------------

    def observe(
        self, facts: AgentState, event: Event, actions: Sequence[Action], *, arrived: float, now: float
    ) -> None:
        """Note what an event caused. It arrived at `arrived`; the core has just answered with `actions`, at `now`."""
        self._signs.notice(facts, event, actions, arrived, settled=self._open is None)
        if isinstance(event, WorkersGone):
            self._gone_at = arrived
            if self._open is not None and event.g < self._open.generation.g:
                self._open.marks.setdefault(PhaseEnd.STOPPED, arrived)
        self._proposals.observe(facts, event, actions, arrived=arrived, now=now)
        self._on_generation(facts, arrived)
        record = self._open
        if record is None:
            return
        for action in actions:
            match action:
                case StartWorkers() if action.generation.g == record.generation.g:
                    record.marks.setdefault(PhaseEnd.HEARD_GO, now)
                    record.last, self._last = self._last or record.last, None
                    record.workers = facts.me.member.slots
        go = facts.view.go
        if not record.member and go is not None and go.value.g >= record.generation.g:
            self._open = None  # The nodes that run in it observe the later phases.

    # --- the workers ----------------------------------------------------------------------------------------------

    def failed(self, g: int, at: float, now: float) -> None:
        """Note that a worker of this node failed on its own; `at` is when it did, before any node knew."""
        if self._open is None or self._open.generation.g == g:
            self._signs.failed(at, now)

    def grouped(self, g: int, local_rank: int, at: float, now: float) -> None:
        """Note that a worker is in the process group since `at`, as it reports at `now`."""
        record = self._of(g)
        if record is not None and PhaseEnd.STEPPED not in record.marks:
            self._groups = True
            record.formed.setdefault(local_rank, record.believed(at, now))
            record.marks[PhaseEnd.GROUPED] = max(record.formed.values())
            self._plan(now)

    def working(self, g: int, local_rank: int, at: float, now: float, step: int | None = None) -> None:
        """Note that a worker has made a step; `step` is None if it did not report which."""
        self._level = PhaseEnd.STEPPED
        at = min(at, now) if at > 0 else now
        if step is not None and (self._last is None or at >= self._last[1]):
            self._last = (step, at)
        record = self._of(g)
        if record is not None:
            at = record.believed(at, now)
            record.marks[PhaseEnd.STEPPED] = min(at, record.marks.get(PhaseEnd.STEPPED, at))
            self._plan(now)

    # --- the recovery ---------------------------------------------------------------------------------------------

    def _learn(self) -> None:
        """Assume that the script will reach the same phase again."""
        reached = self._open.reached if self._open is not None else None
        if reached is not None and (self._level is None or ORDER[reached] > ORDER[self._level]):
            self._level = reached

    def _plan(self, now: float) -> None:
        """Determine when this recovery can be reported."""
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

    def _comes_further(self, record: _WorldRecovery, reached: PhaseEnd) -> bool:
        """Whether this one is known to come further, as a start before it did, or because it keeps its state."""
        known = PhaseEnd.GROUPED if self._groups and self._level is None else self._level
        if reached is not PhaseEnd.STEPPED and PhaseEnd.RESTORED in record.marks:
            return True  # A script that keeps its state commits its steps.
        return known is not None and ORDER[reached] < ORDER[known]

    def _recovery(self, record: _WorldRecovery) -> Recovery | None:
        if record.reached is None:
            return None
        last_step, last_at = record.last or (None, None)
        origin = last_at if record.planned and last_at is not None else record.began
        return Recovery(
            why=record.generation.why,
            text=record.text,
            before=record.before,
            g=record.generation.g,
            began=origin,
            phases=phases(origin, record.marks),
            between_steps=record.planned and last_at is not None,
            start=record.start,
            tells=record.tells,
            last_step=last_step,
            restored_step=record.restored_step,
            last_at=last_at,
        )

    # --- the generation that answers the symptoms -------------------------------------------------------------------

    def _on_generation(self, facts: AgentState, arrived: float) -> None:
        """A new generation answers the symptoms so far; it begins a recovery, or continues one that failed."""
        generation = facts.generation
        if generation is None or (generation.run, generation.g) == self._seen:
            return
        known, self._seen = self._seen, (generation.run, generation.g)
        old = self._open
        if old is not None and old.reached is not None and (old.start or not self._comes_further(old, old.reached)):
            self._close()
        proposal = self._proposals.of(generation)
        record = self._record(facts, generation, arrived, proposal)
        if record is not None and self._open is not None and known[0] == generation.run:
            self._follow_on(record, self._open)
        self._open, self._due_at = record, None
        self._signs.keep_lost([place.node for place in generation.members])

    def _record(
        self,
        facts: AgentState,
        generation: Generation,
        arrived: float,
        proposal: SentProposal | None,
    ) -> _WorldRecovery | None:
        """Begin the record of a generation; None if there is nothing to report about it."""
        if not generation.members or not generation.one_world or facts.registration.joined_at is None:
            return None
        nodes = [place.node for place in generation.members]
        teller = generation.leader if generation.leader in nodes else nodes[0]
        evidence_at = proposal.evidence_at if proposal is not None else arrived
        wrong = [
            noticed.at for (what, node), noticed in self._signs.found.items() if what == "failed" or node not in nodes
        ]
        fresh = generation.why is ChangeReason.FIRST or (
            self._gone_at is None and generation.why is ChangeReason.REFORMED
        )
        record = _WorldRecovery(
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
            record.marks |= {PhaseEnd.JOINED: facts.registration.joined_at, PhaseEnd.MET: evidence_at}
        elif proposal is not None:
            record.marks[PhaseEnd.DETECTED] = evidence_at
        if proposal is not None:
            record.marks[PhaseEnd.DECIDED] = proposal.sent_at
        record.marks[PhaseEnd.PUBLISHED] = (proposal.published_at if proposal is not None else None) or arrived
        if facts.workers.gone and self._gone_at is not None:
            record.marks[PhaseEnd.STOPPED] = self._gone_at
        return record

    def _follow_on(self, record: _WorldRecovery, old: _WorldRecovery) -> None:
        """Join a recovery that failed and its successor into one, with the later generation's moments."""
        record.continue_from(old, self._last[1] if old.planned and self._last is not None else old.began)
        record.before, record.planned, record.last = old.before, False, old.last
