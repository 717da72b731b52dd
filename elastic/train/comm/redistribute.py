"""Redistributes tensors between ranks: each rank offers what it has, requests what it needs, and receives that.

`elastic.train.comm.tensor_boxes` plans the transfers, the same on every rank. The bytes go over a gloo group, from and
to CPU memory; nothing is pickled. Small parts from one rank to another share a message. The messages of all ranks have
one global order, and a rank with enough messages in flight waits for its oldest one, so no two ranks ever wait for each
other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec
import torch
import torch.distributed as dist

from elastic.errors import TensorsDiffer
from elastic.train.comm import byte_collectives
from elastic.train.comm.tensor_boxes import Box, Transfer, overlap, plan_transfers, split

MESSAGE_BYTES_MAX = 64 << 20
"""The largest size of a message, in bytes."""
SMALL_BYTES = 1 << 20
"""Smaller parts share messages, which grow up to this size in bytes plus one part."""
ALIGNED_BYTES = 16
IN_FLIGHT_BYTES_MAX = 256 << 20
"""Bytes that a rank sends and receives at a time. Parts outside contiguous CPU memory take as much memory again."""


class TensorPiece(NamedTuple):
    """A part of a global tensor of `shape`: `tensor` has the size of `box`, on any device."""

    box: Box
    tensor: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: torch.Tensor) -> TensorPiece:
        """Return the piece that is the whole tensor."""
        shape = tuple(tensor.shape)
        return cls(Box.whole(shape), tensor.detach(), shape)


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """The description of a tensor: its dtype, its global shape, and the parts."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


class ExchangeRequest(msgspec.Struct, frozen=True):
    """The request of a rank: what it offers, what it needs, and the problem with its own call, "" if none."""

    offers: dict[str, TensorInfo]
    needs: dict[str, TensorInfo]
    problem: str = ""


_decoder = msgspec.json.Decoder(ExchangeRequest)


def exchange(group: Any, offers: Mapping[str, Sequence[TensorPiece]], needs: Mapping[str, TensorPiece]) -> None:
    """Fill the tensors of `needs` in place from the `offers` of all ranks.

    A collective; both may be empty. Raises `TensorsMissing` if no rank has a part that a rank needs, and
    `TensorsDiffer` if dtypes or shapes disagree; both on all ranks, before anything is sent.
    """
    requests = [
        _decoder.decode(reply)
        for reply in byte_collectives.gather(msgspec.json.encode(_build_request(offers, needs)), group)
    ]
    problem = disagreement(requests)
    if problem is not None:
        raise TensorsDiffer(problem)
    transfers = plan_transfers(
        [{key: kind.boxes for key, kind in request.offers.items()} for request in requests],
        [{key: kind.boxes[0] for key, kind in request.needs.items()} for request in requests],
    )
    with torch.no_grad():
        _carry_out(group, transfers, offers, needs)


