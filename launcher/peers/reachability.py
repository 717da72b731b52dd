"""Which members can be reached from here, and why the others cannot.

`StartupReachability` checks this before workers start, `ProbeResponder` for `elastic-ctl doctor`.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from contextlib import suppress

from elastic._net import connected
from elastic.core.agent.actions import LinkTarget
from elastic.core.keys import JobKeys
from elastic.core.kv import Compare, Delete, KeyRange, KeyValue, Operation, Put
from elastic.core.model import Generation, Member
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import AgentLog
from launcher.wire.link_messages import Greeting, read_greeting
from launcher.wire.probe_messages import (
    UNREACHED_MAX,
    WORDS_MAX,
    Probe,
    ProbeAnswer,
    UnreachedMember,
    encode,
    read,
)

AT_ONCE = 64
"""Connections that are tried at the same time."""
LIMIT_S = 4.0
"""How long all of it may take; who was not tried by then is counted."""

ASK_LIMIT_S = 2.0
"""How long a node may take to say who it is."""
MEMBERS_MAX = 1000
"""Each member tries so many others for a probe, so that one of a huge job is no storm."""

SILENT = f"no answer within {ASK_LIMIT_S:g} s; a firewall may drop what is sent there"
REASONS: Mapping[int, str] = {
    errno.ECONNREFUSED: "refused; a firewall rejects it, or its address leads to another machine",
    errno.EHOSTUNREACH: "no way to this host",
    errno.ENETUNREACH: "no route to this network",
    errno.ECONNRESET: "cut off at once",
    errno.EINVAL: "no route to this address",
}


async def ask_greeting(host: str, port: int) -> Greeting:
    """Ask who listens there; the answer is without a nonce.

    `OSError` when nobody can be reached, `ValueError` when something else than an agent answers. `TimeoutError`, an
    `OSError` too, comes after `ASK_LIMIT_S`, `socket.gaierror` for a name that is not known.
    """
    async with asyncio.timeout(ASK_LIMIT_S):
        reader, writer = await connected(host, port)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""  # It is longer than any of ours.
        finally:
            writer.transport.abort()
    greeting = read_greeting(line.removesuffix(b"\n"))
    return Greeting(greeting.job_id, greeting.node)


async def check_reachable(job_id: str, members: Mapping[str, Member], limit_s: float = LIMIT_S) -> ProbeAnswer:
    """Connect to each of these members, by id; what came of it.

    Every member counts: it is reached, or is not for a reason, or there was no time to try it.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    reasons: dict[str, str] = {}

    async def check(node: str, member: Member) -> None:
        async with gate:
            reasons[node] = await unreachable_reason(job_id, node, member)

    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for node, member in members.items():
                group.create_task(check(node, member))
    unreached = [UnreachedMember(node[:WORDS_MAX], why[:WORDS_MAX]) for node, why in sorted(reasons.items()) if why]
    return ProbeAnswer(len(reasons) - len(unreached), tuple(unreached[:UNREACHED_MAX]), len(members) - len(reasons))


async def unreachable_reason(job_id: str, node: str, member: Member) -> str:
    """Why this member cannot be reached from here, "" if it can."""
    if not member.link:
        return "it does not listen"
    try:
        greeting = await ask_greeting(member.host, member.link)
    except TimeoutError:
        return SILENT
    except (OSError, ValueError) as error:
        return reason(error, member.host)
    if greeting != Greeting(job_id, node):
        return (
            f"another node answers there ({greeting.node} of job {greeting.job_id}); two machines may have one address"
        )
    return ""


def reason(error: OSError | ValueError, host: str) -> str:
    """Why the agent on `host` cannot be reached, in words."""
    if isinstance(error, socket.gaierror):
        return f"the name {host} is not known here; put it into DNS or /etc/hosts, or use --host ADDRESS there"
    if isinstance(error, OSError):
        return REASONS.get(error.errno or 0, error.strerror or str(error))
    return str(error)


async def read_member(store: Store, keys: JobKeys, node: str) -> Member | None:
    """Where a node is. None if it is gone or its document is damaged, which is told elsewhere."""
    key = keys.member(node)
    with suppress(StoreError, DocumentError):
        for entry in (await store.list(KeyRange.key(key))).entries:
            found: Member = decode(keys, key, entry.value)
            return found
    return None


async def find_listener(store: Store, keys: JobKeys, node: str) -> LinkTarget | None:
    """Where the agent of a node listens; None if it is gone, does not listen, or the store does not say."""
    member = await read_member(store, keys, node)
    return LinkTarget(member.host, member.link, 0) if member is not None and member.link else None


def neighbours_of(generation: Generation, node: str) -> tuple[str, ...]:
    """The members that `node` looks at; none for a node that is not in the generation."""
    m_id, names = generation.index(node), [place.node for place in generation.members]
    if m_id is None:
        return ()
    wanted = dict.fromkeys((names[0], names[m_id - 1], names[(m_id + 1) % len(names)]))
    return tuple(name for name in wanted if name != node)


class StartupReachability:
    """Looks once at each member that comes to stand beside this node."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._seen: set[str] = set()

    async def check_neighbours(self, generation: Generation) -> None:
        """Warn of each that cannot be reached, and why."""
        for name in neighbours_of(generation, self._node):
            if name in self._seen:
                continue
            self._seen.add(name)
            member = await read_member(self._store, self._keys, name)
            why = await unreachable_reason(self._keys.job_id, name, member) if member is not None else ""
            if why:
                self._agent_log.warning(
                    f"this node does not reach {name}: {why}; if workers wait for each other, elastic-ctl doctor "
                    "shows every way that is closed"
                )


class ProbeResponder:
    """Answers each probe once, and one at a time: of those that come meanwhile only the newest counts."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._seen: KeyValue | None = None
        self._wanted: tuple[KeyValue, int] | None = None
        """The probe that is answered now or next, and the lease."""
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
        begins = self._wanted is None
        self._wanted = (entry, lease)
        return begins

    async def answer(self) -> None:
        """Answer until no probe is left."""
        while (wanted := self._wanted) is not None:
            await self._answer(*wanted)
            if self._wanted is wanted:
                self._wanted = None

    async def _answer(self, entry: KeyValue, lease: int) -> None:
        """Try to reach the others, and write down what came of it if the probe still stands."""
        try:
            probe = read(entry.value, Probe)
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
