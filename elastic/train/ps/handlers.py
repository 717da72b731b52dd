"""The encoding of a server's replies and rejections in gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import torch

from elastic._grpc import grpc
from elastic.errors import MessageError, ModelMismatch, ParameterServerError, SecretMismatch, SessionReplaced
from elastic.train.ps.framing import H, MessageHeader, frames, receive, refuse_tensors
from elastic.train.ps.sessions import UnknownSession

DRAINED_MAX = 64
"""Frames of a rejected message that are still read: a client that sends to a closed call may miss the reason."""

STATUS: dict[type[Exception], grpc.StatusCode] = {
    MessageError: grpc.StatusCode.INVALID_ARGUMENT,
    ModelMismatch: grpc.StatusCode.ALREADY_EXISTS,
    SecretMismatch: grpc.StatusCode.PERMISSION_DENIED,
    SessionReplaced: grpc.StatusCode.ABORTED,
    UnknownSession: grpc.StatusCode.FAILED_PRECONDITION,
}
"""The status of each rejection. Any other exception of a handler is a bug, for which gRPC sends UNKNOWN."""

HandlerAnswer = tuple[MessageHeader, Sequence[torch.Tensor]]
Handler = Callable[[AsyncIterator[bytes], Any], AsyncIterator[bytes]]


def grpc_handler(
    kind: type[H],
    answer: Callable[[H, Sequence[torch.Tensor]], Awaitable[HandlerAnswer]],
    is_admitted: Callable[[str], bool],
    check: Callable[[H], object] = refuse_tensors,
) -> Handler:
    """Return a gRPC handler: it reads one message, and sends one message or a status.

    It reads nothing from a peer that `is_admitted` rejects. `check` rejects a message by its header; by default every
    message with tensors.
    """

    async def handle(stream: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        if not is_admitted(context.peer()):
            await context.abort(STATUS[UnknownSession], "this connection has opened no session")  # This raises.
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
    """Read and discard a rejected message, up to a limit."""
    count = 0
    async for _ in stream:
        count += 1
        if count == DRAINED_MAX:
            return
