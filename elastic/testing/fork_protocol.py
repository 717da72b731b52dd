"""What a run and its fork server say to each other: one packet of JSON is one message."""

from __future__ import annotations

import msgspec

PACKET_MAX = 1 << 17


class StartReplica(msgspec.Struct, frozen=True, tag="start"):
    """Fork a replica: its number, its whole environment, and the folder that it is started in."""

    number: int
    env: dict[str, str]
    cwd: str


class SignalReplica(msgspec.Struct, frozen=True, tag="signal"):
    """Signal a replica, or its whole session. One that has ended is no error."""

    number: int
    signal: int
    session: bool = False


class ReplicaExited(msgspec.Struct, frozen=True, tag="exited"):
    """A replica has ended with an exit code, or minus a signal."""

    number: int
    code: int


class ImportsDone(msgspec.Struct, frozen=True, tag="ready"):
    """The imports are done."""


RunMessage = StartReplica | SignalReplica
ForkServerMessage = ReplicaExited | ImportsDone
told = msgspec.json.Decoder(RunMessage)
said = msgspec.json.Decoder(ForkServerMessage)
encode = msgspec.json.Encoder().encode
