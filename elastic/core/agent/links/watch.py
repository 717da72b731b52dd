"""Which nodes this agent keeps a link to, and which of them it hears (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import LinkTarget, WatchLinks
from elastic.core.agent.candidates import watches_leader
from elastic.core.agent.state import AgentState
from elastic.core.run_deadline import NEVER


class LinksChanged(Struct, frozen=True):
    """The watched nodes whose link is up now; while links are doubted, those that answer pings.

    `heard_at`: when the newest ping was sent, on this node's clock, that all of these nodes have answered.
    """

    nodes: frozenset[str]
    heard_at: float = NEVER


def on_links_changed(agent: AgentState, event: LinksChanged) -> None:
    """Note which nodes are linked now, and which were linked before."""
    agent.links.up, agent.links.heard_at = event.nodes, event.heard_at
    note_heard(agent)


def note_heard(agent: AgentState) -> None:
    """Note which nodes are heard: their link is up and they are not silent.

    The kernel keeps the link of a silent node up for some seconds.
    """
    memory = agent.memory
    heard = agent.links.up - memory.silent
    if heard == memory.linked:
        return
    since = {node: memory.heard_since.get(node, agent.now) for node in heard}
    unheard = (memory.unheard | memory.linked) - heard
    agent.memory = replace(memory, linked=heard, heard_since=since, unheard=unheard)


def needs_watch(agent: AgentState) -> bool:
    """The nodes to watch may have changed."""
    watched = agent.links.watched_for
    if not agent.registration.registered:
        return False  # The node has not joined yet; or it registers again, and keeps its links.
    if agent.leads and not agent.view.complete:
        return False  # A new leader does not see all members yet, and the last leader may still work.
    # With a thousand members, `watch` takes a millisecond.
    return watched is None or watched[0] is not agent.view or watched[1] != agent.memory.gone


def watch(agent: AgentState) -> None:
    """Watch every node as the leader, otherwise the leader; also watch nodes without a key that may still work."""
    agent.links.watched_for = (agent.view, agent.memory.gone)
    targets = _members(agent) if agent.leads else _leader(agent) if watches_leader(agent) else {}
    if targets != agent.links.targets:
        _retarget(agent, targets)


def _members(agent: AgentState) -> Mapping[str, LinkTarget]:
    targets, dialable = dict(_still_there(agent)), _dialable(agent)
    for node, stored in agent.view.members.items():
        if node == agent.me.node or not stored.value.link:
            continue
        if (node, stored.create_revision) not in agent.memory.gone:
            member, known = stored.value, node in dialable
            targets[node] = LinkTarget(member.host, member.link, stored.create_revision, known)
    return targets


def _leader(agent: AgentState) -> Mapping[str, LinkTarget]:
    """The leader; while there is none, the last one, which may still work."""
    stored, gone = agent.view.leader, agent.memory.gone
    if stored is None:
        known = agent.links.targets.items()
        return {node: target for node, target in known if (node, target.create_revision) not in gone}
    leader, created = stored.value, stored.value.created or stored.create_revision
    if leader.node == agent.me.node or not leader.link or (leader.node, created) in gone:
        return {}
    return {leader.node: LinkTarget(leader.host, leader.link, created, leader.node in _dialable(agent))}


def _dialable(agent: AgentState) -> frozenset[str]:
    """The members of the newest generation that a leader has been linked to."""
    generation = agent.generation
    if generation is None:
        return frozenset()
    return frozenset(member.node for member in generation.members).difference(generation.unlinked)


def _retarget(agent: AgentState, targets: Mapping[str, LinkTarget]) -> None:
    dropped = agent.links.targets.keys() - targets.keys()  # The end of these links says nothing about those nodes.
    memory = agent.memory
    agent.memory = replace(
        memory,
        linked=memory.linked - dropped,
        heard_since={node: since for node, since in memory.heard_since.items() if node not in dropped},
        unheard=memory.unheard - dropped,
    )
    agent.links.up -= dropped
    agent.links.targets = targets
    agent.act(WatchLinks(targets))


def _still_there(agent: AgentState) -> Mapping[str, LinkTarget]:
    """Watched members of the newest generations whose keys are no longer in the view."""
    away = {
        node: target
        for node, target in agent.links.targets.items()
        if node not in agent.view.members and (node, target.create_revision) not in agent.memory.gone
    }
    known = recent_members(agent) if away else frozenset[str]()  # This takes long with a thousand members.
    return {node: target for node, target in away.items() if node in known}


def recent_members(agent: AgentState) -> frozenset[str]:
    """The nodes of the newest generation and of the one before it."""
    generation = agent.generation
    if generation is None:
        return frozenset()
    before = generation.before.nodes if generation.before is not None else ()
    return frozenset(member.node for member in generation.members).union(before)
