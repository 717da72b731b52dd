"""Notes about silent nodes and evicted hosts, for each node of the job, from the answers of nodes (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from elastic._text import rounded_up, time_text
from launcher.job.status import JobStatus, NodeState
from launcher.wire.inspect_messages import NodeSnapshot


def silence_notes(status: JobStatus, snapshots: Mapping[str, NodeSnapshot]) -> Mapping[str, str]:
    """Return the notes by node, for nodes that have one.

    If several agents report a node, the leader's snapshot takes precedence.
    """
    leader_last = sorted(snapshots.values(), key=lambda snapshot: snapshot.node == status.leader)
    silent = {peer.node: (snapshot.node, peer.silent_s) for snapshot in leader_last for peer in snapshot.silent}
    evicted = [eviction for snapshot in leader_last for eviction in snapshot.evicted]
    of_node = {eviction.node: eviction for eviction in evicted}
    of_host = {eviction.host: eviction for eviction in evicted}
    notes = dict[str, str]()
    for node in status.nodes:
        if node.state is NodeState.LOST:
            if node.node in of_node and not of_node[node.node].returned:
                notes[node.node] = "evicted because it was silent"
        elif node.node in silent:
            by, silent_s = silent[node.node]
            notes[node.node] = f"{by} has received nothing from it for {time_text(silent_s, 1)}"
        elif node.host in of_host:
            eviction = of_host[node.host]
            minutes = rounded_up(eviction.counts_in_s, 60)
            notes[node.node] = (
                f"{eviction.node} on this host was evicted; for {minutes} min, nodes on it are not evicted for silence"
            )
    return notes


def with_silence(note: str, silence: str) -> str:
    """Join both notes of a node."""
    return "; ".join(filter(None, (silence, note)))
