"""The failures that a node has observed, and its proposals: the beginnings of a recovery (pure).

Both timelines begin with these (`launcher.history.recovery_recorder` and `launcher.history.ps_recovery_recorder`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from elastic.core.agent.actions import Action, NoteSilence, SendTransaction, SilenceStep
from elastic.core.agent.events import (
    Event,
    NodeProvenDead,
    PeersUnreachable,
    ProcessProvenDead,
    TransactionAnswered,
    ViewChanged,
    WorkersHung,
)
from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Decision, FormGeneration
from elastic.core.model import Generation, OutcomeKind
from elastic.core.transactions import Transaction

FailureSignal = tuple[str, str]
"""The kind of failure ("lost", "failed"), and its node."""


class NoticedFailure(NamedTuple):
    """When something failed, as far as can be observed, and when this node knew it."""

    at: float
    known_at: float


class FailureSignals:
    """The members of the generation that show a failure, and since when."""

    def __init__(self, node: str) -> None:
        """`node` is this node."""
        self._node = node
        self.found: dict[FailureSignal, NoticedFailure] = {}

    def notice(
        self, facts: AgentState, event: Event, actions: Sequence[Action], arrived: float, *, settled: bool
    ) -> None:
        """Note what an event shows; it arrived at `arrived`. `settled`: the generation has started, so it can fail."""
        for action in actions:
            if isinstance(action, NoteSilence) and action.step is SilenceStep.EVICTED:
                self._add(facts, "lost", action.node, arrived - action.silent_s, arrived)
        match event:
            case ProcessProvenDead() if (event.node, event.create_revision) in facts.memory.gone:
                self._add(facts, "lost", event.node, min(event.closed_at or arrived, arrived), arrived)
            case NodeProvenDead():
                self._add(facts, "lost", event.node, arrived, arrived)
            case WorkersHung():
                self._add(facts, "failed", self._node, arrived, arrived)
            case PeersUnreachable() if event.exits and facts.workers.hung:
                self._add(facts, "failed", self._node, arrived, arrived)
            case ViewChanged():
                self._compare(facts, arrived, settled=settled)

    def failed(self, at: float, known_at: float) -> None:
        """Note that a process of this node failed on its own."""
        self.found.setdefault(("failed", self._node), NoticedFailure(at, known_at))

    def of(self, node: str) -> NoticedFailure | None:
        """Return the first symptom of a node, None if nothing is wrong with it."""
        return min((noticed for (_, one), noticed in self.found.items() if one == node), default=None)

    def keep_lost(self, lost: Collection[str]) -> None:
        """Forget everything except that these nodes failed."""
        self.found = {sign: noticed for sign, noticed in self.found.items() if sign[0] == "lost" and sign[1] in lost}

    def keep(self, nodes: Collection[str]) -> None:
        """Forget all nodes but these: the others have recovered, or left the generation."""
        self.found = {sign: noticed for sign, noticed in self.found.items() if sign[1] in nodes}

    def _compare(self, facts: AgentState, arrived: float, *, settled: bool) -> None:
        view, generation, memory = facts.view, facts.generation, facts.memory
        evicted = (eviction.node for eviction in memory.evictions if not eviction.returned)
        proven = {node for node, _ in memory.gone}.union(memory.dead, evicted)
        for what, node in tuple(self.found):
            if what == "lost" and node in view.members and node not in proven:
                del self.found[what, node]  # It was a false alarm.
        if view.complete:
            for node in memory.absent_since:
                self._add(facts, "lost", node, _silent_since(facts, node, arrived), arrived)
        elif view.leader is None:
            for node in facts.links.targets:  # The last leader.
                self._add(facts, "lost", node, _silent_since(facts, node, arrived), arrived)
        if view.complete and generation is not None and settled:
            for (g, node), stored in view.outcomes.items():
                start = generation.start_of(node)
                if start == (g, stored.value.since) and stored.value.ended is not OutcomeKind.OK:
                    self._add(facts, "failed", node, arrived, arrived)

    def _add(self, facts: AgentState, what: str, node: str, at: float, known_at: float) -> None:
        if facts.generation is not None and facts.generation.index(node) is not None:
            self.found.setdefault((what, node), NoticedFailure(at, known_at))


def _silent_since(facts: AgentState, node: str, arrived: float) -> float:
    """Return when a silent node was heard last; `arrived` for any other node."""
    peer = facts.silence.peers.get(node)
    return min(peer.since, arrived) if peer is not None else arrived


@dataclass(slots=True)
class SentProposal:
    """A proposal of this node: when it became necessary and was sent, and when etcd had it, if that is known."""

    generation: Generation
    transaction: Transaction
    evidence_at: float
    sent_at: float
    published_at: float | None = None


class ProposalTracker:
    """The generations that this node proposed and has not seen yet."""

    def __init__(self) -> None:
        self._wanted_at: float | None = None
        self._sent: Decision | None = None
        self._proposals: list[SentProposal] = []

    def observe(
        self, facts: AgentState, event: Event, actions: Sequence[Action], *, arrived: float, now: float
    ) -> None:
        """Note the core's reaction to an event: that it wants another generation, sends it, and gets an answer."""
        if isinstance(event, TransactionAnswered):
            for proposed in [sent for sent in self._proposals if sent.transaction is event.transaction]:
                if event.succeeded:
                    proposed.published_at = arrived
                elif event.succeeded is False:
                    self._proposals.remove(proposed)
        decision = facts.succession.decision
        if not isinstance(decision, FormGeneration):
            self._wanted_at = None
            return
        # It may have to wait for the answer to another transaction.
        self._wanted_at = None if decision is self._sent else self._wanted_at or arrived
        for action in actions:
            if isinstance(action, SendTransaction) and action.transaction.kind == "form":
                evidence_at, self._wanted_at, self._sent = self._wanted_at or arrived, None, decision
                self._proposals.append(SentProposal(decision.generation, action.transaction, evidence_at, now))

    def of(self, generation: Generation) -> SentProposal | None:
        """Return this node's proposal that became this generation, None if another node made it; only once."""
        same = [proposed for proposed in reversed(self._proposals) if proposed.generation == generation]
        self._proposals = [proposed for proposed in self._proposals if proposed not in same][-1:]
        # One whose answer was lost may have been made twice.
        return next((proposed for proposed in same if proposed.published_at is not None), same[0] if same else None)
