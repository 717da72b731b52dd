"""The servers of one etcd, asked one at a time: retries, moving on, tokens, and what their answers' revisions tell."""

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
"""More servers than any etcd has."""
REFUSED_PAUSE_S = 2.0
"""Before a password that etcd has refused is shown to it again."""
PAUSE_S = (0.1, 0.3)
"""Between two tries, once every server has been tried: a random time between these."""

HASLEADER = ("hasleader", "true")
"""A server that lost its leader refuses at once and ends its streams, where it would leave us waiting."""

Method = Callable[[EtcdEndpoint], Any]
"""Takes the wanted method from an endpoint's stubs."""


class EtcdServers:
    """Every server of one etcd, and what one client of it knows: its token, its streams, the revisions it saw."""

    def __init__(self, endpoints: Sequence[str], options: EtcdOptions, random_source: random.Random) -> None:
        """Read the addresses; nothing is connected yet."""
        if not 0 < len(endpoints) <= ENDPOINTS_MAX:
            raise ConfigError(f"{len(endpoints)} etcd servers; name at least one and at most {ENDPOINTS_MAX}")
        addresses = {(address.target, address.tls): address for address in map(EtcdAddress.parse, endpoints)}
        self.options = options
        self.rotation = EndpointRotation(
            [EtcdEndpoint(address, options) for address in addresses.values()], random_source
        )
        self.revision_seen = 0
        self.token: str | None = None
        """"" where etcd knows no users; None: etcd was not asked yet, or the token is no longer good."""
        self.last_error: StoreError | None = None
        self.streams: set[WatchStream] = set()
        self.closed = False
        self._random = random_source
        self._met = False
        """Whether any server has ever answered."""
        self._password = options.password
        self._refused: tuple[float, StoreError] | None = None
        """When etcd last refused the password, and the error that said so."""
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
        """Send a request whose answer is linearizable, to one server after the other until one answers.

        `repeat`: doing it twice does no harm.
        `divisible`: the caller can ask for less at once, so that it is not asked again after an `AnswerLate`.
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
        """Try once, and note the revision of the answer.

        It is not noted if another answer has shown a replacement meanwhile: either store may have sent this answer,
        and the new streams must not be ended by it.
        """
        seen = self.revision_seen
        answer = await self._try(method, request, repeat=repeat)
        if self.revision_seen >= seen:  # Only a replacement takes it back.
            self.observe_revision(answer.header.revision, seen)
        return answer

    async def _try(self, method: Method, request: Any, *, repeat: bool) -> Any:
        """Ask the current server once (twice, if only the token was too old)."""
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
        """One call, with the token."""
        return await answer_of(
            method(request, timeout=limit_s, metadata=self.metadata() if metadata is None else metadata)
        )

    def metadata(self) -> Metadata:
        """What goes with every request and stream."""
        return (HASLEADER, ("token", self.token)) if self.token else (HASLEADER,)

    def forget(self, token: str | None) -> None:
        """A token is no longer good: the next call gets another, unless that has happened meanwhile."""
        if self.token == token:
            self.token = None

    async def authenticated(self) -> None:
        """Have a token before the first call, if there is a user and etcd knows users."""
        if self.options.user and self.token is None:
            await self._authenticate(self.usable(), instead_of=None)

    async def _authenticate(self, endpoint: EtcdEndpoint, *, instead_of: str | None) -> None:
        """Get a token in place of an old one, unless another call did so meanwhile.

        A password that is refused is not shown again for `REFUSED_PAUSE_S`, unless there is a new one: to check one
        costs etcd a tenth of a second of processor time.
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
        """Ask for the password that counts now; whether it is another one."""
        if self.options.password_again is None:
            return False
        before, self._password = self._password, self.options.password_again() or self._password
        return self._password != before

    def usable(self) -> EtcdEndpoint:
        """The current server; raises when this client was closed."""
        if self.closed:
            raise StoreUnavailable("this client of etcd was closed")
        return self.rotation.current

    def observe_revision(self, revision: int, seen: int) -> None:
        """Note the revision of a linearizable answer; `seen` is what had been seen when it was asked for."""
        if revision >= seen:
            self.revision_seen = max(self.revision_seen, revision)
            return
        self.revision_seen = revision
        for stream in tuple(self.streams):
            stream.put(WatchLost(f"another store answers: it is at revision {revision}, {seen} was seen before"))
        self.streams.clear()  # what they still deliver is the other store's, and counts no longer

    def blame_for(self, error: Any, endpoint: EtcdEndpoint) -> StoreUnavailable:
        """Leave a server for a grpc error; returns the error to raise."""
        result = unanswered(error, endpoint)
        self.rotate_away_from(endpoint, str(result), silent=isinstance(result, AnswerLate))
        return result

    async def _unanswered(self, error: Any, endpoint: EtcdEndpoint) -> StoreError:
        """Leave a server for a grpc error; the error to raise. It names TLS or the secret if they are the reason.

        While no server has ever answered, and each is found to be of another mind about these, it is a `StoreDenied`:
        to ask again would not help. Later it may, for certificates are renewed.
        """
        result = self.last_error = self.blame_for(error, endpoint)
        if endpoint.passage is not None:
            endpoint.misfit, trouble = endpoint.passage.refused, endpoint.passage.trouble
            if trouble:
                result = self.last_error = StoreUnavailable(f"etcd at {endpoint} does not answer: {trouble}")
        elif may_be_tls_error(details(error)):
            endpoint.misfit = await diagnose_tls(endpoint.address, self.options.certificates)
            if endpoint.tls and not self.closed:  # The next connection has the files as they are then.
                self.keep(asyncio.create_task(endpoint.disconnect()))
        if not endpoint.misfit:
            return result
        text = f"etcd at {endpoint}: {endpoint.misfit}"
        final = not self._met and all(server.misfit for server in self.rotation.endpoints)
        return StoreDenied(text) if final else StoreUnavailable(text)

    def rotate_away_from(self, endpoint: EtcdEndpoint, why: str, *, silent: bool) -> None:
        """Leave a server that did not answer, and take the watches along.

        If it is the only one, its watches stay: they share its connection, and are as well as the next request. After
        some silence (not a refusal: there grpc connects again by itself) the connection is made anew.
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
        """Hold a task until it ends; `close` ends it."""
        self._background.add(task)
        task.add_done_callback(self._background.discard)
