"""The behaviour of one agent: an event in, actions out, by the rules of `elastic.core.agent.table` (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from elastic.core.agent.actions import Action
from elastic.core.agent.events import HANDLERS, Event, LeaseRefreshed
from elastic.core.agent.state import AgentState, Phase, Relisting
from elastic.core.agent.table import DUTIES, EXTEND_DEADLINE, REPORTS, ROWS, TIMES, Duty

STEPS_MAX = 12
"""An event that moves an agent through more rows than this shows a loop in the table."""


class AgentCore:
    """The whole behaviour of an agent: `handle(event, now)` returns the actions, in order.

    `wake_at` is the time at which the core expects a `Tick`. `taken` lists the rows that the last event took.
    """

    def __init__(self, facts: AgentState) -> None:
        self.facts = facts
        self.taken: list[str] = []
        self._plan_wake_up()  # There may never be an event.

    @property
    def phase(self) -> Phase:
        """The current phase of the agent."""
        return self.facts.phase

    @property
    def wake_at(self) -> float | None:
        """When to call again with `Tick`; None if the agent waits for no time."""
        return self.facts.wake_at

    def handle(self, event: Event, now: float) -> list[Action]:
        """Take in one event and return the actions. `now`: this node's monotonic clock in seconds."""
        agent = self.facts
        agent.now = max(now, agent.now)
        agent.actions = []
        self.taken = []
        if agent.phase is Phase.ENDED:
            return []
        quiet = isinstance(event, LeaseRefreshed) and _only_extends_deadline(agent)
        for handler in HANDLERS[type(event)]:
            handler(agent, event)
        if quiet and agent.store.relist is Relisting.NONE:  # Most events of a job that trains are of this kind.
            self._perform((EXTEND_DEADLINE,))
        else:
            self._perform(REPORTS)
            self._walk()
            if self.phase is not Phase.ENDED:
                self._perform(DUTIES)
            if agent.registration.refusal:
                self._walk()
        self._plan_wake_up()
        return agent.actions

    def _perform(self, duties: Iterable[Duty]) -> None:
        agent = self.facts
        for duty in duties:
            if duty.due(agent):
                duty.effect(agent)

    def _walk(self) -> None:
        """Take rows until none holds."""
        agent = self.facts
        for _ in range(STEPS_MAX):
            for row in ROWS[agent.phase]:
                if row.guard(agent):
                    break
            else:
                return
            row.effect(agent)
            agent.phase = row.to
            agent.entered_at = agent.now
            self.taken.append(row.name)
        raise AssertionError(f"the table loops: {self.taken}")

    def _plan_wake_up(self) -> None:
        """Set `wake_at` to the earliest time at which a rule may become true without an event."""
        earliest = self.facts.first_of([at(self.facts) for at in TIMES[self.phase]])
        self.facts.wake_at = earliest if earliest < float("inf") else None


def _only_extends_deadline(agent: AgentState) -> bool:
    """Return whether a refresh of the lease changes only this node's run deadline.

    No time that this agent waits for has come, it does not wait for a valid lease to start, and no node is silent.
    """
    registered = agent.registration.registered
    settled = registered and agent.phase in (Phase.SPARE, Phase.RUNNING) and not agent.silence.peers
    return settled and (agent.wake_at is None or agent.now < agent.wake_at)
