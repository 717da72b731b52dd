"""Proofs that a node is dead, and when they no longer count (pure).

There are two proofs. Each requires all of its conditions; without a proof the node is lost when its lease ends.

`ProcessProvenDead`, over a link (`launcher/peers/peer_link.py`). It can be wrong, so workers of the node may still run:

1. A link to the member's process was up, so that both sides had proven the secret of the job. This node or an earlier
   leader dialled it (`LinkTarget.dialable`), or the member did.
2. The member's kernel closed it, and the member had not sent a goodbye. A link without packets is no proof.
3. The reconnect to the same address is refused, or another node answers there. A reconnect that is cut is repeated.
4. No such proof has been wrong for the member's host before (`distrust_hosts`).

`NodeProvenDead`, on one host (`launcher/agent/local_death_proofs.py`, `launcher/system/node_lock.py`). It is never
wrong, and shows that no worker of the node is left either:

1. The node is no longer registered.
2. Its lock file is on this host, and was written since this host booted.
3. No process holds the lock: neither the nursery of the node nor one of its workers.
"""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from elastic.core.agent.actions import LogLine
from elastic.core.agent.state import AgentState
from elastic.core.agent.store import ViewChanged


class ProcessProvenDead(Struct, frozen=True):
    """A link showed that a member's process is dead. This can be wrong.

    `closed_at`: when the link closed, 0.0 if that is not known.
    """

    node: str
    create_revision: int
    host: str
    closed_at: float = 0.0


class NodeProvenDead(Struct, frozen=True):
    """The lock file on this host shows that no process of the node is left. This is never wrong."""

    node: str


def on_process_dead(agent: AgentState, event: ProcessProvenDead) -> None:
    """Accept the proof, unless an earlier one for that host was wrong."""
    memory = agent.memory
    if event.host not in memory.distrusted:
        agent.memory = replace(memory, gone=memory.gone | {(event.node, event.create_revision)})


def on_node_dead(agent: AgentState, event: NodeProvenDead) -> None:
    """Accept the proof."""
    agent.memory = replace(agent.memory, dead=agent.memory.dead | {event.node})


def distrust_hosts(agent: AgentState, event: ViewChanged) -> None:
    """Stop accepting link proofs for the host of a node that registers again after its "death".

    The generation lists these hosts too.
    """
    named = frozenset(agent.generation.distrusted if agent.generation is not None else ()) - agent.memory.distrusted
    if named:
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | named)
    for node, created in agent.memory.gone:
        stored = agent.view.members.get(node)
        if stored is None or stored.create_revision == created or stored.value.host in agent.memory.distrusted:
            continue
        host = stored.value.host
        agent.memory = replace(agent.memory, distrusted=agent.memory.distrusted | {host})
        text = f"{node} registered again, although its connection was closed as if its process had exited"
        follows = f"from now on, failures on {host} are detected only when leases end"
        agent.act(LogLine(f"{text} (does a firewall close connections?); {follows}", warn=True))


def is_proven_dead(agent: AgentState, node: str, create_revision: int) -> bool:
    """Return whether a proof says that this registration of a node is dead."""
    return (node, create_revision) in agent.memory.gone or node in agent.memory.dead
