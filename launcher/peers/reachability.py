"""Which members can be reached from here, why the others cannot, and the check of that before workers start."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Mapping
from contextlib import suppress

from elastic.core.keys import JobKeys
from elastic.core.kv import KeyRange
from elastic.core.model import Generation, Member
from elastic.core.view_reader import decode
from elastic.errors import DocumentError, StoreError
from elastic.store.protocol import Store
from launcher.logs.logger import AgentLog
from launcher.peers import listener
from launcher.wire.link_messages import Greeting
from launcher.wire.probe_messages import UNREACHED_MAX, WORDS_MAX, ProbeAnswer, UnreachedMember

AT_ONCE = 64
"""Connections that are tried at the same time."""
LIMIT_S = 4.0
"""How long all of it may take; who was not tried by then is counted."""

SILENT = f"no answer within {listener.ASK_LIMIT_S:g} s; a firewall may drop what is sent there"
REASONS: Mapping[int, str] = {
    errno.ECONNREFUSED: "refused; a firewall rejects it, or its address leads to another machine",
    errno.EHOSTUNREACH: "no way to this host",
    errno.ENETUNREACH: "no route to this network",
    errno.ECONNRESET: "cut off at once",
    errno.EINVAL: "no route to this address",
}


async def check_reachable(job_id: str, members: Mapping[str, Member], limit_s: float = LIMIT_S) -> ProbeAnswer:
    """Connect to each of these members, by id; what came of it.

    Every member counts: it is reached, or is not for a reason, or there was no time to try it.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    unreached: list[UnreachedMember] = []
    reached = 0

    async def check(node: str, member: Member) -> None:
        nonlocal reached
        async with gate:
            why = await unreachable_reason(job_id, node, member)
        if why:
            unreached.append(UnreachedMember(node[:WORDS_MAX], why[:WORDS_MAX]))
        else:
            reached += 1

    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for node, member in members.items():
                group.create_task(check(node, member))
    except TimeoutError:
        pass
    untried = len(members) - reached - len(unreached)
    return ProbeAnswer(reached, tuple(sorted(unreached, key=lambda member: member.node)[:UNREACHED_MAX]), untried)


async def unreachable_reason(job_id: str, node: str, member: Member) -> str:
    """Why this member cannot be reached from here, "" if it can."""
    if not member.link:
        return "it does not listen"
    try:
        greeting = await listener.ask_greeting(member.host, member.link)
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
