"""What the ranks do in the tests of the exchange."""

from __future__ import annotations

from typing import Any

import torch

from elastic.errors import CheckpointError
from elastic.train.comm import redistribute
from elastic.train.comm.redistribute import TensorPiece, as_bytes, exchange
from elastic.train.comm.tensor_boxes import Box

DTYPES = [
    torch.bool, torch.uint8, torch.int16, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.complex64, torch.complex128, torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip


def content(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """The same numbers on every rank."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) % 120).view(shape).to(torch.float32).to(dtype)


def rows(shape: tuple[int, ...], cuts: list[int], rank: int) -> Box:
    """The rows of one rank, where the tensor is cut at these rows."""
    edges = [0, *cuts, shape[0]]
    return Box((edges[rank], *([0] * (len(shape) - 1))), (edges[rank + 1] - edges[rank], *shape[1:]))


def columns(shape: tuple[int, ...], cuts: list[int], rank: int) -> Box:
    edges = [0, *cuts, shape[1]]
    return Box((0, edges[rank]), (shape[0], edges[rank + 1] - edges[rank]))


def piece(whole: torch.Tensor, box: Box) -> TensorPiece:
    part = whole
    for d, (start, size) in enumerate(zip(box.offsets, box.sizes, strict=True)):
        part = part.narrow(d, start, size)
    return TensorPiece(box, part, tuple(whole.shape))


def empty(whole: torch.Tensor, box: Box) -> TensorPiece:
    return TensorPiece(box, torch.zeros(box.sizes, dtype=whole.dtype), tuple(whole.shape))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(as_bytes(a.contiguous()), as_bytes(b.contiguous()))


def every_type(rank: int, world: int) -> bool:
    """Rows become columns, for every type; a number without dimensions and an empty tensor come along."""
    offers, needs, wholes = {}, {}, {}
    for dtype in DTYPES:
        key = str(dtype)
        wholes[key] = content((5, 7), dtype)
        offers[key] = [piece(wholes[key], rows((5, 7), [1, 1], rank))]
        needs[key] = empty(wholes[key], columns((5, 7), [2, 6], rank))
        scalar = content((), dtype) + 1 if dtype.itemsize > 1 else content((), dtype)
        wholes[key + "0"] = scalar
        if rank == 1:
            offers[key + "0"] = [piece(scalar, Box.whole(()))]
        needs[key + "0"] = empty(scalar, Box.whole(()))
        needs[key + "-"] = empty(torch.empty(0, 3, dtype=dtype), Box.whole((0, 3)))
    exchange(None, offers, needs)
    return all(same(got.tensor, piece(wholes[key], got.box).tensor) for key, got in needs.items() if key in wholes)


def large(rank: int, world: int) -> bool:
    """Messages of several sizes, more of them than may be on the way at a time."""
    redistribute.MESSAGE_BYTES_MAX, redistribute.SMALL_BYTES, redistribute.IN_FLIGHT_BYTES_MAX = 4000, 1000, 9000
    wholes = {str(i): content((i, 50), torch.float32) for i in range(1, 90, 4)}
    offers = {key: [piece(whole, rows(tuple(whole.shape), [0], rank))] for key, whole in wholes.items()}
    others = {key: empty(whole, Box.whole(whole.shape)) for key, whole in wholes.items()}
    needs = others if rank == 0 else {key: empty(w, columns(tuple(w.shape), [20], rank)) for key, w in wholes.items()}
    exchange(None, offers, needs)
    return all(same(got.tensor, piece(wholes[key], got.box).tensor) for key, got in needs.items())


def newcomer(rank: int, world: int) -> list[float]:
    """A tensor that needs a gradient goes from all the others to the last rank."""
    weight = torch.nn.Parameter(torch.full((3,), 0.0 if rank == world - 1 else 7.0))
    whole = TensorPiece(Box.whole((3,)), weight, (3,))
    if rank == world - 1:
        exchange(None, {}, {"w": whole})
    else:
        exchange(None, {"w": [whole]}, {})
    return [float(x) for x in weight.detach()]


def refused(rank: int, world: int, what: str) -> str:
    """What each rank is told when the tensors do not fit."""
    shape, dtype, box = (4,), torch.float32, Box.whole((4,))
    if what == "dtype":
        dtype = torch.float64 if rank == 1 else torch.float32
    if what == "shape":
        shape = (6,) if rank == 1 else (4,)
        box = Box.whole(shape)
    tensor = torch.zeros(3 if what == "own" and rank == 1 else shape, dtype=dtype)
    whole = TensorPiece(box, tensor, shape)
    offers: dict[str, Any] = {} if what == "nobody" or rank else {"w": [whole]}
    try:
        exchange(None, offers, {"w": whole} if rank else {})
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"
