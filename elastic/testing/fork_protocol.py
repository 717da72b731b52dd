"""What a run and its fork server say to each other: one packet of JSON is one message."""

from __future__ import annotations

import msgspec

PACKET_MAX = 1 << 17


class Start(msgspec.Struct, frozen=True, tag="start"):
    """Fork a replica: its number, its whole environment, where its output goes, and the run's folder."""

    number: int
    env: dict[str, str]
    cwd: str
    output: str
    folder: str


class Signal(msgspec.Struct, frozen=True, tag="signal"):
    """Signal a replica, or its whole session. One that has ended is no error."""

    number: int
    signal: int
    session: bool = False


class Done(msgspec.Struct, frozen=True, tag="done"):
    """The run is over: its folder is removed by whoever made it."""


class Exited(msgspec.Struct, frozen=True, tag="exited"):
    """A replica has ended with an exit code, or minus a signal."""

    number: int
    code: int


class Ready(msgspec.Struct, frozen=True, tag="ready"):
    """The imports are done."""


Told = Start | Signal | Done
Said = Exited | Ready
told = msgspec.json.Decoder(Told)
said = msgspec.json.Decoder(Said)
encode = msgspec.json.Encoder().encode
