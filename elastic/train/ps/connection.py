"""A worker's connection to one server: its session and calls, and their recovery after the server was unavailable."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import msgspec
import torch
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_delay,
    wait_random_exponential,
)

from elastic._grpc import grpc
from elastic.auth.handshake import Purpose, is_proof, new_nonce, proofs
from elastic.errors import MessageError, ParameterServerError, SecretMismatch, ServerLost
from elastic.train.ps import protocol
from elastic.train.ps.cluster import cluster_spec
from elastic.train.ps.framing import H, MessageHeader, TensorShape, frames, read_single, receive
from elastic.train.ps.handlers import STATUS
from elastic.train.ps.sessions import UnknownSession

CONNECT_S = 5.0
"""The timeout of one connection attempt."""
CLOSE_S = 5.0
"""The time that an exiting worker waits to notify each server. A server that gets no message detects the exit."""
START_S = 5.0
"""The time after the start before a missing server is logged."""
PAUSE = wait_random_exponential(multiplier=0.1, max=1.0)
"""The back-off between attempts: a random time of up to 0.1 s at first, and up to 1 s later."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.enable_http_proxy", 0),
    # Each attempt is a new channel and connection.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.ping_timeout_ms", 10_000),
)

log = logging.getLogger("elastic.train.ps")


class _ServerAway(Exception):
    """The server is unavailable; the text says why."""


WHILE_AWAY = retry_if_exception_type(_ServerAway)


class ServerConnection:
    """One worker's connection to one server, in one event loop.

    A task keeps the session open between calls, so that the server does not treat a worker with a long step as failed.
    Calls wait until the session is open.
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
        """`values` returns the values of this worker for pieces of the server. `open` connects."""
        self.step = 0
        """The current synchronous step of the server, from its last reply."""
        self.life = ""
        """The ID of the last server process. The state of a new process may be older than the pulled values."""
        self.address = address
        self._session_request = hello
        self._register = register
        self._values = values
        self._roster_file = roster_file
        self._patience_s = patience_s
        self._secret = secret
        self._opened: asyncio.Future[tuple[Any, Any]]
        """The channel and the stream of the open session, or the error that prevents it."""
        self._keeper: asyncio.Task[None] | None = None
        self._logged = False
        self._closing = False
        self._calls: set[Any] = set()
        """Calls in flight: not every version of gRPC ends them when their channel closes."""

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
        """Call the server, with retries while it is unavailable. Raises `ServerLost` after the timeout.

        Raises `MessageError` if the reply has other tensors than `expected`; they are not read then.
        """

        def check(answer: protocol.ValuesReply) -> None:
            if expected is not None and answer.shapes != expected:
                raise MessageError("a server has replied with other tensors than requested")

        async def ask() -> tuple[protocol.ValuesReply, tuple[torch.Tensor, ...]]:
            channel, stream = await asyncio.shield(self._opened)
            try:
                return await self._once(channel, method, request, protocol.ValuesReply, tensors, check)
            except _ServerAway as error:
                self._log_unavailable(error)
                stream.cancel()
                raise

        return await AsyncRetrying(retry=WHILE_AWAY, wait=PAUSE)(ask)

    async def open(self) -> None:
        """Connect and register. Waits for the server, and for the initial values of worker 0."""
        self._opened = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep_open())
        await asyncio.shield(self._opened)

    async def close(self) -> None:
        """Notify the server that this worker has finished, if possible, and disconnect."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSE_S):
                await self.call("Close", protocol.SessionMessage(session=self.session))
        except (TimeoutError, ParameterServerError) as error:
            reason = str(error) or "no reply"
            log.warning(
                "could not notify %s that worker %d has finished: %s", self, self._session_request.worker, reason
            )
        await self.abandon()

    async def abandon(self) -> None:
        """Disconnect without a message: the server treats this worker as failed after its timeout."""
        self._closing = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])

    async def _keep_open(self) -> None:
        """Reopen the session whenever it breaks, until the server is unavailable for longer than the timeout."""
        try:
            while True:
                await AsyncRetrying(
                    retry=WHILE_AWAY,
                    stop=stop_after_delay(self._patience_s),
                    wait=PAUSE,
                    before_sleep=self._log_attempt,
                    retry_error_callback=self._give_up,
                )(self._session_once)
        except Exception as error:  # noqa: BLE001  # All later calls raise it.
            self._opened.set_exception(error)
            self._opened.exception()  # There may be no call.

    async def _session_once(self) -> None:
        """Open the session, and keep it open until it breaks. Raises `_ServerAway` if it does not open."""
        self._find()
        challenge = protocol.SessionChallenge(version=protocol.VERSION, nonce=new_nonce())
        proven: asyncio.Future[protocol.SessionRequest] = asyncio.get_running_loop().create_future()
        async with grpc.aio.insecure_channel(self.address, options=OPTIONS) as channel:
            stream = channel.stream_stream(f"/{protocol.PACKAGE}/Session")(_introduction(challenge, proven))
            try:
                with _understood():
                    async with asyncio.timeout(CONNECT_S):
                        proven.set_result(self._answer(challenge, await stream.read()))
                        life = _read(protocol.SessionNotice, await stream.read()).life
                async with asyncio.TaskGroup() as group:
                    group.create_task(_listen(stream))
                    await self._registered(channel)
                    if self.life:
                        log.warning(
                            "reconnected to %s%s", self, "" if life == self.life else ", which is a new process"
                        )
                    self.life = life
                    self._logged = False
                    self._opened.set_result((channel, stream))
            except BaseExceptionGroup as errors:
                reason = errors.exceptions[0]
                if not self._opened.done() or not isinstance(reason, _ServerAway):
                    raise reason from None
                self._log_unavailable(reason)
            finally:
                stream.cancel()
                if self._opened.done():
                    self._opened = asyncio.get_running_loop().create_future()
                for call in self._calls:
                    call.cancel()

    async def _registered(self, channel: Any) -> None:
        """Register the model at the server, and send the values that it requests."""
        request, values = self._register, list[torch.Tensor]()
        while True:
            answer, _ = await self._once(channel, "Register", request, protocol.RegisterReply, values)
            if not answer.wanted:
                self.step = max(self.step, answer.step)
                return
            if max(answer.wanted) >= len(self._register.pieces):
                raise MessageError(f"{self} requests pieces that do not exist")
            request = msgspec.structs.replace(self._register, given=answer.wanted)
            values = self._values(answer.wanted)

    async def _once(
        self,
        channel: Any,
        method: str,
        request: MessageHeader,
        kind: type[H],
        tensors: Sequence[torch.Tensor] = (),
        check: Callable[[H], object] | None = None,
    ) -> tuple[H, tuple[torch.Tensor, ...]]:
        # Not call.write(): it never returns if the connection breaks before the metadata are sent (grpc 1.85).
        call = channel.stream_stream(f"/{protocol.PACKAGE}/{method}")(frames(request, tensors))
        self._calls.add(call)
        try:
            with _understood():
                return await receive(aiter(call), kind, check)
        finally:
            self._calls.discard(call)
            call.cancel()

    def _log_attempt(self, attempt: RetryCallState) -> None:
        # At the start, a server may still be starting.
        if attempt.outcome is not None and (self.life or (attempt.seconds_since_start or 0) >= START_S):
            self._log_unavailable(attempt.outcome.exception())

    def _log_unavailable(self, reason: BaseException | None) -> None:
        if not self._logged and not self._closing:
            self._logged = True
            log.warning("%s is unavailable (%s); retrying for %.0f s", self, reason, self._patience_s)

    def _give_up(self, attempt: RetryCallState) -> NoReturn:
        reason = attempt.outcome and attempt.outcome.exception()
        raise ServerLost(
            f"{self} has been unavailable for {self._patience_s:.0f} s ({reason}); restart it, and then this worker"
        )

    def _find(self) -> None:
        """Read the current address of the server from the cluster spec."""
        now = cluster_spec(self._roster_file)
        if now is not None and self._session_request.server < len(now.servers):
            self.address = now.servers[self._session_request.server]
        if not self.address:
            raise _ServerAway("no node runs it")

    def _answer(self, challenge: protocol.SessionChallenge, frame: Any) -> protocol.SessionRequest:
        """Return the request with the proof of this worker, once the server has proven that it knows the secret."""
        proof = _read(protocol.SessionProof, frame)
        expected = proofs(self._secret, Purpose.PARAMETERS, proof.nonce, challenge.nonce)
        if not is_proof(proof.mac, expected.server):
            raise SecretMismatch(
                f"{self} cannot prove that it belongs to this job; set the same ELASTIC_PS_SECRET for every process"
            )
        return msgspec.structs.replace(self._session_request, mac=expected.client)


