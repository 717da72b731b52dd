"""Refreshes of leases at one server, over one stream.

Opening a stream for each refresh costs more CPU time than the refresh itself, and the agent of an undisturbed job does
little else. A stream carries one refresh at a time, so that an answer belongs to the request before it; a refresh that
is not answered, or is cancelled, closes its stream.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.store.etcd.errors import channel_closed_error, deadline_error
from elastic.store.etcd.stubs import rpc


class KeepaliveStream:
    """Keeps a stream open from one refresh to the next."""

    def __init__(self) -> None:
        """Create the object; the first `ask` opens the stream."""
        self._kept: Any = None

    async def ask(self, stub: Any, lease_id: int, limit_s: float, metadata: Any) -> Any:
        """Refresh a lease and return the answer. If the stream broke since the last refresh, open another one.

        Raises `AioRpcError`, and `CancelledError` if the channel was closed in the meantime.
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
        """Close the stream."""
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
        self.close()  # A simultaneous refresh may have opened one too.
        self._kept = call
        return answer
