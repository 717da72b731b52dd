"""The refreshes of leases at one server: one stream for all of them.

To open a stream for each costs more processor time than the refresh itself, and the agent of an undisturbed training
does little else. A stream carries one refresh at a time, so that an answer belongs to the request before it; a refresh
that was not answered, or was given up, takes its stream with it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.store.etcd.errors import channel_closed_error, deadline_error
from elastic.store.etcd.stubs import rpc


class KeepaliveStream:
    """Keeps the stream open from one refresh to the next."""

    def __init__(self) -> None:
        """No stream yet."""
        self._kept: Any = None

    async def ask(self, stub: Any, lease_id: int, limit_s: float, metadata: Any) -> Any:
        """The answer. A stream that broke since the last refresh is no failure: another is opened.

        Raises `AioRpcError`, and `CancelledError` when the channel was closed meanwhile.
        """
        stream, self._kept = self._kept, None
        try:
            async with asyncio.timeout(limit_s):
                if stream is not None:
                    with suppress(grpc.aio.AioRpcError):
                        return await self._through(stream, lease_id)
                return await self._through(stub.LeaseKeepAlive(metadata=metadata), lease_id)
        except TimeoutError:
            raise deadline_error() from None

    def close(self) -> None:
        """Give up the stream."""
        if self._kept is not None:
            self._kept.cancel()
            self._kept = None

    async def _through(self, call: Any, lease_id: int) -> Any:
        try:
            with suppress(asyncio.InvalidStateError):  # the call has ended; the read says how
                await call.write(rpc.LeaseKeepAliveRequest(ID=lease_id))
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise channel_closed_error()
        except BaseException:
            call.cancel()
            raise
        self.close()  # Another refresh at the same time has opened one, too.
        self._kept = call
        return answer
