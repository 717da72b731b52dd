"""Nodes that were evicted because they were silent, and what follows for their hosts (pure).

The leader evicts a silent member (`elastic.core.agent.links.silence`) before its lease ends. It may have been wrong:
the node was held up, and continues. So the generations that follow name it, and every agent that may lead remembers it:

- Workers of the evicted node may run until its run deadline. Until then no other node on that host joins, unless the
  leader runs there, and the lock file shows that nothing of the node is left.
- For `SILENCE_COUNTS_AFTER_S` the silence of that host does not count, only its lease and a proof of death; each
  further silence begins this time again. So a host that is often held up costs one restart.
- For as long, a node on that host joins only after it has been heard for `STEADY_S` without a break, unless the job is
  below its minimum. A node that reaches the store and not the other nodes does not join again and again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from elastic._text import rounded_up
from elastic.core.model import EvictedNode, Generation, Member
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.view import StoredDocument

SILENCE_COUNTS_AFTER_S: Final = 3600.0
"""The silence of a host counts again after this time without one."""
STEADY_S: Final = 2.0
"""A node on such a host joins after it has been heard for this time without a break."""
WORKERS_GONE_S: Final = 1.0
"""After the time of a lease, for what a SIGKILL takes."""
EVICTIONS_MAX: Final = 64
"""Evictions that a generation names, the newest; those beyond may cost one needless restart with another leader."""


class Eviction(Struct, frozen=True):
    """An eviction as one agent remembers it. Times are on this agent's clock.

    `at`: when it learned of it. `g`: the newest generation when this agent evicted it itself, otherwise 0. `returned`:
    the node has registered again.
    """

    node: str
    host: str
    create_revision: int
    at: float
    silence_counts_at: float
    g: int = 0
    returned: bool = False

    def workers_gone_at(self, ttl_s: float) -> float:
        """When the node has certainly no worker left."""
        return self.at + ttl_s * (1 + CLOCK_ERROR) + WORKERS_GONE_S


def evicted(node: str, host: str, create_revision: int, now: float, g: int = 0) -> Eviction:
    """An eviction of this moment, from this generation."""
    return Eviction(node, host, create_revision, now, now + SILENCE_COUNTS_AFTER_S, g)


def note_evicted(known: Sequence[Eviction], generation: Generation, now: float, *, new: bool) -> tuple[Eviction, ...]:
    """Add the evictions that a generation names, and forget those that are long ago and that it does not name.

    `new`: this agent has not seen the generation before. The leader knows of silences that others do not know of, so
    the time that it names counts where it is longer.
    """
    if not known and not generation.evicted:
        return ()
    named = {(listed.node, listed.create_revision): listed for listed in generation.evicted}
    remembered = {
        (old.node, old.create_revision): old
        for old in known
        if now < old.silence_counts_at or (old.node, old.create_revision) in named
    }
    learned = [
        Eviction(listed.node, listed.host, listed.create_revision, now, now + listed.left_s)
        for key, listed in named.items()
        if key not in remembered
    ]
    if new:
        remembered = {
            key: _not_before(old, now + named[key].left_s) if key in named else old for key, old in remembered.items()
        }
    return (*remembered.values(), *learned)


def _not_before(eviction: Eviction, at: float) -> Eviction:
    return replace(eviction, silence_counts_at=at) if at > eviction.silence_counts_at else eviction


def note_returned(known: Sequence[Eviction], members: Mapping[str, StoredDocument[Member]]) -> tuple[Eviction, ...]:
    """Note which of the evicted nodes have registered again."""
    return tuple(replace(one, returned=True) if not one.returned and _is_back(one, members) else one for one in known)


def _is_back(eviction: Eviction, members: Mapping[str, StoredDocument[Member]]) -> bool:
    stored = members.get(eviction.node)
    return stored is not None and stored.create_revision != eviction.create_revision


def evicted_lately(known: Sequence[Eviction], ttl_s: float, now: float) -> list[str]:
    """The evicted nodes that may still have workers."""
    return [one.node for one in known if not one.returned and now < one.workers_gone_at(ttl_s)]


def silence_counts(known: Sequence[Eviction], host: str, now: float) -> bool:
    """Tell whether the silence of nodes on this host counts."""
    return all(one.host != host or now >= one.silence_counts_at for one in known)


def silent_again(known: Sequence[Eviction], hosts: frozenset[str], now: float) -> tuple[Eviction, ...]:
    """These hosts are silent although they were evicted lately: their time begins again."""
    until = now + SILENCE_COUNTS_AFTER_S
    return tuple(replace(one, silence_counts_at=until) if one.host in hosts else one for one in known)


def listed_evictions(known: Sequence[Eviction], now: float) -> tuple[EvictedNode, ...]:
    """The evictions that the next generation names."""
    lately = [one for one in known if now < one.silence_counts_at][-EVICTIONS_MAX:]
    return tuple(
        EvictedNode(one.node, one.host, one.create_revision, rounded_up(one.silence_counts_at - now)) for one in lately
    )
