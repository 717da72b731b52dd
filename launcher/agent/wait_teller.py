"""Sends nodes without work what they wait for, over the leader's links: only the leader knows since when.

A node waits if it is outside the newest generation or at its restart barrier, or if its workers are done. The leader
sends one message for each wait. Times are sent as remaining seconds, and the node counts them down on its own clock. A
wait that ends within `TELL_AFTER_S` is not sent, and of several in a row only the newest.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Reason, WaitDecision
from launcher.job.absent_nodes import ASKED, absent_nodes, words
from launcher.wire.link_messages import WaitTold, wait_told

TELL_AFTER_S = 1.0
"""While a thousand nodes join or stop their workers, the wait changes a thousand times."""


def waiting_nodes(facts: AgentState) -> frozenset[str]:
    """Return the linked nodes that have no work now."""
    generation, go = facts.generation, facts.view.go
    if generation is None or go is None or go.value.g != generation.g:
        return facts.links.up
    ends = {node for (g, node), stored in facts.view.outcomes.items() if g == generation.g and stored.value.over}
    return facts.links.up - {member.node for member in generation.members if member.node not in ends}


class WaitTeller:
    """Examines the leader's decision after every event, and notifies the waiting nodes of a change."""

    def __init__(
        self, facts: AgentState, tell: Callable[[Collection[str], WaitTold], None], clock: Callable[[], float]
    ) -> None:
        self._facts = facts
        self._tell = tell
        self._clock = clock
        self._seen: tuple[object, object] = (None, None)
        """The decision and the links at the last check."""
        self._timer: asyncio.TimerHandle | None = None
        self._told: tuple[Reason, str, tuple[float, ...]] | None = None
        self._whom: frozenset[str] = frozenset()
        """The nodes that got the message and whose link is still up."""

    def after_event(self) -> None:
        """Schedule a check if this node is the leader and something has changed; cheap otherwise."""
        decision, up = self._facts.succession.decision, self._facts.links.up
        if decision is None:
            self._told = None
        if up is not self._seen[1]:
            self._whom &= up
        if self._timer is None and (decision is not self._seen[0] or up is not self._seen[1]):
            self._seen = (decision, up)
            if isinstance(decision, WaitDecision):
                self._timer = asyncio.get_running_loop().call_later(TELL_AFTER_S, self._look)

    def close(self) -> None:
        """Send no more messages."""
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        self._timer = None
        decision = self._facts.succession.decision
        self._seen = (decision, self._facts.links.up)
        if not isinstance(decision, WaitDecision):
            return
        absent = words(absent_nodes(self._facts.view)) if decision.code in ASKED else ""
        wait = (decision.code, (decision.pattern or decision.reason) + absent, decision.ends)
        nodes = waiting_nodes(self._facts)
        whom = nodes - self._whom if wait == self._told else nodes
        self._told, self._whom = wait, nodes
        if whom:
            now = self._clock()
            self._tell(whom, wait_told(decision.code.name, wait[1], [end - now for end in decision.ends]))