def disagreement(requests: Sequence[ExchangeRequest]) -> str | None:
    """Return why the ranks cannot exchange tensors; None if they can."""
    for rank, request in enumerate(requests):
        if request.problem:
            return f"rank {rank}: {request.problem}"
    known: dict[str, tuple[int, TensorInfo]] = {}
    for rank, request in enumerate(requests):
        for key, kind in request.needs.items():
            known.setdefault(key, (rank, kind))
    for rank, request in enumerate(requests):
        for key, kind in (*request.needs.items(), *request.offers.items()):
            if key not in known:
                continue
            first, other = known[key]
            if (kind.dtype, kind.shape) != (other.dtype, other.shape):
                return (
                    f"{key} is {other.dtype}{list(other.shape)} on rank {first}, "
                    f"but rank {rank} has it as {kind.dtype}{list(kind.shape)}"
                )
    return None


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View the memory of a contiguous tensor as bytes in one dimension."""
    return tensor.reshape(-1).view(torch.uint8)


def _build_request(offers: Mapping[str, Sequence[TensorPiece]], needs: Mapping[str, TensorPiece]) -> ExchangeRequest:
    all_of_them = [(key, piece) for key, pieces in offers.items() for piece in pieces] + list(needs.items())
    for key, piece in all_of_them:
        problem = _problem(piece)
        if problem:
            return ExchangeRequest({}, {}, f"{key} {problem}")
    for key, pieces in offers.items():
        if len({(piece.tensor.dtype, piece.shape) for piece in pieces}) > 1:
            return ExchangeRequest({}, {}, f"{key} is offered with several dtypes or shapes")
    return ExchangeRequest(
        {key: _kind(pieces) for key, pieces in offers.items() if pieces},
        {key: _kind([piece]) for key, piece in needs.items()},
    )


def _problem(piece: TensorPiece) -> str:
    if piece.tensor.layout is not torch.strided or piece.tensor.is_quantized or piece.tensor.is_meta:
        return f"has a layout or dtype that cannot be sent ({piece.tensor.layout}, {piece.tensor.dtype})"
    if tuple(piece.tensor.shape) != piece.box.sizes:
        return f"has the shape {list(piece.tensor.shape)}, but its box is {piece.box}"
    if not piece.box.inside(piece.shape):
        return f"has the box {piece.box}, outside of the tensor's shape {list(piece.shape)}"
    return ""


def _kind(pieces: Sequence[TensorPiece]) -> TensorInfo:
    dtype = str(pieces[0].tensor.dtype).removeprefix("torch.")
    return TensorInfo(dtype, pieces[0].shape, tuple(piece.box for piece in pieces))


@dataclass
class _TensorMessage:
    """Parts that go from one rank to another in one message, in this order.

    `place` is the position of its first part among all transfers of all ranks; `tag` numbers the messages of a pair.
    """

    place: tuple[int, int]
    source: int
    target: int
    tag: int
    size: int = 0
    parts: list[tuple[str, Box]] = field(default_factory=list)


@dataclass
class _PendingMessage:
    """A message in flight, its buffer, and the parts to copy from the buffer once it has arrived."""

    size: int
    work: Any
    buffer: torch.Tensor
    unpack: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def finish(self) -> int:
        """Wait for the message, and return its size in bytes."""
        self.work.wait()
        for source, target in self.unpack:
            target.copy_(source)
        return self.size


def _carry_out(
    group: Any,
    transfers: Sequence[Transfer],
    offers: Mapping[str, Sequence[TensorPiece]],
    needs: Mapping[str, TensorPiece],
) -> None:
    me, _ = byte_collectives.rank_and_size(group)
    for transfer in transfers:
        if transfer.source == transfer.target == me:
            _part(needs[transfer.key], transfer.box).copy_(_offered(offers[transfer.key], transfer.box))
    itemsizes = {key: pieces[0].tensor.dtype.itemsize for key, pieces in offers.items() if pieces}
    itemsizes |= {key: piece.tensor.dtype.itemsize for key, piece in needs.items()}
    under_way: deque[_PendingMessage] = deque()
    size = 0
    for message in _messages(me, transfers, itemsizes):
        while under_way and size + message.size > IN_FLIGHT_BYTES_MAX:
            size -= under_way.popleft().finish()
        under_way.append(_send(group, message, offers) if message.source == me else _receive(group, message, needs))
        size += message.size
    for pending in under_way:
        pending.finish()


def _messages(me: int, transfers: Sequence[Transfer], itemsizes: Mapping[str, int]) -> list[_TensorMessage]:
    """Return the messages that this rank sends and receives. Both ends of a pair build the same ones in one order."""
    messages: list[_TensorMessage] = []
    tags: dict[tuple[int, int], int] = {}
    small: dict[tuple[int, int], _TensorMessage] = {}

    def begin(place: tuple[int, int], pair: tuple[int, int]) -> _TensorMessage:
        tags[pair] = tags.get(pair, -1) + 1
        messages.append(_TensorMessage(place, *pair, tags[pair]))
        return messages[-1]

    for place, transfer in enumerate(transfers):
        pair = (transfer.source, transfer.target)
        if me not in pair or transfer.source == transfer.target:
            continue
        itemsize = itemsizes[transfer.key]
        if transfer.box.numel * itemsize < SMALL_BYTES:
            if pair not in small or small[pair].size >= SMALL_BYTES:
                small[pair] = begin((place, 0), pair)
            parts = [(small[pair], transfer.box)]
        else:
            cut = split(transfer.box, MESSAGE_BYTES_MAX // itemsize)
            parts = [(begin((place, number), pair), box) for number, box in enumerate(cut)]
        for message, box in parts:
            message.parts.append((transfer.key, box))
            message.size += _padded(box.numel * itemsize)
    return sorted(messages, key=lambda message: message.place)


def _send(group: Any, message: _TensorMessage, offers: Mapping[str, Sequence[TensorPiece]]) -> _PendingMessage:
    parts = [_offered(offers[key], box) for key, box in message.parts]
    if len(parts) == 1:
        buffer = as_bytes(parts[0].detach().cpu().resolve_conj().resolve_neg().contiguous())
    else:
        buffer, places = _places(parts)
        for into, part in zip(places, parts, strict=True):
            into.copy_(part)
    to = _rank(group, message.target)
    return _PendingMessage(message.size, dist.isend(buffer, to, group=group, tag=message.tag), buffer)


def _receive(group: Any, message: _TensorMessage, needs: Mapping[str, TensorPiece]) -> _PendingMessage:
    parts = [_part(needs[key], box) for key, box in message.parts]
    source = _rank(group, message.source)
    if len(parts) == 1 and _plain(parts[0]):
        buffer = as_bytes(parts[0])
        return _PendingMessage(message.size, dist.irecv(buffer, source, group=group, tag=message.tag), buffer)
    buffer, places = _places(parts)
    work = dist.irecv(buffer, source, group=group, tag=message.tag)
    return _PendingMessage(message.size, work, buffer, list(zip(places, parts, strict=True)))


def _places(parts: Sequence[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Return the buffer of a message, and the views of its parts in it."""
    sizes = [part.numel() * part.dtype.itemsize for part in parts]
    starts = list(accumulate(map(_padded, sizes), initial=0))
    buffer = torch.empty(starts[len(parts) - 1] + sizes[-1], dtype=torch.uint8, device="cpu")
    return buffer, [
        buffer[start : start + size].view(part.dtype).view(part.shape)
        for start, size, part in zip(starts, sizes, parts, strict=False)
    ]


def _padded(size: int) -> int:
    """Round up to the alignment of every dtype."""
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _offered(pieces: Sequence[TensorPiece], box: Box) -> torch.Tensor:
    return next(_part(piece, box) for piece in pieces if overlap(piece.box, box) == box)


def _part(piece: TensorPiece, box: Box) -> torch.Tensor:
    """Return the part of the tensor with the box `box`."""
    part = piece.tensor.detach()
    for d, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        part = part.narrow(d, start - piece.box.offsets[d], size)
    return part


def _rank(group: Any, rank: int) -> int:
    """Convert a rank of the group to the global rank."""
    return rank if group is None else dist.get_global_rank(group, rank)
