"""What a node has seen go wrong, and what it has proposed: the beginnings of a recovery (pure).

Both timelines begin with these (`elastic.timeline` and `elastic.seattimeline`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from elastic.agentevents import Action, Answered, Event, Hung, ProvenDead, ProvenGone, Send, ViewChanged
from elastic.agentfacts import Facts
from elastic.decisions import Form
from elastic.model import Ended, Generation
from elastic.proposals import Transaction

Sign = tuple[str, str]
"""What is wrong ("lost", "failed"), and with which node."""


class Noticed(NamedTuple):
    """When something went wrong, as far as can be seen, and when this node knew it."""

    at: float
    known_at: float


class Signs:
    """Since when something is wrong with which member of the generation."""

    def __init__(self, node: str) -> None:
        """`node` is this one."""
        self._node = node
        self.found: dict[Sign, Noticed] = {}

    def notice(self, facts: Facts, event: Event, arrived: float, *, settled: bool) -> None:
        """Note what an event shows; it came at `arrived`. `settled`: the generation has come up, so it can fail."""
        match event:
            case ProvenGone() if (event.node, event.create_revision) in facts.memory.gone:
                self._add(facts, "lost", event.node, min(event.closed_at or arrived, arrived), arrived)
            case ProvenDead():
                self._add(facts, "lost", event.node, arrived, arrived)
            case Hung():
                self._add(facts, "failed", self._node, arrived, arrived)
            case ViewChanged():
                self._compare(facts, arrived, settled=settled)

    def failed(self, at: float, known_at: float) -> None:
        """A process of this node ended by itself, and not well."""
        self.found.setdefault(("failed", self._node), Noticed(at, known_at))

    def of(self, node: str) -> Noticed | None:
        """The first sign of a node, None if nothing is wrong with it."""
        return min((noticed for (_, one), noticed in self.found.items() if one == node), default=None)

    def keep(self, lost: Collection[str]) -> None:
        """Forget everything but that these nodes were lost."""
        self.found = {sign: noticed for sign, noticed in self.found.items() if sign[0] == "lost" and sign[1] in lost}

    def forget(self, node: str) -> None:
        """A node is well again, or nobody waits for it."""
        self.found = {sign: noticed for sign, noticed in self.found.items() if sign[1] != node}

    def _compare(self, facts: Facts, arrived: float, *, settled: bool) -> None:
        view, generation, memory = facts.view, facts.generation, facts.memory
        proven = {node for node, _ in memory.gone} | memory.dead
        for what, node in tuple(self.found):
            if what == "lost" and node in view.members and node not in proven:
                del self.found[what, node]  # It was a false alarm.
        if view.complete:
            for node in memory.absent_since:
                self._add(facts, "lost", node, arrived, arrived)
        elif view.follows is not None and view.follows not in view.members:
            self._add(facts, "lost", view.follows, arrived, arrived)
        if view.complete and generation is not None and settled:
            for (g, node), stored in view.outcomes.items():
                if g == generation.g and stored.value.ended is not Ended.OK:
                    self._add(facts, "failed", node, arrived, arrived)

    def _add(self, facts: Facts, what: str, node: str, at: float, known_at: float) -> None:
        if facts.generation is not None and facts.generation.index(node) is not None:
            self.found.setdefault((what, node), Noticed(at, known_at))


class Proposed(NamedTuple):
    """This node's proposal: the transaction, when it was called for, and when it was sent."""

    transaction: Transaction
    evidence_at: float
    sent_at: float


class Proposing:
    """The newest generation that this node proposed, until it is seen."""

    def __init__(self, node: str) -> None:
        """`node` is this one."""
        self._node = node
        self._wanted_at: float | None = None
        self._proposal: Proposed | None = None
        self._published_at: float | None = None

    def observe(self, facts: Facts, event: Event, actions: Sequence[Action], *, arrived: float, now: float) -> None:
        """Note what the core makes of an event: that it wants another generation, sends it, and is answered."""
        if not isinstance(facts.decision, Form):
            self._wanted_at = None
        elif self._wanted_at is None:
            self._wanted_at = arrived  # It may have to wait for the answer to another transaction.
        for action in actions:
            if isinstance(action, Send) and action.transaction.kind == "form":
                self._proposal = Proposed(action.transaction, self._wanted_at or arrived, now)
        proposal = self._proposal
        if isinstance(event, Answered) and proposal is not None and event.transaction is proposal.transaction:
            if event.succeeded:
                self._published_at = arrived
            elif event.succeeded is False:
                self._proposal = None

    def of(self, generation: Generation) -> Proposed | None:
        """This node's proposal that became this generation, None if another node made it."""
        return self._proposal if proposer(generation) == self._node else None

    def published_at(self, arrived: float) -> float:
        """When the store had the generation that is seen since `arrived`. What was noted of it is forgotten."""
        at, self._proposal, self._published_at = self._published_at, None, None
        return at or arrived


def proposer(generation: Generation) -> str:
    """The node that proposed a generation: its tag begins with it."""
    return generation.tag.partition("/")[0]
