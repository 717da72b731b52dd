"""Finds out whether a silent node answers a new connection: this agent tries, and asks others to try."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Protocol

from elastic._net import connected, resolved
from elastic.auth import handshake
from elastic.core.agent.actions import LinkTarget, TryPeer
from elastic.core.agent.events import PeerTried
from launcher.net.acceptor import OUT_OF
from launcher.peers.authentication import authenticate_listener, read_line
from launcher.wire.link_messages import Bye, LinkRequest, Proof, Tried, Try, decode, encode

ATTEMPTS = 4
"""Connections that start one after the other without waiting for each other: packets of some may be lost."""
ROUND_TRIPS = 4
"""Round trips to the silent node that are added to the time limit: the handshake takes three."""
ROUND_TRIPS_MAX_S = 0.6
"""Maximum of that addition."""
ANSWER_S = 0.1
"""Additional time for the request to another node and its answer, beyond the trial and a round trip."""
CONNECT_S = 0.4
"""Additional time to find a node that is not linked, and to connect to it."""


class Asking(Protocol):
    """What a trial needs from the links of this agent."""

    job_id: str
    node: str
    secret_text: str

    def is_linked(self, node: str) -> bool:
        """Return whether this node has a link to another one."""

    def round_trip_s(self, node: str) -> float:
        """Return the round-trip time that the kernel has measured on a link with a node; 0.0 without a link."""

    async def ask_to_try(self, helper: str, question: Try) -> bool:
        """Ask a linked node whether it can connect to another one. It may never answer."""


async def reaches(job_id: str, secret: str, me: str, node: str, host: str, port: int, limit_s: float) -> bool | None:
    """Return whether a node's agent answers a new connection within `limit_s`, and proves that it knows the secret.

    None: this host could not try, because the name is not resolved in time or no socket is left. That says nothing
    about the node.
    """
    until = asyncio.get_running_loop().time() + limit_s
    try:
        async with asyncio.timeout_at(until):
            addresses = await resolved(host)
    except (OSError, UnicodeError):  # `TimeoutError` is an `OSError`.
        return None

    async def attempt(number: int) -> bool | None:
        await asyncio.sleep(number * limit_s / ATTEMPTS)
        try:
            reader, writer = await connected(addresses[number % len(addresses)], port)
            try:
                request = LinkRequest(me, handshake.new_nonce())
                await authenticate_listener(reader, writer, job_id, node, secret, request)
            finally:
                writer.transport.abort()
        except OSError as error:
            return None if error.errno in OUT_OF else False
        except ValueError:
            return False
        return True

    attempts = [asyncio.ensure_future(attempt(number)) for number in range(ATTEMPTS)]
    answers: list[bool | None] = []
    try:
        async with asyncio.timeout_at(until):
            for finished in asyncio.as_completed(attempts):
                answers.append(await finished)
                if answers[-1]:
                    return True
        return False if False in answers else None
    except TimeoutError:
        return False
    finally:
        for task in attempts:
            task.cancel()


async def try_peer(
    links: Asking,
    action: TryPeer,
    find: Callable[[str], Awaitable[LinkTarget | None]],
    unheard: Callable[[], frozenset[str]],
) -> PeerTried | None:
    """Try a silent node and ask others to try; the first success decides. None: none of them could try.

    `find(node)` returns where a node listens to which this agent has no link.
    """
    host, port = action.target.host, action.target.port
    limit_s = action.limit_s + min(ROUND_TRIPS * links.round_trip_s(action.node), ROUND_TRIPS_MAX_S)
    question = Try(action.number, action.node, host, port, limit_s)

    async def own() -> tuple[str, bool | None]:
        secret, me = links.secret_text, links.node
        return me, await reaches(links.job_id, secret, me, action.node, host, port, limit_s)

    async def ask(helper: str) -> tuple[str, bool | None]:
        linked = links.is_linked(helper)
        with suppress(OSError, ValueError):  # `TimeoutError` is an `OSError`.
            more_s = links.round_trip_s(helper) if linked else CONNECT_S
            async with asyncio.timeout(limit_s + ANSWER_S + more_s):
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
    if not answers or all(reached is None for reached in answers.values()):
        return None
    reached_by = tuple(name for name, reached in answers.items() if reached)
    unreached_by = tuple(name for name, reached in answers.items() if reached is False and name != links.node)
    return PeerTried(action.number, action.node, reached_by, unreached_by, unheard())


async def _ask_unlinked(links: Asking, helper: str, target: LinkTarget, question: Try) -> bool | None:
    """Ask a node that is not linked, over a new connection; None: it does not answer.

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
        writer.write(encode(Bye()))  # Otherwise the helper would suspect that this process is dead.
        writer.close()
