"""Nodes that were evicted because they were silent, and the consequences for their hosts (pure).

The leader evicts a silent member (`elastic.core.agent.links.silence`) before its lease ends. This can be a mistake: the
node was only suspended, and continues. The following generations therefore list the eviction, and every agent that may
lead remembers it:

- Workers of the evicted node may run until its run deadline. Until then no other node on that host joins, unless the
  leader runs there and the lock file shows that no process of the node is left.
- For `SILENCE_COUNTS_AFTER_S` the silence of that host does not count, only its lease and a proof of death. Each
  further silence restarts this time. A host that is often suspended therefore costs one restart.
- For the same time, a node on that host joins only after the leader has heard it for `STEADY_S` without a break, unless
  the job is below its minimum. This keeps a node that reaches only the store from joining again and again.
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
"""A node on such a host joins after the leader has heard it for this time without a break."""
WORKERS_GONE_S: Final = 1.0
"""Time for a SIGKILL, added to the time of a lease."""
EVICTIONS_MAX: Final = 64
"""Newest evictions that a generation lists; each further one may cost one needless restart under another leader."""


class Eviction(Struct, frozen=True):
    """An eviction as one agent remembers it. Times are on this agent's clock.

    `at`: when the agent learned of the eviction. `g`: the newest generation at that time if this agent evicted the
    node itself, otherwise 0. `returned`: the node has registered again.
    """

    node: str
    host: str
    create_revision: int
    at: float
    silence_counts_at: float
    g: int = 0
    returned: bool = False

    def workers_gone_at(self, ttl_s: float) -> float:
        """When the node certainly has no worker left."""
        return self.at + ttl_s * (1 + CLOCK_ERROR) + WORKERS_GONE_S


def evicted(node: str, host: str, create_revision: int, now: float, g: int = 0) -> Eviction:
    """Return an eviction that happens now, from generation `g`."""
    return Eviction(node, host, create_revision, now, now + SILENCE_COUNTS_AFTER_S, g)


def note_evicted(known: Sequence[Eviction], generation: Generation, now: float, *, new: bool) -> tuple[Eviction, ...]:
    """Add the evictions that a generation lists, and forget old ones that it does not list.

    `new`: this agent sees the generation for the first time. The leader may know of silences that this agent does not
    know, so the longer time counts.
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
    """Return whether the silence of nodes on this host counts."""
    return all(one.host != host or now >= one.silence_counts_at for one in known)


def silent_again(known: Sequence[Eviction], hosts: frozenset[str], now: float) -> tuple[Eviction, ...]:
    """Restart the time of these hosts: they are silent again after an eviction."""
    until = now + SILENCE_COUNTS_AFTER_S
    return tuple(replace(one, silence_counts_at=until) if one.host in hosts else one for one in known)


def listed_evictions(known: Sequence[Eviction], now: float) -> tuple[EvictedNode, ...]:
    """The evictions that the next generation lists."""
    lately = [one for one in known if now < one.silence_counts_at][-EVICTIONS_MAX:]
    return tuple(
        EvictedNode(one.node, one.host, one.create_revision, rounded_up(one.silence_counts_at - now)) for one in lately
    )
