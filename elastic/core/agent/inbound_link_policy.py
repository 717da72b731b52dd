"""Which nodes may have a link to this agent (pure).

Every reader of the job's prefix knows the secret with which nodes prove that they belong to the job, and can make up
node IDs. So an agent checks each link that others have to it, `CHECK_AFTER_S` after the link came up and every
`CHECK_EVERY_S` from then on. A node belongs to the job if it is registered, or a member of the newest generation or of
the one before. Most agents do not watch the list of members; they read the key of a node that they know nothing of. The
agent closes the link of a node that does not belong to the job.

While the store does not answer, links stay: when it comes back after an outage, no node is registered for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from elastic.core.agent.actions import CloseInbound, LogLine, LookUpNode
from elastic.core.agent.links import recent_members
from elastic.core.agent.state import AgentState, InboundLink

CHECK_AFTER_S = 2.0
"""By then most nodes that join together are members of a generation, so that nothing has to be read."""
CHECK_EVERY_S = 60.0
"""A node that leaves closes its links itself. This is for links under the name of a node that has left."""
UNCONFIRMED_MAX = 64
"""Links of nodes that do not belong to the job as far as this agent knows. An agent is dialled by the leader and by the
next node in line; of more than this, the oldest are closed."""


def dialled(agent: AgentState, nodes: Sequence[str]) -> None:
    """These nodes have a link to this one, the oldest link first."""
    first = InboundLink(agent.now + CHECK_AFTER_S)
    agent.links.inbound = {node: agent.links.inbound.get(node, first) for node in nodes}


def looked_up(agent: AgentState, node: str, registered: bool | None) -> None:
    """The store has said whether a node is registered, or None: it did not answer."""
    agent.links.looking_up = ""
    known = agent.links.inbound.get(node)
    if known is None:
        return
    if registered is None:
        agent.links.inbound = {**agent.links.inbound, node: replace(known, check_at=agent.now + CHECK_AFTER_S)}
    elif registered:
        agent.links.inbound = {**agent.links.inbound, node: InboundLink(agent.now + CHECK_EVERY_S, confirmed=True)}
    else:
        _close(agent, [node], f"the link of {node} is closed: no such node is registered in this job")


def check(agent: AgentState) -> None:
    """Check the links whose time has come, and close the oldest unconfirmed ones of more than `UNCONFIRMED_MAX`."""
    due = [node for node, dialler in agent.links.inbound.items() if agent.now >= dialler.check_at]
    crowded = len(agent.links.inbound) > UNCONFIRMED_MAX
    if not due and not crowded:
        return
    known = recent_members(agent).union(agent.view.members)
    later = InboundLink(agent.now + CHECK_EVERY_S, confirmed=True)
    agent.links.inbound = {**agent.links.inbound, **{node: later for node in due if node in known}}
    if crowded:
        unconfirmed = [
            node for node, dialler in agent.links.inbound.items() if not dialler.confirmed and node not in known
        ]
        if oldest := unconfirmed[:-UNCONFIRMED_MAX]:
            many = f"{len(oldest)} links are closed: more than {UNCONFIRMED_MAX} are of nodes that are not known here"
            _close(agent, oldest, many)
    unknown = next((node for node in due if node in agent.links.inbound and node not in known), "")
    if unknown and not agent.links.looking_up and agent.view.revision > 0:
        agent.links.looking_up = unknown
        agent.act(LookUpNode(unknown))


def next_wake_up(agent: AgentState) -> list[float]:
    """When to check links although nothing happens. While a key is being read, its answer starts the next check."""
    return [] if agent.links.looking_up else [dialler.check_at for dialler in agent.links.inbound.values()]


def _close(agent: AgentState, nodes: Sequence[str], why: str) -> None:
    closing = frozenset(nodes)
    agent.links.inbound = {node: dialler for node, dialler in agent.links.inbound.items() if node not in closing}
    agent.act(CloseInbound(tuple(nodes)))
    agent.act(LogLine(why, detail=True))
