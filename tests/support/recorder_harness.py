"""An agent on its bench whose timeline notes what happens; the core and the store take a little time."""

from __future__ import annotations

from typing import Generic, TypeVar

from elastic.core.agent.actions import Action, SendTransaction
from elastic.core.agent.events import Event
from elastic.core.agent.state import AgentState
from launcher.history.ps_recovery_recorder import PsRecoveryRecorder
from launcher.history.recovery import Recovery
from launcher.history.recovery_recorder import RecoveryRecorder
from tests.support.agent_harness import Bench

THINKS_S = 0.001
"""What the core takes to answer."""
STORE_S = 0.002
"""What the store takes to answer."""

T = TypeVar("T", RecoveryRecorder, PsRecoveryRecorder)


class NotedAgent(Generic[T]):
    """`watch` is for the bench, which a subclass makes."""

    def __init__(self, timeline: T) -> None:
        self.timeline: T = timeline
        self.bench: Bench | None = None

    def watch(self, facts: AgentState, event: Event, actions: list[Action]) -> None:
        self.timeline.observe(facts, event, actions, arrived=facts.now, now=facts.now + THINKS_S)
        if self.bench is not None and any(isinstance(action, SendTransaction) for action in actions):
            self.bench.now += THINKS_S + STORE_S

    def over(self, at: float, *, tells: bool) -> Recovery:
        """The recovery that is over by then; whether this node is to tell people of it."""
        found = self.timeline.take(at)
        assert found is not None
        assert found.tells is tells
        assert self.timeline.due_at is None, "it is given once"
        return found

    def told(self, at: float) -> Recovery:
        """The recovery of which this node tells."""
        return self.over(at, tells=True)

    @property
    def agent(self) -> Bench:
        assert self.bench is not None
        return self.bench
