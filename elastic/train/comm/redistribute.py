"""Tensors between ranks: everybody says what it has and what it needs, and gets what it needs.

Who sends what to whom is planned by `elastic.train.comm.tensor_boxes`, the same on every rank. The bytes go over a gloo
group, from and to CPU memory; nothing is pickled. Parts of one rank for another that are small travel together. The
messages of all ranks have one order, and a rank that has enough of them on the way waits for its oldest, so no two
ranks ever wait for each other.
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
"""Bytes of one message."""
SMALL_BYTES = 1 << 20
"""What is smaller travels with others, in one message of at most this many bytes and one part."""
ALIGNED_BYTES = 16
ON_THE_WAY_BYTES_MAX = 256 << 20
"""Bytes that a rank sends and receives at a time. What has no place in contiguous CPU memory costs as many more."""


class TensorPiece(NamedTuple):
    """A part of a global tensor of `shape`: `tensor` has the size of `box`, on any device."""

    box: Box
    tensor: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, tensor: torch.Tensor) -> TensorPiece:
        """A tensor of which a rank has or needs all."""
        shape = tuple(tensor.shape)
        return cls(Box.whole(shape), tensor.detach(), shape)


class TensorInfo(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of a tensor: its type, its global shape, and the parts."""

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]


class ExchangeRequest(msgspec.Struct, frozen=True):
    """What a rank says: what it has, what it needs, and what is wrong with its own call ("" if nothing)."""

    offers: dict[str, TensorInfo]
    needs: dict[str, TensorInfo]
    trouble: str = ""


_decoder = msgspec.json.Decoder(ExchangeRequest)


def exchange(group: Any, offers: Mapping[str, Sequence[TensorPiece]], needs: Mapping[str, TensorPiece]) -> None:
    """Fill the tensors of `needs` in place from the `offers` of all ranks.

    Every rank of the group calls it at the same time, with what it has; both may be empty. Raises `TensorsMissing` when
    nobody has a part that somebody needs, and `TensorsDiffer` when types or shapes do not fit; both on all ranks,
    before anything is sent.
    """
    said = [
        _decoder.decode(reply)
        for reply in byte_collectives.gather(msgspec.json.encode(_build_request(offers, needs)), group)
    ]
    trouble = disagreement(said)
    if trouble is not None:
        raise TensorsDiffer(trouble)
    transfers = plan_transfers(
        [{key: kind.boxes for key, kind in request.offers.items()} for request in said],
        [{key: kind.boxes[0] for key, kind in request.needs.items()} for request in said],
    )
    with torch.no_grad():
        _carry_out(group, transfers, offers, needs)


def disagreement(said: Sequence[ExchangeRequest]) -> str | None:
    """What keeps the ranks from an exchange, in words; None if nothing does."""
    for rank, request in enumerate(said):
        if request.trouble:
            return f"rank {rank}: {request.trouble}"
    known: dict[str, tuple[int, TensorInfo]] = {}
    for rank, request in enumerate(said):
        for key, kind in request.needs.items():
            known.setdefault(key, (rank, kind))
    for rank, request in enumerate(said):
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
    """The memory of a contiguous tensor, as bytes in one dimension."""
    return tensor.reshape(-1).view(torch.uint8)


def _build_request(offers: Mapping[str, Sequence[TensorPiece]], needs: Mapping[str, TensorPiece]) -> ExchangeRequest:
    all_of_them = [(key, piece) for key, pieces in offers.items() for piece in pieces] + list(needs.items())
    for key, piece in all_of_them:
        trouble = _trouble(piece)
        if trouble:
            return ExchangeRequest({}, {}, f"{key} {trouble}")
    for key, pieces in offers.items():
        if len({(piece.tensor.dtype, piece.shape) for piece in pieces}) > 1:
            return ExchangeRequest({}, {}, f"{key} is offered with several types or shapes")
    return ExchangeRequest(
        {key: _kind(pieces) for key, pieces in offers.items() if pieces},
        {key: _kind([piece]) for key, piece in needs.items()},
    )


def _trouble(piece: TensorPiece) -> str:
    if piece.tensor.layout is not torch.strided or piece.tensor.is_quantized or piece.tensor.is_meta:
        return f"is of a kind that cannot be sent ({piece.tensor.layout}, {piece.tensor.dtype})"
    if tuple(piece.tensor.shape) != piece.box.sizes:
        return f"has the shape {list(piece.tensor.shape)}, but its part of the whole is {piece.box}"
    if not piece.box.inside(piece.shape):
        return f"is the part {piece.box} of a tensor that has only {list(piece.shape)}"
    return ""


def _kind(pieces: Sequence[TensorPiece]) -> TensorInfo:
    dtype = str(pieces[0].tensor.dtype).removeprefix("torch.")
    return TensorInfo(dtype, pieces[0].shape, tuple(piece.box for piece in pieces))


@dataclass
class _TensorMessage:
    """Parts that go from one rank to another together, in this order.

    `place` is that of its first part among all transfers of all ranks, and `tag` counts the messages of a pair.
    """

    place: tuple[int, int]
    source: int
    target: int
    tag: int
    size: int = 0
    parts: list[tuple[str, Box]] = field(default_factory=list)


@dataclass
class _PendingMessage:
    """A message on the way, its memory, and the parts of it that go to another place once it is here."""

    size: int
    work: Any
    buffer: torch.Tensor
    unpack: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def finish(self) -> int:
        """Wait until it is there; the bytes that are no longer on the way."""
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
        while under_way and size + message.size > ON_THE_WAY_BYTES_MAX:
            size -= under_way.popleft().finish()
        under_way.append(_send(group, message, offers) if message.source == me else _receive(group, message, needs))
        size += message.size
    for pending in under_way:
        pending.finish()


def _messages(me: int, transfers: Sequence[Transfer], itemsizes: Mapping[str, int]) -> list[_TensorMessage]:
    """The messages that this rank sends and receives. Both ends of a pair make the same ones, in the same order."""
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
    """The memory of a message, and in it the places of its parts, one after the other."""
    sizes = [part.numel() * part.dtype.itemsize for part in parts]
    starts = list(accumulate(map(_padded, sizes), initial=0))
    buffer = torch.empty(starts[len(parts) - 1] + sizes[-1], dtype=torch.uint8, device="cpu")
    return buffer, [
        buffer[start : start + size].view(part.dtype).view(part.shape)
        for start, size, part in zip(starts, sizes, parts, strict=False)
    ]


def _padded(size: int) -> int:
    """Bytes up to a place where a number of any type may begin."""
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _offered(pieces: Sequence[TensorPiece], box: Box) -> torch.Tensor:
    return next(_part(piece, box) for piece in pieces if overlap(piece.box, box) == box)


def _part(piece: TensorPiece, box: Box) -> torch.Tensor:
    """The part of the tensor that is `box` of the whole."""
    part = piece.tensor.detach()
    for d, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        part = part.narrow(d, start - piece.box.offsets[d], size)
    return part


def _rank(group: Any, rank: int) -> int:
    """The rank in the world of a rank of the group."""
    return rank if group is None else dist.get_global_rank(group, rank)
