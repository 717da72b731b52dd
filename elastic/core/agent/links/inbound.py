"""Which nodes may have a link to this agent (pure).

Every reader of the job's prefix knows the secret with which nodes prove that they belong to the job, and can invent
node IDs. An agent therefore checks each link that another node has to it, `CHECK_AFTER_S` after the link came up and
every `CHECK_EVERY_S` from then on. A node belongs to the job if it is registered, or a member of the newest generation
or of the one before. Most agents do not watch the list of members; they read the key of a node that they do not know.
The agent closes the link of a node that does not belong to the job.

While the store does not answer, links stay open: when it is back after an outage, no node is registered for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import CloseInbound, LogLine, LookUpNode
from elastic.core.agent.links.watch import recent_members
from elastic.core.agent.state import AgentState, InboundLink

CHECK_AFTER_S = 2.0
"""By then most nodes that join together are members of a generation, so that the agent need not read their keys."""
CHECK_EVERY_S = 60.0
"""A node that leaves closes its own links. This check finds links under the name of a node that has left."""
UNCONFIRMED_MAX = 64
"""Links of nodes that, as far as this agent knows, do not belong to the job. Only the leader dials an agent, and about
thirty nodes dial the leader; beyond this number, the agent closes the oldest links."""


class InboundLinksChanged(Struct, frozen=True):
    """The nodes that claim to have a link to this one, the oldest link first."""

    nodes: tuple[str, ...]


class NodeLookedUp(Struct, frozen=True):
    """The answer to `LookUpNode`: whether that node is registered; None if etcd did not answer."""

    node: str
    registered: bool | None


def on_inbound_changed(agent: AgentState, event: InboundLinksChanged) -> None:
    """Schedule the check of new links."""
    first = InboundLink(agent.now + CHECK_AFTER_S)
    agent.links.inbound = {node: agent.links.inbound.get(node, first) for node in event.nodes}


def on_looked_up(agent: AgentState, event: NodeLookedUp) -> None:
    """Close the link of a node that does not belong to the job; check again later if etcd did not answer.

    The node may have become known in the meantime: an answer can be as late as the longest outage.
    """
    agent.links.looking_up = ""
    known = agent.links.inbound.get(event.node)
    if known is None:
        return
    if event.registered is None:
        _update(agent, event.node, replace(known, check_at=agent.now + CHECK_AFTER_S))
    elif event.registered or event.node in _known_nodes(agent):
        _update(agent, event.node, InboundLink(agent.now + CHECK_EVERY_S, confirmed=True))
    else:
        _close(agent, [event.node], f"the link of {event.node} is closed: no such node is registered in this job")


def _update(agent: AgentState, node: str, link: InboundLink) -> None:
    agent.links.inbound = {**agent.links.inbound, node: link}


def is_due(agent: AgentState) -> bool:
    """A link must be checked, or there are too many; a new leader waits until it sees the members."""
    if agent.leads and not agent.view.complete:
        return False
    return len(agent.links.inbound) > UNCONFIRMED_MAX or bool(_due(agent))


def _due(agent: AgentState) -> list[str]:
    return [node for node, link in agent.links.inbound.items() if agent.now >= link.check_at]


def _known_nodes(agent: AgentState) -> frozenset[str]:
    """The nodes that this agent knows to belong to the job."""
    leader = (agent.view.leader.value.node,) if agent.view.leader is not None else ()
    return recent_members(agent).union(agent.view.members, leader)


def check(agent: AgentState) -> None:
    """Check the links whose time has come, and close the oldest unconfirmed ones beyond `UNCONFIRMED_MAX`."""
    due, known = _due(agent), _known_nodes(agent)
    later = InboundLink(agent.now + CHECK_EVERY_S, confirmed=True)
    agent.links.inbound = {**agent.links.inbound, **{node: later for node in due if node in known}}
    if len(agent.links.inbound) > UNCONFIRMED_MAX:
        inbound = agent.links.inbound.items()
        unconfirmed = [node for node, link in inbound if not link.confirmed and node not in known]
        if oldest := unconfirmed[:-UNCONFIRMED_MAX]:
            many = f"{len(oldest)} links are closed: more than {UNCONFIRMED_MAX} nodes are unknown to this agent"
            _close(agent, oldest, many)
    unknown = next((node for node in due if node in agent.links.inbound and node not in known), "")
    if unknown and not agent.links.looking_up and agent.view.revision > 0:
        agent.links.looking_up = unknown
        agent.act(LookUpNode(unknown))


def check_at(agent: AgentState) -> float:
    """When to check links if no event happens. While a key is being read, the answer starts the next check."""
    return (
        float("inf")
        if agent.links.looking_up
        else agent.first_of(link.check_at for link in agent.links.inbound.values())
    )


def _close(agent: AgentState, nodes: Sequence[str], why: str) -> None:
    closing = frozenset(nodes)
    agent.links.inbound = {node: dialler for node, dialler in agent.links.inbound.items() if node not in closing}
    agent.act(CloseInbound(tuple(nodes)))
    agent.act(LogLine(why, detail=True))