async def _introduction(
    challenge: protocol.SessionChallenge, proven: asyncio.Future[protocol.SessionRequest]
) -> AsyncIterator[bytes]:
    """Yield the frames with which a worker opens its session."""
    for frame in frames(challenge):
        yield frame
    for frame in frames(await proven):
        yield frame


async def _listen(stream: Any) -> None:
    """Log the notices of the server, until the session breaks."""
    with _understood():
        while True:
            log.warning("%s", _read(protocol.SessionNotice, await stream.read()).text)


@contextmanager
def _understood() -> Iterator[None]:
    """Convert errors of gRPC to the errors of this module."""
    try:
        yield
    except TimeoutError:
        raise _ServerAway("no reply") from None
    except grpc.aio.AioRpcError as error:
        raise _meaning(error) from None
    except asyncio.CancelledError:
        # A cancelled call ends like this, although this task is not cancelled.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise
        raise _ServerAway("the connection broke") from None


def _read(kind: type[H], frame: Any) -> H:
    """Decode the next message of a server in a session."""
    if frame is grpc.aio.EOF:
        raise _ServerAway("it has ended the session")
    return read_single(kind, frame)


KINDS = {status: kind for kind, status in STATUS.items()}


def _meaning(error: grpc.aio.AioRpcError) -> Exception:
    """Convert the status of a call to an exception."""
    kind = KINDS.get(error.code())
    text = error.details() or str(error.code())
    if kind is UnknownSession:
        return _ServerAway("it does not know this worker's session")
    if kind is not None:
        return kind(text)
    if error.code() in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNIMPLEMENTED):
        return ParameterServerError(f"the server replied {text}")
    # gRPC chains the messages; the last part is the cause.
    return _ServerAway(text.rpartition(": ")[2])
