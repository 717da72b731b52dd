"""Which nodes to leave out after a network partition, so that all remaining nodes reach each other (pure).

Every node lists in its outcome the members of its generation that it could not reach while its workers waited. Two
nodes are apart if either of them lists the other: no connection forms if packets pass in one direction only.

- If the generation falls into parts that cannot reach each other at all, the largest part continues. A single node that
  is cut off is therefore left out, and not the nodes that miss it, even if it is the first of the generation.
- Within a part, the node that is apart from the largest share of the nodes that were probed is left out first. In a
  large generation every node probes the first one, and a few probe each of the others.
- Of two equal parts or nodes the later one is left out, so that the first node of the generation stays if possible.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from elastic._text import joined, shortened
from elastic.core.model import JobSpec

OTHERS_MAX: Final = 16
"""A node probes the first node of its generation, and this many nodes that follow it, cyclically."""
NAMED_MAX: Final = 4
"""Hosts that cannot reach another one and that a sentence lists; further ones are counted."""


def nodes_to_probe(names: Sequence[str], node: str) -> tuple[str, ...]:
    """Return which nodes of a generation, given by their names in order, `node` probes; none if it is not in it."""
    if node not in names:
        return ()
    m_id = names.index(node)
    after = (*names[m_id + 1 :], *names[:m_id])
    return tuple(dict.fromkeys((*after[:OTHERS_MAX], *(names[:1] if m_id else ()))))


def nodes_to_exclude(
    nodes: Sequence[str], unreached: Mapping[str, Collection[str]], lost: Collection[str] = ()
) -> dict[str, list[str]]:
    """Return which of `nodes`, given in order, to leave out, each with the nodes that it is apart from.

    `unreached`: the nodes that each node could not reach. Entries of or about other nodes do not count, nor do nodes
    that are `lost`.
    """
    order = {node: place for place, node in enumerate(nodes) if node not in lost}
    ways: dict[str, set[str]] = {}
    for node in order:
        for other in order.keys() & set(unreached.get(node, ())) - {node}:
            ways.setdefault(node, set()).add(other)
            ways.setdefault(other, set()).add(node)
    if not ways:
        return {}
    part = _largest_part(nodes, order, ways)
    out = {node: ways.get(node) or part for node in reversed(order) if node not in part}
    left = {node: ways.get(node, set()) & part for node in part}
    most = len(nodes) - 1  # Every node probes the first; each of the others is probed by its neighbours and the first.
    tried = {node: most if place == 0 else min(most, 2 * OTHERS_MAX + 1) for node, place in order.items()}
    while any(left.values()):
        worst = max(left, key=lambda node: (len(left[node]) / tried[node], order[node]))
        for other in left.pop(worst):
            left[other].discard(worst)
        out[worst] = ways[worst]
    return {node: sorted(others, key=order.__getitem__) for node, others in out.items()}


def _largest_part(nodes: Sequence[str], order: Mapping[str, int], ways: Mapping[str, Collection[str]]) -> set[str]:
    """The largest part whose nodes reach each other, directly or over other nodes; the earlier one of equal parts."""
    near: dict[str, set[str]] = {node: set() for node in order}
    for node in order:
        for other in nodes_to_probe(nodes, node):
            if other in order and other not in ways.get(node, ()):
                near[node].add(other)
                near[other].add(node)
    parts: list[set[str]] = []
    while near:
        part, edge = set[str](), [next(iter(near))]
        while edge:
            node = edge.pop()
            part.add(node)
            edge += near.pop(node, set()) - part
        parts.append(part)
    return max(parts, key=len)


def cannot_reach(nodes: Sequence[str], spec: JobSpec, *, can: bool) -> str:
    """Message of a node whose workers wait while these nodes are unreachable; `can`: the job can run without them."""
    if not nodes:
        return "the workers continue, or this node can reach every node of its generation again"
    if can:
        then = "if this lasts, the job continues without the host that is cut off"
    elif spec.host_cooldown_s > 0:
        then = f"at least {spec.np.low} nodes must run (--np), so the workers wait until it can be reached"
        then += ", or a spare joins"
    else:
        then = "no host is quarantined (--host-cooldown 0), so the workers wait until it can be reached"
    return f"workers are stalled, and {', '.join(nodes)} cannot be reached from this node; {then}"


def not_reached_by(names: Sequence[str]) -> str:
    """Say which hosts cannot reach another one: "a and b cannot connect to it"."""
    text = shortened(names, NAMED_MAX) if len(names) > NAMED_MAX else joined(names)
    return f"{text} cannot connect to it"
