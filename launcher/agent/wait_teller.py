"""What nodes without work wait for: the leader tells them over its links, because it alone remembers since when.

Nodes wait that are outside the newest generation, that are at its gate, or whose workers are done. Each is told once
for each wait: times go as what is left of them, and the node counts them down on its own clock. A wait that ends within
`TELL_AFTER_S` is sent to nobody, and of many in a row the newest counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from elastic.core.agent.state import AgentState
from elastic.core.membership.decision import Reason, WaitDecision
from launcher.job.absent_nodes import ASKED, absent_nodes, words
from launcher.wire.link_messages import WaitTold, wait_told

TELL_AFTER_S = 1.0
"""While a thousand nodes join, or stop their workers, what they wait for changes a thousand times."""


def waiting_nodes(facts: AgentState) -> frozenset[str]:
    """The linked nodes that have no work now."""
    generation, go = facts.generation, facts.view.go
    if generation is None or go is None or go.value.g != generation.g:
        return facts.links.up
    ends = {node for (g, node), stored in facts.view.outcomes.items() if g == generation.g and stored.value.over}
    return facts.links.up - {member.node for member in generation.members if member.node not in ends}


class WaitTeller:
    """The leader's part: looks at its decision after every event, and tells the nodes that wait when it is another."""

    def __init__(
        self, facts: AgentState, tell: Callable[[Collection[str], WaitTold], None], clock: Callable[[], float]
    ) -> None:
        self._facts = facts
        self._tell = tell
        self._clock = clock
        self._seen: tuple[object, object] = (None, None)
        """The decision and the links that were looked at last."""
        self._timer: asyncio.TimerHandle | None = None
        self._told: tuple[Reason, str, tuple[float, ...]] | None = None
        self._whom: frozenset[str] = frozenset()
        """The nodes that got the message, and whose link is up still."""

    def after_event(self) -> None:
        """Look again soon if this node leads and something has changed; cheap if not."""
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
        """Tell nobody any more."""
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
