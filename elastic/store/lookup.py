"""The addresses of a name, and a connection to one of them."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import threading
from contextlib import suppress
from ssl import SSLContext


async def resolved(host: str) -> tuple[str, ...]:
    """The addresses of a name.

    It is looked up in a thread that nobody waits for at the end: a resolver that is away must not hold an agent back,
    as the event loop's own threads would.
    """
    if _is_address(host):
        return (host,)
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[str, ...]] = loop.create_future()

    def tell(found: tuple[str, ...] | OSError | UnicodeError) -> None:
        if answer.done():
            return
        if isinstance(found, tuple):
            answer.set_result(found)
        else:
            answer.set_exception(found)

    def look() -> None:
        found: tuple[str, ...] | OSError | UnicodeError
        try:
            known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            found = tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in known))
        except (OSError, UnicodeError) as error:
            found = error
        with suppress(RuntimeError):  # The loop has ended.
            loop.call_soon_threadsafe(tell, found)

    try:
        threading.Thread(target=look, name="resolver", daemon=True).start()
    except RuntimeError as error:  # This machine has no thread left.
        raise OSError(errno.EAGAIN, str(error)) from error
    return await answer


async def connected(
    host: str, port: int, context: SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to the first address of a host that takes one, over TLS with a context. Raises `OSError`."""
    try:
        found = await resolved(host)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    name = host if context is not None else None
    for address in found[:-1]:
        with suppress(ConnectionRefusedError):
            return await asyncio.open_connection(address, port, ssl=context, server_hostname=name)
    return await asyncio.open_connection(found[-1], port, ssl=context, server_hostname=name)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
