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
from launcher.peers.authentication import authenticate_listener, read_line
from launcher.wire.link_messages import Bye, LinkRequest, Proof, Tried, Try, decode, encode

ATTEMPTS = 4
"""Connections that are made one after the other, without waiting for those before: packets of some may be lost."""
ANSWER_S = 0.1
"""What the question to another node, and its answer, may take in addition to the trial."""
CONNECT_S = 0.4
"""What it may take in addition to find a node that is not linked, and to connect to it."""


class Asking(Protocol):
    """What a trial needs of the links of this agent."""

    job_id: str
    node: str
    secret_text: str

    def is_linked(self, node: str) -> bool:
        """Tell whether this node has a link to another one."""

    async def ask_to_try(self, helper: str, question: Try) -> bool:
        """Ask a linked node whether it reaches another one. It may never answer."""


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
        for task in attempts:
            task.cancel()


async def try_peer(
    links: Asking,
    action: TryPeer,
    find: Callable[[str], Awaitable[LinkTarget | None]],
    unheard: Callable[[], frozenset[str]],
) -> PeerTried:
    """Try a silent node and ask others to try; the first that reaches it decides.

    `find(node)` is where another node listens, to which this agent has no link.
    """
    host, port = action.target.host, action.target.port
    question = Try(action.number, action.node, host, port, action.limit_s)

    async def own() -> tuple[str, bool | None]:
        secret, me = links.secret_text, links.node
        return me, await reaches(links.job_id, secret, me, action.node, host, port, action.limit_s)

    async def ask(helper: str) -> tuple[str, bool | None]:
        linked = links.is_linked(helper)
        with suppress(OSError, ValueError):  # `TimeoutError` is one, too.
            async with asyncio.timeout(action.limit_s + ANSWER_S + (0.0 if linked else CONNECT_S)):
                if linked:
                    return helper, await links.ask_to_try(helper, question)
                target = await find(helper)
                return helper, await _ask_unlinked(links, helper, target, question) if target is not None else None
        return helper, None

    trials = [asyncio.ensure_future(trial) for trial in (own(), *map(ask, action.helpers))]
    answers: dict[str, bool | None] = {}
    try:
        for finished in asyncio.as_completed(trials):
            name, reached = await finished
            answers[name] = reached
            if reached:
                break
    finally:
        for task in trials:
            task.cancel()
    reached_by = tuple(name for name, reached in answers.items() if reached)
    unreached_by = tuple(name for name, reached in answers.items() if reached is False and name != links.node)
    return PeerTried(action.number, action.node, reached_by, unreached_by, unheard())


async def _ask_unlinked(links: Asking, helper: str, target: LinkTarget, question: Try) -> bool | None:
    """Ask a node that is not linked, over a connection for this question; None: it does not answer.

    Raises `LinkError` for another node, `OSError` if it cannot be reached.
    """
    reader, writer = await connected(target.host, target.port)
    try:
        request = LinkRequest(links.node, handshake.new_nonce())
        expected = await authenticate_listener(reader, writer, links.job_id, helper, links.secret_text, request)
        writer.write(encode(Proof(expected.client)) + encode(question))
        while line := await read_line(reader):
            message = decode(line.removesuffix(b"\n"))
            if isinstance(message, Tried) and message.n == question.n:
                return message.reached
        return None
    finally:
        writer.write(encode(Bye()))  # Otherwise the helper would think that this process might be dead.
        writer.close()
