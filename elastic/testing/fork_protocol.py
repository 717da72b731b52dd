"""The messages between a run and its fork server: one JSON packet each."""

from __future__ import annotations

import msgspec

PACKET_MAX = 1 << 17


class StartReplica(msgspec.Struct, frozen=True, tag="start"):
    """Fork a replica with this number, environment and working directory."""

    number: int
    env: dict[str, str]
    cwd: str


class SignalReplica(msgspec.Struct, frozen=True, tag="signal"):
    """Signal a replica, or its whole session; no error if it has exited."""

    number: int
    signal: int
    session: bool = False


class ReplicaExited(msgspec.Struct, frozen=True, tag="exited"):
    """A replica has exited with an exit code, or minus the number of a signal."""

    number: int
    code: int


class ImportsDone(msgspec.Struct, frozen=True, tag="ready"):
    """The server has imported everything."""


RunMessage = StartReplica | SignalReplica
ForkServerMessage = ReplicaExited | ImportsDone
run_messages = msgspec.json.Decoder(RunMessage)
server_messages = msgspec.json.Decoder(ForkServerMessage)
encode = msgspec.json.Encoder().encode
