"""Whether this node reaches the members that its workers are about to need: the first one, and those beside it.

Together the nodes of a generation look at both directions of a ring and at every way to the first, with three small
reads each. `elastic-ctl doctor` looks at all ways.
"""

from __future__ import annotations

from contextlib import suppress

from elastic.core.keys import JobKeys, decode
from elastic.core.kv import Range
from elastic.core.model import Generation, Member
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import Narrator
from launcher.peers.reachability import why_not


def beside(generation: Generation, node: str) -> tuple[str, ...]:
    """The members that `node` looks at; none for a node that is not in the generation."""
    m_id, names = generation.index(node), [place.node for place in generation.members]
    if m_id is None:
        return ()
    wanted = dict.fromkeys((names[0], names[m_id - 1], names[(m_id + 1) % len(names)]))
    return tuple(name for name in wanted if name != node)


class Neighbours:
    """Looks once at each member that comes to stand beside this node."""

    def __init__(self, store: Store, keys: JobKeys, node: str, narrator: Narrator) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._narrator = narrator
        self._seen: set[str] = set()

    async def look(self, generation: Generation) -> None:
        """Warn of each that cannot be reached, and why."""
        for name in beside(generation, self._node):
            if name in self._seen:
                continue
            self._seen.add(name)
            with suppress(StoreError, DocumentError):  # Who is gone, or damaged, is told elsewhere.
                member = await self._member(name)
                why = await why_not(self._keys.job_id, name, member) if member is not None else ""
                if why:
                    self._narrator.warn(
                        f"this node does not reach {name}: {why}; if workers wait for each other, elastic-ctl doctor "
                        "shows every way that is closed"
                    )

    async def _member(self, name: str) -> Member | None:
        key = self._keys.member(name)
        listing = await self._store.list(Range.key(key))
        found: Member | None = decode(self._keys, key, listing.entries[0].value) if listing.entries else None
        return found
