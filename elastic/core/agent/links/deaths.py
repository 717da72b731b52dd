"""Proofs that a node is dead, and when they are not believed any more (pure)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import LogLine
from elastic.core.agent.state import AgentState
from elastic.core.agent.store import ViewChanged


class ProcessProvenDead(Struct, frozen=True):
    """A link showed that a member's process is dead. It can be wrong.

    `closed_at`: when the link closed, 0.0 if that is not known.
    """

    node: str
    create_revision: int
    host: str
    closed_at: float = 0.0


class NodeProvenDead(Struct, frozen=True):
    """This very machine shows that nothing of the node is left. It is never wrong."""

    node: str


def on_process_dead(agent: AgentState, event: ProcessProvenDead) -> None:
    """Believe the proof, unless one of that host was wrong before."""
    memory = agent.memory
    if event.host not in memory.distrusted:
        agent.memory = replace(memory, gone=memory.gone | {(event.node, event.create_revision)})


def on_node_dead(agent: AgentState, event: NodeProvenDead) -> None:
    """Believe the proof."""
    agent.memory = replace(agent.memory, dead=agent.memory.dead | {event.node})


def distrust_hosts(agent: AgentState, event: ViewChanged) -> None:
    """A node that speaks again after its "death" switches link proofs off for its host; the generation says so too."""
    named = frozenset(agent.generation.distrusted if agent.generation is not None else ()) - agent.memory.distrusted
    if named:
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | named)
    for node, created in agent.memory.gone:
        stored = agent.view.members.get(node)
        if stored is None or stored.create_revision == created or stored.value.host in agent.memory.distrusted:
            continue
        host = stored.value.host
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | {host})
        text = f"{node} is there again, although its connection had shown that its process was gone (a firewall?); "
        agent.act(LogLine(f"{text}from now on only the leases of {host} count", warn=True))


def is_proven_dead(agent: AgentState, node: str, create_revision: int) -> bool:
    """Tell whether a proof says that this registration of a node is dead."""
    return (node, create_revision) in agent.memory.gone or node in agent.memory.dead
