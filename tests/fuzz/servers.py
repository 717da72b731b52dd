"""Parameter servers: the frames of a message, and the snapshot of a server."""

from __future__ import annotations

import contextlib
import logging

import torch

from elastic.core.ps.model import ClusterSpec
from elastic.errors import MessageError
from elastic.train.ps import protocol
from elastic.train.ps.cluster import cluster_spec
from elastic.train.ps.framing import MessageAssembly, MessageHeader, frames
from launcher.workers.ps_environment import cluster_spec_document
from tests.fuzz.target import Target, scratch
from tests.support.agent_harness import serving

FOLDER = scratch("servers")

BODY_MAX = 1 << 20
KINDS: tuple[type[MessageHeader], ...] = (
    *(
        protocol.SessionRequest,
        protocol.SessionNotice,
        protocol.RegisterRequest,
        protocol.RegisterReply,
        protocol.PushRequest,
    ),
    *(protocol.SessionMessage, protocol.RowsRequest, protocol.ValuesReply),
    *(protocol.SessionChallenge, protocol.SessionProof),
)


def wire(data: bytes) -> None:
    """The first byte says which message is expected, the second into how long frames the rest is cut."""
    if len(data) < 2:
        return
    kind, length, rest = KINDS[data[0] % len(KINDS)], 1 + 8 * data[1], data[2:]
    assembly = MessageAssembly(kind, BODY_MAX)
    with contextlib.suppress(MessageError):
        for start in range(0, len(rest), length):
            assembly.feed(rest[start : start + length])
        header, tensors = assembly.message()
        for tensor, shape in zip(tensors, header.shapes, strict=True):
            assert tuple(tensor.shape) == shape.sizes
            assert tensor.numel() * tensor.itemsize <= BODY_MAX
    assert len(assembly._data) <= len(rest)


def message(number: int, header: MessageHeader, *tensors: torch.Tensor) -> bytes:
    return bytes((number, 255)) + b"".join(frames(header, tensors))


def roster_file(data: bytes) -> None:
    """The launcher's file with who is where."""
    path = FOLDER / "roster.json"
    path.write_bytes(data)
    logging.disable()  # Each one that cannot be read is said.
    try:
        cluster_spec(str(path))
    finally:
        logging.disable(logging.NOTSET)


VIEW = serving().shelf.view
assert VIEW.generation is not None
ROSTER = ClusterSpec.of(VIEW.generation.value)
SEEDS = (
    message(0, protocol.SessionRequest(job="j", server=0, servers=2, worker=1, session="s")),
    message(1, protocol.SessionNotice(life="l", text="waiting")),
    message(
        2,
        protocol.RegisterRequest(
            session="s",
            mode=protocol.UpdateMode.SYNC,
            sgd=protocol.SGD(momentum=0.9),
            pieces=(protocol.PieceSpec("w", (2, 3), "float32", 0, 6, True),),
            tables=(protocol.TableSpec("t", 100, 4, "float32", 1, 0.1),),
            given=(0,),
        ),
        torch.ones(6),
    ),
    message(
        4,
        protocol.PushRequest(session="s", number=1, step=2, lr=0.1, weight=1.0, pieces=(0,), tables=(0,), pull=True),
        torch.ones(6),
        torch.arange(3),
        torch.ones(3, 4),
    ),
    message(6, protocol.RowsRequest(session="s", table=0), torch.arange(3)),
    message(8, protocol.SessionChallenge(version=protocol.VERSION, nonce="0" * 32)),
    message(9, protocol.SessionProof(nonce="0" * 32, mac="0" * 64)),
    message(7, protocol.ValuesReply(step=3), torch.ones(6), torch.empty(0, 4)),
)
TARGETS = (
    Target("ps wire", wire, SEEDS),
    Target(
        "ps roster",
        roster_file,
        (
            b'{"servers":["a:1","b:2"],"workers":[{"node":"a-0001","index":0}],"heters":[]}',
            cluster_spec_document(ROSTER),
        ),
    ),
)
