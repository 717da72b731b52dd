"""etcd as a `Store`: failover between servers, timeouts, retries, and the meaning of unanswered requests.

The client uses one server at a time. If it does not answer, requests, refreshes and watches move to the next one
together. The client repeats what is safe to repeat: reads, refreshes, revocations, grants (a grant whose answer was
lost leaves a lease without keys, which expires), and writes that were certainly not carried out. It does not repeat a
write whose answer was lost, but raises `OutcomeUnknown`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from math import ceil
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.core.kv import (
    NOW,
    Compare,
    EndpointStatus,
    KeyRange,
    Lease,
    Listing,
    Operation,
    RefreshResult,
    TxnResult,
    WatchBatch,
    check_txn,
    merged,
)
from elastic.errors import StoreDenied, StoreError, StoreUnavailable, TooLarge, WatchLost
from elastic.store.etcd.codec import compare_message, entry, operation_message, span
from elastic.store.etcd.endpoint import EtcdEndpoint, EtcdOptions
from elastic.store.etcd.errors import AnswerLate, ErrorMeaning, LeaseNotFound, answer_of, meaning, refusal, unanswered
from elastic.store.etcd.failover import HASLEADER, EtcdServers
from elastic.store.etcd.paging import in_pages
from elastic.store.etcd.stubs import rpc
from elastic.store.etcd.watch import WatchStream


class EtcdStore:
    """A client of etcd v3. It connects at the first call; use it within one event loop."""

    def __init__(
        self,
        endpoints: Sequence[str],
        *,
        options: EtcdOptions | None = None,
        random_source: random.Random | None = None,
    ) -> None:
        """Read the addresses (see `Address.parse`); `random_source` chooses the first server and the pauses."""
        self._servers = EtcdServers(endpoints, options or EtcdOptions(), random_source or random.Random())

    @property
    def revision_seen(self) -> int:
        """The highest revision of any linearizable answer or watch; starts again with another store."""
        return self._servers.revision_seen

    @property
    def last_error(self) -> StoreError | None:
        """The error of the newest attempt without an answer; None if every attempt had one."""
        return self._servers.last_error

    async def list(
        self,
        range: KeyRange,  # noqa: A002
        *,
        keys_only: bool = False,
        limit: int = 0,
    ) -> Listing:
        """See `Store.list`."""
        request = rpc.RangeRequest(keys_only=keys_only, limit=limit, **span(range))
        try:
            answer = await self._ask_range(request, divisible=True)
        except (TooLarge, AnswerLate):
            revision, pairs = await in_pages(self._ask_range, request)
            return Listing(revision, tuple(map(entry, pairs)))
        return Listing(answer.header.revision, tuple(map(entry, answer.kvs)))

    async def _ask_range(self, request: Any, *, divisible: bool = False) -> Any:
        return await self._servers.ask(lambda endpoint: endpoint.stub.Range, request, divisible=divisible)

    async def txn(self, compares: Sequence[Compare], then: Sequence[Operation]) -> TxnResult:
        """See `Store.txn`. The client never repeats a transaction that etcd may have received."""
        check_txn(compares, then)
        request = rpc.TxnRequest(compare=map(compare_message, compares), success=map(operation_message, then))
        answer = await self._servers.ask(lambda endpoint: endpoint.stub.Txn, request, repeat=False)
        return TxnResult(answer.succeeded, answer.header.revision)

    async def watch(self, ranges: Sequence[KeyRange], from_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """See `Store.watch`. The changes of a revision to several ranges may arrive in two batches."""
        if from_revision < NOW:
            raise ValueError(f"a watch from revision {from_revision}; the first is 1")
        await self._servers.authenticated()
        seen = self.revision_seen if from_revision == NOW else from_revision - 1
        stream = WatchStream(self._servers.usable(), merged(ranges), from_revision, seen, self._servers.options.try_s)
        self._servers.streams.add(stream)
        arriving = stream.batches(self._servers.metadata(), lambda: self._check_same(ranges[0], seen))
        try:
            async with aclosing(arriving):
                async for batch in arriving:
                    if stream in self._servers.streams:
                        self._servers.revision_seen = max(self._servers.revision_seen, batch.revision)
                    yield batch
        except StoreError as error:
            if stream.broken:
                self._servers.rotate_away_from(stream.endpoint, str(error), silent=isinstance(error, StoreUnavailable))
            raise
        finally:
            self._servers.streams.discard(stream)

    async def _check_same(self, watched: KeyRange, revision: int) -> None:
        """Raise `WatchLost` unless the store is at least at `revision`; a follower may only lag.

        This reads a watched key, because the user may have no permission for any other.
        """
        listing = await self.list(KeyRange.key(watched.start), keys_only=True)
        if listing.revision < revision:
            raise WatchLost(f"another store answers: it is at revision {listing.revision}, {revision} was seen before")

    async def grant(self, ttl_s: float) -> Lease:
        """See `Store.grant`. The client repeats it if the answer was lost: a lease without keys expires."""
        answer = await self._servers.ask(
            lambda endpoint: endpoint.stub.LeaseGrant, rpc.LeaseGrantRequest(TTL=ceil(ttl_s))
        )
        return Lease(answer.ID, float(answer.TTL))

    async def revoke(self, lease_id: int) -> None:
        """See `Store.revoke`."""
        request = rpc.LeaseRevokeRequest(ID=lease_id)
        with suppress(LeaseNotFound):
            await self._servers.ask(lambda endpoint: endpoint.stub.LeaseRevoke, request)

    async def refresh(self, lease_id: int) -> RefreshResult:
        """See `Store.refresh`. Asks the current server, after a moment also the next one; the first answer counts.

        Takes at most `hedge_after_s + refresh_try_s`. If a server does not answer in time, all requests and watches
        move away from it; a server that is only slower than the other stays.
        """
        await self._servers.authenticated()
        self._servers.usable()
        error: StoreError | None = None
        pending: set[asyncio.Task[RefreshResult | StoreError]] = set()
        servers = list(self._servers.rotation.current_and_next())
        while servers or pending:
            limit_s = None
            if servers:
                task = asyncio.create_task(self._refresh_at(servers.pop(0), lease_id))
                self._servers.keep(task)
                pending.add(task)
                limit_s = self._servers.options.hedge_after_s if servers else None
            done, pending = await asyncio.wait(pending, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                result = task.result()
                if not isinstance(result, StoreError):
                    return result
                if error is None or isinstance(result, StoreDenied):
                    error = result
        assert error is not None  # every try ended with one
        raise error

    async def statuses(self) -> tuple[EndpointStatus, ...]:
        """See `Store.statuses`."""
        await self._servers.authenticated()
        found = await asyncio.gather(*(self._status(endpoint) for endpoint in self._servers.rotation.endpoints))
        return tuple(status for status in found if status is not None)

    async def close(self) -> None:
        """See `Store.close`. Every later call raises `StoreUnavailable`."""
        await self._servers.close()

    async def _refresh_at(self, endpoint: EtcdEndpoint, lease_id: int) -> RefreshResult | StoreError:
        """Make one attempt to refresh at one server; return errors, because the other server may still answer."""
        token, limit_s = self._servers.token, self._servers.options.refresh_try_s
        try:
            answer = await answer_of(
                endpoint.refreshing.ask(endpoint.stub, lease_id, limit_s, self._servers.metadata())
            )
        except grpc.aio.AioRpcError as error:
            if meaning(error) is ErrorMeaning.STALE_TOKEN and self._servers.options.user:
                self._servers.forget(token)
                return unanswered(error, endpoint)
            if meaning(error) in (ErrorMeaning.REFUSED, ErrorMeaning.STALE_TOKEN):
                return refusal(error, endpoint, self._servers.options.user)
            return self._servers.blame_for(error, endpoint)
        endpoint.answered()
        return RefreshResult(float(answer.TTL), answer.header.revision)

    async def _status(self, endpoint: EtcdEndpoint) -> EndpointStatus | None:
        """Return the status of one server, even of one without a leader; None if it does not answer."""
        servers = self._servers
        metadata = [pair for pair in servers.metadata() if pair != HASLEADER]
        try:
            answer = await servers.call(endpoint.stub.Status, rpc.StatusRequest(), servers.options.try_s, metadata)
        except grpc.aio.AioRpcError as error:
            if meaning(error) is ErrorMeaning.REFUSED:
                raise refusal(error, endpoint, servers.options.user) from error
            return None
        leads = bool(answer.leader) and answer.leader == answer.header.member_id
        return EndpointStatus(str(endpoint), answer.version, answer.header.revision, leads)
