"""The agent's part in a doctor's question: it sees the probe, tries to reach every other member, and answers."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, Delete, KeyRange, KeyValue, Operation, Put
from elastic.core.model import Member
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import AgentLog
from launcher.peers.reachability import check_reachable
from launcher.wire.probe_messages import encode, read_probe

MEMBERS_MAX = 1000
"""Each member tries so many others, so that a probe of a huge job is no storm."""


class ProbeResponder:
    """Answers each probe once, and one at a time: of those that come meanwhile only the newest counts."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._seen: KeyValue | None = None
        self._wanted: tuple[KeyValue, int] | None = None
        self._busy = False
        self._answered = ""

    def asked(self, entries: Mapping[str, KeyValue], registered: int | None, lease: int | None) -> bool:
        """Look whether there is a new probe; True asks for a call of `answer`.

        One that is older than the registration (its revision; None: not registered) was not meant for this node. The
        answer is written under `lease`.
        """
        entry = entries.get(self._keys.probe)
        if entry is None or entry == self._seen or registered is None or lease is None:
            return False
        self._seen = entry
        if entry.mod_revision <= registered:
            return False
        self._wanted = (entry, lease)
        begins, self._busy = not self._busy, True
        return begins

    async def answer(self) -> None:
        """Answer until no probe is left."""
        try:
            while self._wanted is not None:
                (entry, lease), self._wanted = self._wanted, None
                await self._answer(entry, lease)
        finally:
            self._busy = False

    async def _answer(self, entry: KeyValue, lease: int) -> None:
        """Try to reach the others, and write down what came of it if the probe still stands."""
        try:
            probe = read_probe(entry.value)
            answer = await check_reachable(self._keys.job_id, await self._others())
            key = self._keys.answer(probe.id, self._node)
            then: list[Operation] = [Put(key, encode(answer), lease)]
            if self._answered not in ("", key):
                then.append(Delete(KeyRange.key(self._answered)))
            done = await self._store.txn([Compare.modified(self._keys.probe, entry.mod_revision)], then)
        except DocumentError as error:
            self._agent_log.debug(f"a probe that cannot be read: {error}")
        except StoreError as error:
            self._agent_log.debug(f"a probe could not be answered: {error}")
        else:
            self._answered = key if done.succeeded else self._answered
            bad = f", not {len(answer.unreached)}" if answer.unreached else ""
            self._agent_log.debug(f"elastic-ctl doctor asked: this node reaches {answer.reached} others{bad}")

    async def _others(self) -> dict[str, Member]:
        """Every other member; of a huge job those that come next by name, and round."""
        listing = await self._store.list(KeyRange.prefix(self._keys.members))
        others: dict[str, Member] = {}
        for entry in listing.entries:
            node = entry.key.removeprefix(self._keys.members)
            if node == self._node:
                continue
            with suppress(DocumentError):  # It is damaged, and named elsewhere.
                others[node] = decode(self._keys, entry.key, entry.value)
        names = sorted(others)
        after = sum(name < self._node for name in names)
        return {name: others[name] for name in [*names[after:], *names[:after]][:MEMBERS_MAX]}
