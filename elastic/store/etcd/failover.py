"""The servers of one etcd, used one at a time: retries, failover, tokens, and the detection of a replaced store."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]

from elastic.errors import ConfigError, OutcomeUnknown, StoreDenied, StoreError, StoreUnavailable, WatchLost
from elastic.store.etcd.address import EtcdAddress
from elastic.store.etcd.endpoint import EndpointRotation, EtcdEndpoint, EtcdOptions
from elastic.store.etcd.errors import (
    NO_USERS,
    AnswerLate,
    ErrorMeaning,
    answer_of,
    details,
    meaning,
    refusal,
    unanswered,
)
from elastic.store.etcd.stubs import rpc
from elastic.store.etcd.tls_diagnosis import diagnose_tls, may_be_tls_error
from elastic.store.etcd.watch import Metadata, WatchStream

ENDPOINTS_MAX = 32
"""More servers than any etcd cluster has."""
REFUSED_PAUSE_S = 2.0
"""Pause before the client sends a password again that etcd has refused."""
PAUSE_S = (0.1, 0.3)
"""Bounds of the random pause between two attempts once every server has been tried."""

HASLEADER = ("hasleader", "true")
"""With this, a server without a leader refuses requests at once and ends its streams instead of delaying them."""

Method = Callable[[EtcdEndpoint], Any]
"""Returns a method of an endpoint's stub."""


