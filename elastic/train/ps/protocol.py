"""The messages between workers and servers. Each method has one header for its request and one for its reply.

    Session   SessionChallenge         SessionProof              the handshake (`elastic.auth.handshake`)
              SessionRequest           SessionNotice, …          open as long as the worker runs
    Register  RegisterRequest          RegisterReply             the model; waits until there are values, or requests
              (+ values)                                         some, which the next request contains
    Push      PushRequest + gradients  ValuesReply (+ values)    gradients, applied once; with `pull` the values follow
    Pull      SessionMessage           ValuesReply + values      all pieces of this server, in the order registered
    Rows      RowsRequest + ids        ValuesReply + rows        rows of a table
    Close     SessionMessage           ValuesReply               this worker has finished, and will not return

Pieces and tables are named by their place in the registration.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated

import msgspec

from elastic.auth.handshake import MAC, NONCE
from elastic.train.ps.framing import DIMENSIONS_MAX, DTYPES, DtypeName, MessageHeader, Size, TensorShape

VERSION = 4
"""The version of this protocol. A server refuses a worker with another one."""

PACKAGE = "elastic.train.ps"
"""The name of the gRPC service."""

Index = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
Word = Annotated[str, msgspec.Meta(max_length=256)]
Text = Annotated[str, msgspec.Meta(max_length=4096)]
FloatName = Annotated[
    str, msgspec.Meta(pattern=rf"^({'|'.join(name for name, dtype in DTYPES.items() if dtype.is_floating_point)})\Z")
]
Amount = Annotated[float, msgspec.Meta(ge=0, le=sys.float_info.max)]
"""A number that is neither negative nor infinite, nor none."""
Nonce = Annotated[str, msgspec.Meta(pattern=rf"^{NONCE}\Z")]
Mac = Annotated[str, msgspec.Meta(pattern=rf"^{MAC}\Z")]


class UpdateMode(StrEnum):
    """Determines when a server applies gradients."""

    SYNC = "sync"
    """The gradients of a step are applied together, once all live workers have sent theirs."""
    ASYNC = "async"
    """Each gradient is applied as soon as it arrives."""


class SGD(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of the update, as in `torch.optim.SGD`. Each push contains the learning rate."""

    momentum: Annotated[float, msgspec.Meta(ge=0, lt=1)] = 0.0
    weight_decay: Amount = 0.0


class PieceSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A piece of a dense parameter: which numbers of its flat row, and of what the whole is made."""

    name: Name
    sizes: Annotated[tuple[Size, ...], msgspec.Meta(max_length=DIMENSIONS_MAX)]
    dtype: DtypeName
    start: Count
    stop: Count
    trained: bool

    @property
    def shape(self) -> TensorShape:
        """The piece as it is sent: a flat row."""
        return TensorShape(self.dtype, (self.stop - self.start,))

    def __str__(self) -> str:
        """Say it in an error."""
        return f"{self.name} of shape {list(self.sizes)} and {self.dtype} ({self.start} to {self.stop})"


class TableSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A sparse table: `rows` rows of `width` numbers; what a row is at first follows from `seed` and its id."""

    name: Name
    rows: Count
    width: Annotated[int, msgspec.Meta(ge=1, le=2**24)]
    dtype: FloatName
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
    std: Amount

    def __str__(self) -> str:
        """Say it in an error."""
        return f"table {self.name} of {self.rows} rows of {self.width} {self.dtype}, seed {self.seed}, std {self.std}"


class SessionChallenge(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=False):
    """The first message of a worker, of any version: it asks the server to prove that it knows the job's secret."""

    version: int
    nonce: Nonce = ""


class SessionProof(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's proof, and its nonce, for which the worker makes its own."""

    nonce: Nonce
    mac: Mac


class SessionRequest(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A worker opens its session. Another `session` of the same worker number replaces the older one.

    `mac` is the worker's proof that it knows the job's secret.
    """

    mac: Mac = ""
    job: Word
    server: Index
    servers: Index
    worker: Index
    session: Word


class SessionNotice(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A notice of a server: first that the session is open, later which workers a step waits for.

    `life` is a new ID after each start of the server.
    """

    life: Word = ""
    text: Text = ""


class SessionMessage(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The session of a request, once a worker has opened one. Some requests have no other fields."""

    session: Word


class RegisterRequest(SessionMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The part of the model that belongs to this server, and how it is trained.

    The values of the pieces `given` follow; pieces that already have values keep them.
    """

    mode: UpdateMode
    sgd: SGD
    pieces: tuple[PieceSpec, ...]
    tables: tuple[TableSpec, ...]
    given: tuple[Index, ...] = ()


class ValuesReply(MessageHeader, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The requested values, if there are any, and the step whose gradients are being gathered."""

    step: Count = 0


class RegisterReply(ValuesReply, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`wanted`: the pieces without values, for which this worker has to send its own."""

    wanted: tuple[Index, ...] = ()


class PushRequest(SessionMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Gradients: first those of `pieces`, then ids and rows for each of `tables`.

    `number` counts a session's pushes; a number that was applied is not applied again. `step` is the synchronous step
    that they are for. `weight` is this worker's share in the step's average.
    """

    number: Count
    step: Count
    lr: Amount
    weight: Annotated[float, msgspec.Meta(gt=0, le=sys.float_info.max)]
    pieces: tuple[Index, ...]
    tables: tuple[Index, ...]
    pull: bool


class RowsRequest(SessionMessage, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rows of a table with the ids that follow."""

    table: Index
