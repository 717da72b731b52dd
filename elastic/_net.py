"""Name resolution, connections to one of several addresses, and the process at the other end of a Unix socket."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import struct
import threading
from concurrent.futures import Future
from contextlib import suppress
from ssl import SSLContext
from typing import Final

TRIES_LIMIT_S: Final = 0.5
"""Seconds that all addresses of a name except the last have together to answer: a caller's shortest timeout is 1 s."""
TRY_LIMIT_MIN_S: Final = 0.25
"""Seconds that each address has in any case: one round trip around the world."""

_CREDENTIALS: Final = struct.Struct("3i")


async def resolved(host: str) -> tuple[str, ...]:
    """Return the addresses of a name. Raises `OSError`, or `UnicodeError` for an invalid name.

    A daemon thread looks up the name: an unresponsive resolver must not delay the exit of an agent, as a thread of the
    event loop's executor would.
    """
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return (host,)
    answer: Future[tuple[str, ...]] = Future()
    answer.set_running_or_notify_cancel()  # The future cannot be cancelled now, so the thread may set its result.

    def look() -> None:
        try:
            known = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answer.set_result(tuple(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in known)))
        except (OSError, UnicodeError) as error:
            answer.set_exception(error)

    try:
        threading.Thread(target=look, name="resolver", daemon=True).start()
    except RuntimeError as error:  # No more threads can be started.
        raise OSError(errno.EAGAIN, str(error)) from error
    return await asyncio.wrap_future(answer)


async def connected(
    host: str, port: int, context: SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address of a host that accepts, over TLS if `context` is given. Raises `OSError`.

    An address that cannot be reached, or that does not answer soon, is skipped; the result of the last address is
    final. An error of TLS is raised at once, because the server was reached.
    """
    try:
        addresses = await resolved(host)
    except UnicodeError as error:
        raise OSError(str(error)) from error
    limit_s = max(TRY_LIMIT_MIN_S, TRIES_LIMIT_S / max(1, len(addresses) - 1))
    for address in addresses[:-1]:
        with suppress(OSError):  # `TimeoutError` is one, too.
            async with asyncio.timeout(limit_s):
                there = await connected_socket(address, port)
            break
    else:
        there = await connected_socket(addresses[-1], port)
    # From here on asyncio closes the socket, whatever happens.
    return await asyncio.open_connection(sock=there, ssl=context, server_hostname=host if context is not None else None)


async def connected_socket(address: str, port: int) -> socket.socket:
    """Return a non-blocking socket that is connected to an address (not a name). Raises `OSError`."""
    there = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        there.setblocking(False)
        await asyncio.get_running_loop().sock_connect(there, (address, port))
    except BaseException:  # Also on cancellation: no other code can close this socket.
        there.close()
        raise
    return there


def peer_process(connected: socket.socket) -> tuple[int, int]:
    """Return the pid and the uid of the process that connected a Unix socket; pid 0 if its PID namespace is hidden."""
    pid, uid, _ = _CREDENTIALS.unpack(connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    return pid, uid
