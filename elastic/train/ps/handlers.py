"""How a server's answers and refusals travel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import torch

from elastic._grpc import grpc
from elastic.errors import MessageError, ModelMismatch, ParameterServerError, SecretMismatch, SessionReplaced
from elastic.train.ps.framing import H, MessageHeader, frames, receive, refuse_tensors
from elastic.train.ps.sessions import UnknownSession

DRAINED_MAX = 64
"""Frames of a refused message that are still taken. A client whose frame meets a closed call may miss the reason."""

STATUS: dict[type[Exception], grpc.StatusCode] = {
    MessageError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelMismatch: grpc.StatusCode.ALREADY_EXISTS,
    SecretMismatch: grpc.StatusCode.PERMISSION_DENIED,
    SessionReplaced: grpc.StatusCode.ABORTED,
    UnknownSession: grpc.StatusCode.FAILED_PRECONDITION,
}
"""How each refusal travels. Anything else that a handler raises is a mistake of ours, and gRPC says UNKNOWN."""

HandlerAnswer = tuple[MessageHeader, Sequence[torch.Tensor]]
Handler = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]


def grpc_handler(
    kind: type[H],
    answer: Callable[[H, Sequence[torch.Tensor]], Awaitable[HandlerAnswer]],
    is_admitted: Callable[[str], bool],
    check: Callable[[H], object] = refuse_tensors,
) -> Handler:
    """A gRPC handler: one message in, one message out, or a status.

    Nothing is read from a peer that `is_admitted` refuses. `check` refuses by the header alone; by default it lets no
    tensors in.
    """

    async def handle(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        if not is_admitted(context.peer()):
            await context.abort(STATUS[UnknownSession], "this connection has opened no session")  # That raises.
        try:
            header, tensors = await receive(stream, kind, check)
            reply, values = await answer(header, tensors)
        except (ParameterServerError, UnknownSession) as error:
            await _drain(stream)
            await context.abort(STATUS.get(type(error), grpc.StatusCode.UNKNOWN), str(error))
        for frame in frames(reply, values):
            yield frame

    return handle


async def _drain(stream: AsyncIterator[bytes]) -> None:
    """Let a refused message come in, up to a limit; nothing of it is kept."""
    count = 0
    async for _ in stream:
        count += 1
        if count == DRAINED_MAX:
            return
