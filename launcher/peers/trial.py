"""Whether a silent node answers a new connection: this agent tries, and asks others to try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from elastic._net import connected
from elastic.auth import handshake
from elastic.core.agent.actions import LinkTarget, TryPeer
from elastic.core.agent.events import PeerTried
from launcher.peers.authentication import authenticate_listener
from launcher.wire.link_messages import LinkRequest, Try

ATTEMPTS = 4
"""Connections that are made one after the other, without waiting for those before: packets of some may be lost."""
ANSWER_S = 0.1
"""What the question to another node, and its answer, may take beside the trial."""


class Asking(Protocol):
    """What a trial needs of the links of this agent."""

    job_id: str
    node: str
    secret_text: str

    async def ask_to_try(self, helper: str, target: LinkTarget | None, question: Try) -> bool | None:
        """Ask another node, over a link to it that is there or is made; None: it does not answer."""


async def reaches(job_id: str, secret: str, me: str, node: str, host: str, port: int, limit_s: float) -> bool:
    """Tell whether a node's agent answers a new connection within `limit_s`, and proves that it knows the secret."""

    async def attempt(after_s: float) -> bool:
        await asyncio.sleep(after_s)
        with suppress(OSError, ValueError):
            reader, writer = await connected(host, port)
            try:
                request = LinkRequest(me, handshake.new_nonce())
                await authenticate_listener(reader, writer, job_id, node, secret, request)
            finally:
                writer.transport.abort()
            return True
        return False

    attempts = [asyncio.ensure_future(attempt(number * limit_s / ATTEMPTS)) for number in range(ATTEMPTS)]
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                for finished in asyncio.as_completed(attempts):
                    if await finished:
                        return True
        return False
    finally:
        for one in attempts:
            one.cancel()


async def try_peer(
    links: Asking,
    action: TryPeer,
    find: Callable[[str], Awaitable[LinkTarget | None]],
    unheard: Callable[[], frozenset[str]],
) -> PeerTried:
    """Try a silent node and ask others to try; whoever reaches it first decides.

    `find(node)` is where another node listens, if this agent has no link to it.
    """
    host, port = action.target.host, action.target.port
    question = Try(action.number, action.node, host, port, action.limit_s)

    async def own() -> tuple[str, bool | None]:
        secret, me = links.secret_text, links.node
        return me, await reaches(links.job_id, secret, me, action.node, host, port, action.limit_s)

    async def ask(helper: str) -> tuple[str, bool | None]:
        with suppress(TimeoutError):
            async with asyncio.timeout(action.limit_s + ANSWER_S):
                return helper, await links.ask_to_try(helper, await find(helper), question)
        return helper, None

    trials = [asyncio.ensure_future(one) for one in (own(), *map(ask, action.helpers))]
    answers: dict[str, bool | None] = {}
    try:
        for finished in asyncio.as_completed(trials):
            name, reached = await finished
            answers[name] = reached
            if reached:
                break
    finally:
        for one in trials:
            one.cancel()
    reached_by = tuple(name for name, reached in answers.items() if reached)
    unreached_by = tuple(name for name, reached in answers.items() if reached is False and name != links.node)
    return PeerTried(action.number, action.node, reached_by, unreached_by, unheard())
