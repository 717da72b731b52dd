"""Messages about nodes that may not join yet because a node on their host was evicted (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from elastic.core.membership.evictions import STEADY_S
from elastic.core.membership.situation import INFINITY, Situation
from elastic.core.text import COUNTED


class HeldBack(NamedTuple):
    """A clause about one host, and the time until which it is held back if the clause counts that down."""

    text: str
    until: float | None


def held_back(s: Situation) -> list[HeldBack]:
    """Return one clause for each host of registered nodes that is held back because of an eviction."""
    evicted = {eviction.host: eviction.node for eviction in s.memory.evictions}
    if not evicted:
        return []
    clauses = dict[str, HeldBack]()
    unsteady, joining = s.unsteady(), set(s.joining_nodes)
    for node in s.memory.ready_since:
        stored = s.member(node)
        if stored is None or node in joining or (host := stored.value.host) not in evicted:
            continue
        free_at, steady_at = s.free_at(node, host), s.steady_at(node)
        if s.now < free_at:
            text = f"{host} may join in {COUNTED}: until then workers of the evicted node {evicted[host]} may run there"
            clauses[host] = HeldBack(text, free_at)
        elif host in unsteady and steady_at < INFINITY:
            text = f"{host} may join after {COUNTED} more of heartbeats, because {evicted[host]} was evicted there"
            clauses[host] = HeldBack(text, steady_at)
        elif host in unsteady:
            text = f"{host} may join after {STEADY_S:g} s of heartbeats, because {evicted[host]} was evicted there"
            clauses[host] = HeldBack(text, None)
    return list(clauses.values())


def texts_of(clauses: Iterable[HeldBack]) -> list[str]:
    """The texts of the clauses."""
    return [clause.text for clause in clauses]


def ends_of(clauses: Iterable[HeldBack]) -> list[float]:
    """The times at which the countdowns of the clauses end, in the order of the clauses."""
    return [clause.until for clause in clauses if clause.until is not None]
