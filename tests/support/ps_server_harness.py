"""One server and its workers' links in one event loop, over real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio  # type: ignore[import-untyped, unused-ignore]
import msgspec
import torch

from elastic.auth.handshake import Purpose, new_nonce, proofs
from elastic.train.ps import connection, protocol, server
from elastic.train.ps.connection import ServerConnection
from elastic.train.ps.framing import MessageHeader, TensorShape, frames, read_single
from elastic.train.ps.parameters import ParameterStore
from elastic.train.ps.service import ParameterService

LIMIT_S = 30.0
PIECES = (protocol.PieceSpec("w", (2,), "float64", 0, 2, True), protocol.PieceSpec("v", (3,), "float32", 0, 3, True))
TABLES = (protocol.TableSpec("rows", 10, 2, "float64", 0, 0.0),)


class Bench:
    """Server 0 of 1. Its service is at hand, so that a story can look at what the server knows."""

    def __init__(self, trainers: int, lost_after_s: float, mode: protocol.UpdateMode, secret: bytes = b"") -> None:
        self.holdings = ParameterStore(0, 1)
        self.trainers = trainers
        self.mode = mode
        self.secret = secret
        self.service = ParameterService(
            self.holdings,
            index=0,
            servers=1,
            trainers=lambda: self.trainers,
            job="j",
            lost_after_s=lost_after_s,
            secret=secret,
        )
        self.server = grpc.aio.server(options=server.OPTIONS)
        self.server.add_generic_rpc_handlers((self.service.handlers(),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.address = f"127.0.0.1:{self.port}"
        self.links: list[ServerConnection] = []

    def hello(self, worker: int, session: str = "", **changed: Any) -> protocol.SessionRequest:
        given: dict[str, Any] = {"job": "j", "server": 0, "servers": 1, "worker": worker}
        return protocol.SessionRequest(**given | {"session": session or f"{worker}-s"} | changed)

    def register(self, session: str, **changed: Any) -> protocol.RegisterRequest:
        given: dict[str, Any] = {
            "session": session,
            "mode": self.mode,
            "sgd": protocol.SGD(),
            "pieces": PIECES,
            "tables": TABLES,
        }
        return protocol.RegisterRequest(**given | changed)

    def link(
        self, worker: int, session: str = "", *, patience_s: float = 5.0, secret: bytes | None = None, **changed: Any
    ) -> ServerConnection:
        """A link that is not open yet. The worker's own values are all its number."""
        hello = self.hello(worker, session)

        def values(wanted: Sequence[int]) -> list[torch.Tensor]:
            specs = [PIECES[index] for index in wanted]
            dtypes = {"float64": torch.float64, "float32": torch.float32}
            return [torch.full(spec.sizes, float(worker), dtype=dtypes[spec.dtype]) for spec in specs]

        register = self.register(hello.session, **changed)
        made = ServerConnection(
            hello,
            register,
            values,
            address=self.address,
            patience_s=patience_s,
            secret=self.secret if secret is None else secret,
        )
        self.links.append(made)
        return made

    async def opened(self, worker: int, session: str = "", **changed: Any) -> ServerConnection:
        made = self.link(worker, session, **changed)
        await made.open()
        return made

    def push(self, session: str, number: int = 1, step: int = 0, **changed: Any) -> protocol.PushRequest:
        given: dict[str, Any] = {"session": session, "number": number, "step": step, "lr": 1.0, "weight": 1.0}
        return protocol.PushRequest(**given | {"pieces": (0,), "tables": (), "pull": True} | changed)

    async def pushed(
        self, link: ServerConnection, number: int = 1, step: int = 0, gradient: float = 1.0, **changed: Any
    ) -> list[float]:
        """Push a gradient for piece w; the values of w afterwards."""
        given = torch.full((2,), gradient, dtype=torch.float64)
        request = self.push(link.session, number, step, **changed)
        _, values = await link.call("Push", request, (given,))
        return [float(value) for value in values[0]]

    async def raw(self, method: str, *sent: bytes) -> tuple[grpc.StatusCode, bytes]:
        """Send frames as they are; the status, and what came back."""
        async with grpc.aio.insecure_channel(self.address, options=connection.OPTIONS) as channel:

            async def parts() -> AsyncIterator[bytes]:
                for frame in sent:
                    yield frame

            back = b""
            try:
                async for frame in channel.stream_stream(f"/{protocol.PACKAGE}/{method}")(parts()):
                    back += frame
            except grpc.aio.AioRpcError as error:
                return error.code(), back
            return grpc.StatusCode.OK, back

    async def is_turned_away(self, method: str, *sent: bytes) -> bool:
        """Send frames as they are: whether the call fails and nothing comes back.

        The server reads nothing of it. gRPC loses the status of a call that ends while its client still writes
        (INTERNAL comes instead), so any failure will do.
        """
        code, back = await self.raw(method, *sent)
        return code is not grpc.StatusCode.OK and back == b""

    async def refusal(self, challenge: object) -> str:
        """Why a first message of a session is refused."""
        async with grpc.aio.insecure_channel(self.address, options=connection.OPTIONS) as channel:
            stream = channel.stream_stream(f"/{protocol.PACKAGE}/Session")()
            try:
                await stream.write(framed(challenge))
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return str(error.details())
            return ""

    async def hello_with(self, request: Callable[[str], bytes], secret: bytes | None = None) -> grpc.StatusCode:
        """Open a session by hand with the frame that `request` makes of the proof; the status."""
        challenge = protocol.SessionChallenge(version=protocol.VERSION, nonce=new_nonce())
        async with grpc.aio.insecure_channel(self.address, options=connection.OPTIONS) as channel:
            stream = channel.stream_stream(f"/{protocol.PACKAGE}/Session")()
            await stream.write(b"".join(frames(challenge)))
            proof = read_single(protocol.SessionProof, await stream.read())
            known = self.secret if secret is None else secret
            expected = proofs(known, Purpose.PARAMETERS, proof.nonce, challenge.nonce)
            try:
                await stream.write(request(expected.client))
                await stream.read()
            except grpc.aio.AioRpcError as error:
                return error.code()
            return grpc.StatusCode.OK

    async def until(self, look: Any) -> None:
        """Wait until something is so; it is asked after every change of the service."""
        async with asyncio.timeout(LIMIT_S):
            while not look():
                await self.service._moved.wait()


def framed(header: object, body: bytes = b"") -> bytes:
    """A header of any fields, and the bytes after it, as one frame."""
    head = msgspec.msgpack.encode(header)
    return len(head).to_bytes(4, "little") + head + (bytes(-(4 + len(head)) % 8) + body if body else b"")


def message(header: MessageHeader, *tensors: torch.Tensor) -> list[bytes]:
    return list(frames(header, tensors))


def shape(dtype: str, *sizes: int) -> TensorShape:
    return TensorShape(dtype, sizes)


@asynccontextmanager
async def bench(
    *,
    trainers: int = 1,
    lost_after_s: float = 10.0,
    mode: protocol.UpdateMode = protocol.UpdateMode.ASYNC,
    secret: bytes = b"",
) -> AsyncIterator[Bench]:
    made = Bench(trainers, lost_after_s, mode, secret)
    await made.server.start()
    try:
        yield made
    finally:
        for link in made.links:
            await link.abandon()
        await made.server.stop(0)