class EtcdServers:
    """The servers of one etcd, and one client's state: its token, its watches, the revisions that it has seen."""

    def __init__(self, endpoints: Sequence[str], options: EtcdOptions, random_source: random.Random) -> None:
        """Parse the addresses without connecting. Raises `ConfigError`."""
        if not 0 < len(endpoints) <= ENDPOINTS_MAX:
            raise ConfigError(f"{len(endpoints)} etcd servers; name at least one and at most {ENDPOINTS_MAX}")
        addresses = {(address.target, address.tls): address for address in map(EtcdAddress.parse, endpoints)}
        self.options = options
        self.rotation = EndpointRotation(
            [EtcdEndpoint(address, options) for address in addresses.values()], random_source
        )
        self.revision_seen = 0
        self.token: str | None = None
        """"" if etcd has no users; None: the client has not authenticated yet, or the token is no longer valid."""
        self.last_error: StoreError | None = None
        self.streams: set[WatchStream] = set()
        self.closed = False
        self._random = random_source
        self._met = False
        """Whether any server has ever answered."""
        self._password = options.password
        self._refused: tuple[float, StoreError] | None = None
        """When etcd last refused the password, and the error."""
        self._authenticating = asyncio.Lock()
        self._background: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """End all streams and connections; every later call raises `StoreUnavailable`."""
        self.closed = True
        for stream in tuple(self.streams):
            stream.put(WatchLost("this client of etcd was closed"))
        tasks = tuple(self._background)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        for endpoint in self.rotation.endpoints:
            await endpoint.close()

    async def ask(self, method: Method, request: Any, *, repeat: bool = True, divisible: bool = False) -> Any:
        """Send a request with a linearizable answer to one server after the other until one answers.

        `repeat`: the request may be carried out twice.
        `divisible`: the caller can split the request, so an `AnswerLate` is raised instead of a further attempt.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + self.options.request_limit_s
        tries = 0
        while True:
            try:
                return await self._asked(method, request, repeat=repeat)
            except StoreUnavailable as error:
                final = self.closed or (divisible and isinstance(error, AnswerLate))
                if final or loop.time() >= ends_at:
                    raise
            tries += 1
            if tries >= len(self.rotation.endpoints):
                await asyncio.sleep(self._random.uniform(*PAUSE_S))

    async def _asked(self, method: Method, request: Any, *, repeat: bool) -> Any:
        """Make one attempt, and note the revision of the answer.

        The revision is ignored if another answer has shown in the meantime that the store was replaced: either store
        may have sent this answer, which must not end the new watches.
        """
        seen = self.revision_seen
        answer = await self._try(method, request, repeat=repeat)
        if self.revision_seen >= seen:  # Only a replaced store lowers it.
            self.observe_revision(answer.header.revision, seen)
        return answer

    async def _try(self, method: Method, request: Any, *, repeat: bool) -> Any:
        """Ask the current server once (twice if the token had expired)."""
        await self.authenticated()
        endpoint = self.usable()
        for last in (False, True):
            token = self.token
            try:
                answer = await self.call(method(endpoint), request, self.options.try_s)
            except grpc.aio.AioRpcError as error:
                match meaning(error):
                    case ErrorMeaning.STALE_TOKEN if self.options.user and not last:
                        await self._authenticate(endpoint, instead_of=token)
                        continue
                    case ErrorMeaning.REFUSED | ErrorMeaning.STALE_TOKEN:
                        endpoint.answered()
                        raise refusal(error, endpoint, self.options.user) from error
                    case ErrorMeaning.LOST if not repeat:
                        self.blame_for(error, endpoint)
                        text = f"etcd at {endpoint} took a write and did not answer: {error.details()}"
                        raise OutcomeUnknown(text) from error
                    case _:
                        raise await self._unanswered(error, endpoint) from error
            self._met = True
            endpoint.answered()
            return answer
        raise AssertionError("the second try returns or raises")

    async def call(self, method: Any, request: Any, limit_s: float, metadata: Metadata | None = None) -> Any:
        """Make one call, with the token."""
        return await answer_of(
            method(request, timeout=limit_s, metadata=self.metadata() if metadata is None else metadata)
        )

    def metadata(self) -> Metadata:
        """The metadata of every request and stream."""
        return (HASLEADER, ("token", self.token)) if self.token else (HASLEADER,)

    def forget(self, token: str | None) -> None:
        """Drop an invalid token, so that the next call gets another one, unless there already is one."""
        if self.token == token:
            self.token = None

    async def authenticated(self) -> None:
        """Get a token before the first call, if there is a user and etcd has users."""
        if self.options.user and self.token is None:
            await self._authenticate(self.usable(), instead_of=None)

    async def _authenticate(self, endpoint: EtcdEndpoint, *, instead_of: str | None) -> None:
        """Replace an old token, unless another call has done so in the meantime.

        The client does not repeat a refused password for `REFUSED_PAUSE_S`, unless there is a new one, because checking
        one costs etcd a tenth of a second of CPU time.
        """
        async with self._authenticating:
            if self.token not in (None, instead_of):
                return
            if self._refused is not None and asyncio.get_running_loop().time() < self._refused[0] + REFUSED_PAUSE_S:
                raise self._refused[1]
            try:
                await self._show_password(endpoint)
            except StoreDenied as error:
                if not self._learn_password():
                    self._refused = (asyncio.get_running_loop().time(), error)
                    raise
                await self._show_password(endpoint)

    async def _show_password(self, endpoint: EtcdEndpoint) -> None:
        request = rpc.AuthenticateRequest(name=self.options.user, password=self._password)
        try:
            answer = await self.call(endpoint.stub.Authenticate, request, self.options.try_s, metadata=())
        except grpc.aio.AioRpcError as error:
            if NO_USERS in details(error):
                self.token = ""
                return
            if meaning(error) is ErrorMeaning.REFUSED:
                raise refusal(error, endpoint, self.options.user) from error
            raise await self._unanswered(error, endpoint) from error
        self.token, self._refused = answer.token, None

    def _learn_password(self) -> bool:
        """Ask for the current password; return whether it is a new one."""
        if self.options.password_again is None:
            return False
        before, self._password = self._password, self.options.password_again() or self._password
        return self._password != before

    def usable(self) -> EtcdEndpoint:
        """Return the current server. Raises `StoreUnavailable` if this client was closed."""
        if self.closed:
            raise StoreUnavailable("this client of etcd was closed")
        return self.rotation.current

    def observe_revision(self, revision: int, seen: int) -> None:
        """Note the revision of a linearizable answer; `seen` is the highest revision seen before its request."""
        if revision >= seen:
            self.revision_seen = max(self.revision_seen, revision)
            return
        self.revision_seen = revision
        for stream in tuple(self.streams):
            stream.put(WatchLost(f"another store answers: it is at revision {revision}, {seen} was seen before"))
        self.streams.clear()  # they may still deliver changes of the former store, which no longer count

    def blame_for(self, error: Any, endpoint: EtcdEndpoint) -> StoreUnavailable:
        """Switch to another server after a gRPC error; return the error to raise."""
        result = unanswered(error, endpoint)
        self.rotate_away_from(endpoint, str(result), silent=isinstance(result, AnswerLate))
        return result

    async def _unanswered(self, error: Any, endpoint: EtcdEndpoint) -> StoreError:
        """Switch to another server; return the error to raise, which explains a problem with TLS or the secret.

        If no server has ever answered, and each has such a problem, it is a `StoreDenied`: repeating the request would
        not help. Later it may help, because certificates can be renewed.
        """
        result = self.last_error = self.blame_for(error, endpoint)
        if endpoint.passage is not None:
            endpoint.misfit, unreachable = endpoint.passage.refused, endpoint.passage.unreachable
            if unreachable:
                result = self.last_error = StoreUnavailable(f"etcd at {endpoint} does not answer: {unreachable}")
        elif may_be_tls_error(details(error)):
            endpoint.misfit = await diagnose_tls(endpoint.address, self.options.certificates)
            if endpoint.tls and not self.closed:  # The next connection reads the files again.
                self.keep(asyncio.create_task(endpoint.disconnect()))
        if not endpoint.misfit:
            return result
        text = f"etcd at {endpoint}: {endpoint.misfit}"
        final = not self._met and all(server.misfit for server in self.rotation.endpoints)
        return StoreDenied(text) if final else StoreUnavailable(text)

    def rotate_away_from(self, endpoint: EtcdEndpoint, why: str, *, silent: bool) -> None:
        """Switch from a server that did not answer to the next one, together with the watches.

        The watches of the only server stay: they share its connection with the next request. After several attempts
        without an answer, the connection is replaced; after a refused one, gRPC reconnects automatically.
        """
        renew = silent and endpoint.note_timeout()
        self.rotation.leave(endpoint)
        if renew or len(self.rotation.endpoints) > 1:
            for stream in tuple(self.streams):
                if stream.endpoint is endpoint:
                    stream.put(WatchLost(why))
        if renew and not self.closed:
            self.keep(asyncio.create_task(endpoint.disconnect()))

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Keep a reference to a task until it ends; `close` cancels it."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)
