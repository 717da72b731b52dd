"""A worker's connection to one server: its session, its calls, and how both come back when the server was away."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import torch
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, wait_random_exponential

from elastic._grpc import grpc
from elastic.auth.handshake import Purpose, is_proof, new_nonce, proofs
from elastic.errors import MessageError, ParameterServerError, SecretMismatch, ServerLost
from elastic.train.ps import protocol
from elastic.train.ps.cluster import cluster_spec
from elastic.train.ps.framing import H, MessageHeader, TensorShape, frames, read_single, receive
from elastic.train.ps.handlers import STATUS
from elastic.train.ps.sessions import UnknownSession

CONNECT_S = 5.0
"""How long one try waits for a server's first word."""
CLOSE_S = 5.0
"""How long a worker that ends waits for each server to hear of it. A server that does not will notice by itself."""
START_S = 5.0
"""How long a server may be missing at the start before that is worth a line."""
PAUSE_FIRST_S = 0.1
PAUSE_MAX_S = 1.0
"""Between two tries: a random time that grows up to this."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    # Each try is a new channel, and a new connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 10_000),
)

log = logging.getLogger("elastic.train.ps")

T = TypeVar("T")


class _ServerAway(Exception):
    """The server is not there just now; the text says why."""


class ServerConnection:
    """One worker's connection to one server. Lives in one event loop.

    It keeps the session open also while nobody calls, so that a worker that computes for long is not taken for lost.
    """

    def __init__(
        self,
        hello: protocol.SessionRequest,
        register: protocol.RegisterRequest,
        values: Callable[[Sequence[int]], list[torch.Tensor]],
        *,
        address: str,
        roster_file: str = "",
        patience_s: float,
        secret: bytes = b"",
    ) -> None:
        """Connect to nothing yet. `values` gives this worker's own values for pieces of the server."""
        self.step = 0
        """The synchronous step that the server gathers, as far as was heard."""
        self.life = ""
        """The start of the server that was met last. The state of a new one may be older than what was pulled."""
        self.address = address
        self._session_request = hello
        self._register = register
        self._values = values
        self._roster_file = roster_file
        self._patience_s = patience_s
        self._secret = secret
        self._channel: Any = None
        self._connecting = asyncio.Lock()
        self._away_since: float | None = None
        self._said = False
        self._closing = False
        self._failure: ParameterServerError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._calls: set[Any] = set()
        """Those in flight: not every version of gRPC ends them when their channel closes."""

    @property
    def session(self) -> str:
        """The worker's session."""
        return self._session_request.session

    def __str__(self) -> str:
        """Name the server."""
        return f"server {self._session_request.server}" + (f" at {self.address}" if self.address else "")

    async def call(
        self,
        method: str,
        request: protocol.SessionMessage,
        tensors: Sequence[torch.Tensor] = (),
        expected: tuple[TensorShape, ...] | None = None,
    ) -> tuple[protocol.ValuesReply, tuple[torch.Tensor, ...]]:
        """Ask the server, again and again while it is away. `ServerLost` when that takes longer than the patience.

        `MessageError` if it answers with other tensors than `expected`; they are not read then.
        """

        def check(answer: protocol.ValuesReply) -> None:
            if expected is not None and answer.shapes != expected:
                raise MessageError("a server has answered with other tensors than were asked for")

        async def ask() -> tuple[protocol.ValuesReply, tuple[torch.Tensor, ...]]:
            channel = await self._connected()
            try:
                return await self._once(channel, method, request, protocol.ValuesReply, tensors, check)
            except _ServerAway as error:
                self._drop(channel, error)
                raise

        return await self._patiently(ask)

    async def open(self) -> None:
        """Connect and register. Waits for the server, and there for worker 0's first values."""
        await self._patiently(self._connected)

    async def close(self) -> None:
        """Tell the server that this worker has done its work, if it can be told; then let go."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.call("Close", protocol.SessionMessage(session=self.session))
        except (TimeoutError, ParameterServerError) as error:
            reason = str(error) or "it does not answer"
            log.warning("%s was not told that worker %d has ended: %s", self, self._session_request.worker, reason)
        await self.abandon()

    async def abandon(self) -> None:
        """Let go without a word: the server takes this worker for lost in a while."""
        self._closing = True
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _patiently(self, work: Callable[[], Awaitable[T]]) -> T:
        """Try something again while the server is away, until the patience is over."""
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_ServerAway),
            stop=self._out_of_patience,
            wait=wait_random_exponential(multiplier=PAUSE_FIRST_S, max=PAUSE_MAX_S),
        )
        try:
            return await retrying(work)
        except RetryError as error:
            raise ServerLost(
                f"{self} has been away for {self._patience_s:.0f} s ({error.last_attempt.exception()}); "
                "start it again, and then this worker"
            ) from None

    def _out_of_patience(self, _: RetryCallState) -> bool:
        return self._away_since is not None and self._now() >= self._away_since + self._patience_s

    async def _connected(self) -> Any:
        """The channel, once the session is open and the model registered. `_ServerAway` after one try."""
        async with self._connecting:
            if self._failure is not None:
                raise self._failure
            if self._channel is None:
                try:
                    self._channel = await self._connect()
                except _ServerAway as error:
                    self._missed(error)
                    raise
            return self._channel

    async def _connect(self) -> Any:
        self._find()
        channel = grpc.aio.insecure_channel(self.address, options=OPTIONS)
        challenge = protocol.SessionChallenge(version=protocol.VERSION, nonce=new_nonce())
        proven: asyncio.Future[protocol.SessionRequest] = asyncio.get_running_loop().create_future()
        stream = channel.stream_stream(f"/{protocol.PACKAGE}/Session")(_introduction(challenge, proven))
        try:
            async with asyncio.timeout(CONNECT_S):
                proven.set_result(self._answer(challenge, await stream.read()))
                life = _read(protocol.SessionNotice, await stream.read()).life
            holding = self._begin(self._hold(stream, channel))
            await self._registered(channel)
            if holding.done():
                raise _ServerAway("the session broke")
        except BaseException as error:
            stream.cancel()  # That ends its holder, too.
            await channel.close()
            if isinstance(error, TimeoutError):
                raise _ServerAway("no answer") from None
            if isinstance(error, grpc.aio.AioRpcError):
                raise _meaning(error) from None
            raise
        if self._away_since is not None and self.life:
            log.warning("%s is back%s", self, "" if life == self.life else ", as a new process")
        self._away_since = None
        self.life = life
        return channel

    async def _registered(self, channel: Any) -> None:
        """Tell the server our part of the model, and give it values where it has none and wants ours."""
        request, values = self._register, list[torch.Tensor]()
        while True:
            answer, _ = await self._once(channel, "Register", request, protocol.RegisterReply, values)
            if not answer.wanted:
                self.step = max(self.step, answer.step)
                return
            if max(answer.wanted) >= len(self._register.pieces):
                raise MessageError(f"{self} wants pieces that there are not")
            request = msgspec.structs.replace(self._register, given=answer.wanted)
            values = self._values(answer.wanted)

    async def _hold(self, stream: Any, channel: Any) -> None:
        """Listen until the session breaks, then open it again."""
        reason: Exception = _ServerAway("it has ended the session")
        try:
            while (frame := await stream.read()) is not grpc.aio.EOF:
                log.warning("%s", _read(protocol.SessionNotice, frame).text)
        except grpc.aio.AioRpcError as error:
            reason = _meaning(error)
        except MessageError as error:
            reason = error
        if self._channel is not channel or self._closing:
            return
        self._drop(channel, reason)
        if isinstance(reason, ParameterServerError):
            self._failure = reason  # The next call says it.
            return
        try:
            await self.open()
        except ParameterServerError as error:
            self._failure = error

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task that `abandon` ends."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _once(
        self,
        channel: Any,
        method: str,
        request: MessageHeader,
        kind: type[H],
        tensors: Sequence[torch.Tensor] = (),
        check: Callable[[H], object] | None = None,
    ) -> tuple[H, tuple[torch.Tensor, ...]]:
        # Not call.write(): it waits for ever if the connection breaks before the call's metadata are sent (grpc 1.85).
        call = channel.stream_stream(f"/{protocol.PACKAGE}/{method}")(frames(request, tensors))
        self._calls.add(call)
        try:
            return await receive(aiter(call), kind, check)
        except grpc.aio.AioRpcError as error:
            raise _meaning(error) from None
        except asyncio.CancelledError:
            # A call that `_drop` has cancelled ends like this, although nobody has cancelled us.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise
            raise _ServerAway("the connection broke") from None
        finally:
            self._calls.discard(call)
            call.cancel()

    def _drop(self, channel: Any, reason: Exception) -> None:
        """Give up a channel, if it is still the one in use."""
        if self._channel is channel:
            self._channel = None
            self._missed(reason)
            for call in self._calls:
                call.cancel()
            self._begin(channel.close())

    def _missed(self, reason: Exception) -> None:
        if self._away_since is None:
            self._away_since = self._now()
            self._said = False
        # At the start nobody is late yet.
        late = bool(self.life) or self._now() >= self._away_since + START_S
        if late and not self._said and not self._closing:
            self._said = True
            log.warning("%s does not answer (%s); it is asked again for %.0f s", self, reason, self._patience_s)

    def _find(self) -> None:
        """Look where the launcher says that the server is now."""
        now = cluster_spec(self._roster_file)
        if now is not None and self._session_request.server < len(now.servers):
            self.address = now.servers[self._session_request.server]
        if not self.address:
            raise _ServerAway("nobody runs it just now")

    def _answer(self, challenge: protocol.SessionChallenge, frame: Any) -> protocol.SessionRequest:
        """Our proof for a server that has proven itself: this worker says nothing of itself to any other."""
        proof = _read(protocol.SessionProof, frame)
        expected = proofs(self._secret, Purpose.PARAMETERS, proof.nonce, challenge.nonce)
        if not is_proof(proof.mac, expected.server):
            raise SecretMismatch(
                f"{self} cannot prove that it belongs to this job; give every process the same ELASTIC_PS_SECRET"
            )
        return msgspec.structs.replace(self._session_request, mac=expected.client)

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


async def _introduction(
    challenge: protocol.SessionChallenge, proven: asyncio.Future[protocol.SessionRequest]
) -> AsyncIterator[bytes]:
    """What a worker sends to open its session."""
    for frame in frames(challenge):
        yield frame
    for frame in frames(await proven):
        yield frame


def _read(kind: type[H], frame: Any) -> H:
    """Read a server's next word in a session."""
    if frame is grpc.aio.EOF:
        raise _ServerAway("it has ended the session")
    return read_single(kind, frame)


KINDS = {status: kind for kind, status in STATUS.items()}


def _meaning(error: grpc.aio.AioRpcError) -> Exception:
    """What a status that came back means for the worker."""
    kind = KINDS.get(error.code())
    text = error.details() or str(error.code())
    if kind is UnknownSession:
        return _ServerAway("it does not know this worker's session")
    if kind is not None:
        return kind(text)
    if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED):
        return ParameterServerError(f"the server answered {text}")
    # gRPC writes down the whole way; the last part says what happened.
    return _ServerAway(text.rpartition(": ")[2])
