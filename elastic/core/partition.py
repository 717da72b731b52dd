"""Which machines a split network leaves out: those that remain all reach each other (pure).

Every node says in its outcome which members of its world it could not reach while its workers waited. Two nodes are
apart if either of them says so: where packets go one way only, no connection stands. Where a world falls into parts
that do not reach each other at all, the largest goes on, so that one machine that is cut off goes and not those that
miss it, also if it is the first of its world. Within a part who is apart from most of those that were tried goes first;
in a large world everybody tries the first, and a few try each of the others. Of two parts, or machines, that are alike
the later one goes: the first of the world stays where it can.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from elastic._text import joined, shortened
from elastic.core.model import JobSpec

OTHERS_MAX: Final = 16
"""A node looks at the first of its world, and at so many that come after it, and round."""
NAMED_MAX: Final = 4
"""More of those that do not reach a machine are counted and not named."""


def nodes_to_probe(names: Sequence[str], node: str) -> tuple[str, ...]:
    """Whom of a world with these names, in their order, `node` looks at; nobody if it is not in it."""
    if node not in names:
        return ()
    m_id = names.index(node)
    after = (*names[m_id + 1 :], *names[:m_id])
    return tuple(dict.fromkeys((*after[:OTHERS_MAX], *(names[:1] if m_id else ()))))


def nodes_to_exclude(
    nodes: Sequence[str], unreached: Mapping[str, Collection[str]], lost: Collection[str] = ()
) -> dict[str, list[str]]:
    """Who of `nodes`, which are in their order, is left out, each with those that it is apart from.

    `unreached`: whom each node could not reach. What is said of others than `nodes`, or by others, does not count; nor
    do those that are `lost`.
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
    most = len(nodes) - 1  # Ways of the first that were tried; of others those round about, and the one to the first.
    tried = {node: most if place == 0 else min(most, 2 * OTHERS_MAX + 1) for node, place in order.items()}
    while any(left.values()):
        worst = max(left, key=lambda node: (len(left[node]) / tried[node], order[node]))
        for other in left.pop(worst):
            left[other].discard(worst)
        out[worst] = ways[worst]
    return {node: sorted(others, key=order.__getitem__) for node, others in out.items()}


def _largest_part(nodes: Sequence[str], order: Mapping[str, int], ways: Mapping[str, Collection[str]]) -> set[str]:
    """The largest part of a world whose nodes reach each other over others of it; of two the one with the earlier."""
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
    """What a node says whose workers wait while these cannot be reached; `can`: the job can go on without them."""
    if not nodes:
        return "the workers go on, or every node of this world can be reached from here again"
    if can:
        then = "if that lasts, the job goes on without the machine that is cut off"
    elif spec.host_cooldown_s > 0:
        then = f"at least {spec.np.low} nodes must run (--np), so that the workers wait until the way is open"
        then += ", or a spare is there"
    else:
        then = "no host is kept out (--host_cooldown 0), so that the workers wait until the way is open"
    return f"workers wait, and {', '.join(nodes)} cannot be reached from here; {then}"


def not_reached_by(names: Sequence[str]) -> str:
    """Say who does not reach a machine: "a and b do not reach it"."""
    text = shortened(names, NAMED_MAX) if len(names) > NAMED_MAX else joined(names)
    return f"{text} {'does' if len(names) == 1 else 'do'} not reach it"
