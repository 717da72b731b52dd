"""Checks which members this node can connect to, and why not to the others.

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
"""Simultaneous connection attempts."""
LIMIT_S = 4.0
"""Time limit of a check; members that were not tried by then are counted."""

ASK_LIMIT_S = 2.0
"""Time limit for the greeting of a node."""
MEMBERS_MAX = 1000
"""Members that each node tries for one probe, which limits the connections in a huge job."""

SILENT = f"no answer within {ASK_LIMIT_S:g} s; a firewall may drop the packets"
REASONS: Mapping[int, str] = {
    errno.ECONNREFUSED: "refused; a firewall rejects it, or its address belongs to another host",
    errno.EHOSTUNREACH: "no route to this host",
    errno.ENETUNREACH: "no route to this network",
    errno.ECONNRESET: "connection reset",
    errno.EINVAL: "no route to this address",
}


async def ask_greeting(host: str, port: int) -> Greeting:
    """Return the greeting of the agent at an address, without its nonce.

    Raises `OSError` if no process answers (`TimeoutError` after `ASK_LIMIT_S`, `socket.gaierror` for an unknown name),
    and `ValueError` if the process is not an agent.
    """
    async with asyncio.timeout(ASK_LIMIT_S):
        reader, writer = await connected(host, port)
        try:
            line = await reader.readline()
        except ValueError:
            line = b""  # It is longer than any greeting.
        finally:
            writer.transport.abort()
    greeting = read_greeting(line.removesuffix(b"\n"))
    return Greeting(greeting.job_id, greeting.node)


async def check_reachable(job_id: str, members: Mapping[str, Member], limit_s: float = LIMIT_S) -> ProbeAnswer:
    """Connect to each of these members, by node ID, and return the results.

    The answer counts every member: as reached, as unreached with a reason, or as untried for lack of time.
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
    """Return why this node cannot connect to a member, "" if it can."""
    if not member.link:
        return "its agent has no open port"
    try:
        greeting = await ask_greeting(member.host, member.link)
    except TimeoutError:
        return SILENT
    except (OSError, ValueError) as error:
        return reason(error, member.host)
    if greeting != Greeting(job_id, node):
        other = f"{greeting.node} of job {greeting.job_id}"
        return f"another node answers there ({other}); two hosts may have the same address"
    return ""


def reason(error: OSError | ValueError, host: str) -> str:
    """Return, in words, why this node cannot connect to the agent on `host`."""
    if isinstance(error, socket.gaierror):
        return f"this host cannot resolve the name {host}; add it to DNS or /etc/hosts, or use --host ADDRESS there"
    if isinstance(error, OSError):
        return REASONS.get(error.errno or 0, error.strerror or str(error))
    return str(error)


async def read_member(store: Store, keys: JobKeys, node: str) -> Member | None:
    """Return the registration of a node; None if it is missing or damaged, which is reported elsewhere."""
    key = keys.member(node)
    with suppress(StoreError, DocumentError):
        for entry in (await store.list(KeyRange.key(key))).entries:
            found: Member = decode(keys, key, entry.value)
            return found
    return None


async def find_listener(store: Store, keys: JobKeys, node: str) -> LinkTarget | None:
    """Return where the agent of a node listens; None if it is gone or does not listen, or the store fails."""
    member = await read_member(store, keys, node)
    return LinkTarget(member.host, member.link, 0) if member is not None and member.link else None


def neighbours_of(generation: Generation, node: str) -> tuple[str, ...]:
    """Return the members that `node` checks; none if it is not in the generation."""
    m_id, names = generation.index(node), [place.node for place in generation.members]
    if m_id is None:
        return ()
    wanted = dict.fromkeys((names[0], names[m_id - 1], names[(m_id + 1) % len(names)]))
    return tuple(name for name in wanted if name != node)


class StartupReachability:
    """Checks once each member that becomes a neighbour of this node in the order of ranks."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._seen: set[str] = set()

    async def check_neighbours(self, generation: Generation) -> None:
        """Log a warning for each neighbour that this node cannot connect to."""
        for name in neighbours_of(generation, self._node):
            if name in self._seen:
                continue
            self._seen.add(name)
            member = await read_member(self._store, self._keys, name)
            why = await unreachable_reason(self._keys.job_id, name, member) if member is not None else ""
            if why:
                self._agent_log.warning(
                    f"this node cannot connect to {name}: {why}; if workers wait for each other, elastic-ctl doctor "
                    "shows every blocked connection"
                )


class ProbeResponder:
    """Answers each probe once, one at a time; of the probes that come meanwhile it answers only the newest."""

    def __init__(self, store: Store, keys: JobKeys, node: str, agent_log: AgentLog) -> None:
        self._store = store
        self._keys = keys
        self._node = node
        self._agent_log = agent_log
        self._seen: KeyValue | None = None
        self._wanted: tuple[KeyValue, int] | None = None
        """The probe to answer now or next, and the lease."""
        self._answered = ""

    def asked(self, entries: Mapping[str, KeyValue], registered: int | None, lease: int | None) -> bool:
        """Check for a new probe; True asks the caller to call `answer`.

        A probe that is older than the registration (its revision; None: not registered) was not meant for this node.
        The answer is written under `lease`.
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
        """Try to connect to the other members, and write the result if the probe still exists."""
        try:
            probe = read(entry.value, Probe)
            answer = await check_reachable(self._keys.job_id, await self._others())
            key = self._keys.answer(probe.id, self._node)
            then: list[Operation] = [Put(key, encode(answer), lease)]
            if self._answered not in ("", key):
                then.append(Delete(KeyRange.key(self._answered)))
            done = await self._store.txn([Compare.modified(self._keys.probe, entry.mod_revision)], then)
        except DocumentError as error:
            self._agent_log.debug(f"cannot parse a probe: {error}")
        except StoreError as error:
            self._agent_log.debug(f"cannot answer a probe: {error}")
        else:
            self._answered = key if done.succeeded else self._answered
            bad = f", not {len(answer.unreached)}" if answer.unreached else ""
            self._agent_log.debug(f"elastic-ctl doctor: this node can connect to {answer.reached} others{bad}")

    async def _others(self) -> dict[str, Member]:
        """Return every other member; in a huge job those that follow this node by name, in a circle."""
        listing = await self._store.list(KeyRange.prefix(self._keys.members))
        others: dict[str, Member] = {}
        for entry in listing.entries:
            node = entry.key.removeprefix(self._keys.members)
            if node == self._node:
                continue
            with suppress(DocumentError):  # Damaged records are reported elsewhere.
                others[node] = decode(self._keys, entry.key, entry.value)
        names = sorted(others)
        after = sum(name < self._node for name in names)
        return {name: others[name] for name in [*names[after:], *names[:after]][:MEMBERS_MAX]}
