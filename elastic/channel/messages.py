"""What a worker and its agent say to each other: the messages, and how they are written and read.

The agent listens on a Unix socket (SOCK_SEQPACKET: one packet is one message) in its private folder and names it in
ELASTIC_CHANNEL. Messages are JSON with a schema. Standard library and msgspec only.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Annotated, Final

import msgspec

PACKET_MAX = 64 << 10
"""Bytes of one message."""
METRICS_MAX = 64
MODULES_MAX = 300
"""Modules of a script that are named."""
OWN_MAX = 100
"""Modules of the user that are named."""
CHANGED_MAX = 100
NAME_MAX = 200
VARIABLE = "ELASTIC_CHANNEL"
SERVERS_FROM = 1 << 20
"""Servers have no rank. Among those who speak they count from here."""

TEXT_MAX = 4096
"""Characters of a text. An agent hangs up on who says more."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds of `clock`; 0.0: the moment in which it is heard."""


class WorkerHello(msgspec.Struct, frozen=True, tag="hello"):
    """Who speaks: the first message of each connection.

    `stacks_signal` makes the worker write the stacks of all its threads to its stderr; 0: it cannot.
    """

    rank: Number
    local_rank: Number
    pid: Number
    generation: Number
    stacks_signal: Number


class Preparing(msgspec.Struct, frozen=True, tag="preparing"):
    """The script is alive and not ready yet: it downloads, it unpacks. Ended by `PreparationOver`."""

    what: Text


class PreparationOver(msgspec.Struct, frozen=True, tag="ready"):
    """The preparation is over."""


class JoiningGroup(msgspec.Struct, frozen=True, tag="joining"):
    """This worker waits for others before the process group stands; `missing` names them, in words.

    `prepares`: one of them says that it prepares something. `met`: all are there, and their group is about to stand.
    `at`: when the script asked for its process group.
    """

    missing: Text
    prepares: bool = False
    met: bool = False
    at: Moment = 0.0


class GroupFormed(msgspec.Struct, frozen=True, tag="formed"):
    """The process group stands, since `at`."""

    at: Moment = 0.0


class AcceptsPlannedStop(msgspec.Struct, frozen=True, tag="listening"):
    """From now on the script commits its steps: a planned stop can be asked for with `PlannedStopRequest`."""


class RestoreDone(msgspec.Struct, frozen=True, tag="restored"):
    """This worker has its state since `at`: that of `step`, -1 if training begins."""

    step: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    at: Moment = 0.0


class FirstCommit(msgspec.Struct, frozen=True, tag="committed"):
    """The first commit of this generation was made, at `at`."""

    at: Moment = 0.0


class Serving(msgspec.Struct, frozen=True, tag="standing"):
    """A process of a parameter-server job does its work since `at`: a server listens, a worker has made a step."""

    at: Moment = 0.0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step was made, at `at`. `metrics` has the loss under "loss"; None: it was not finite, which JSON cannot say.

    `total` is how many steps there will be in all, as far as is known; 0: nobody said so.
    """

    step: Number
    world: Number
    metrics: Annotated[
        dict[Annotated[str, msgspec.Meta(max_length=64)], float | None], msgspec.Meta(max_length=METRICS_MAX)
    ]
    at: Moment = 0.0
    total: Number = 0


class CheckpointSaved(msgspec.Struct, frozen=True, tag="saved"):
    """A checkpoint of `step` is complete in `folder`, as this worker's host names it."""

    step: Number
    folder: Text


class SavedAndLeaving(msgspec.Struct, frozen=True, tag="left"):
    """After `PlannedStopRequest`: all is saved at `step`, and this worker ends now, whatever its exit code will be."""

    step: Number


class Unrecoverable(msgspec.Struct, frozen=True, tag="hopeless"):
    """This worker ends with exit code `code`, and would at each further start, for the reason in `text`.

    A script may catch what says so and go on: then `GroupFormed`, `AcceptsPlannedStop` and `FirstCommit` take it back.
    """

    text: Text
    code: Number


class AgentLogLine(msgspec.Struct, frozen=True, tag="note"):
    """One line for people, to be said by the agent. `warn`: also with --quiet."""

    text: Text
    warn: bool = False


class SegmentRequest(msgspec.Struct, frozen=True, tag="wanted"):
    """A piece of memory that outlives this worker, under `name`. Size 0: only if it is there already.

    Answered by `Segment`, with a descriptor, or `SegmentDenied`. A segment of another size is replaced.
    """

    name: Annotated[str, msgspec.Meta(max_length=128)]
    size: Number


class PlannedStopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """A planned stop: finish a common step, save, leave with exit code 143."""

    reason: Text


class Segment(msgspec.Struct, frozen=True, tag="segment"):
    """The memory that was wanted; its descriptor travels with this message."""

    size: Number


class SegmentDenied(msgspec.Struct, frozen=True, tag="refused"):
    """There is no such memory, and why."""

    why: Text


Name = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
"""Of a module, or of a variable of the environment."""


class ScriptImport(msgspec.Struct, frozen=True):
    """A module that the script has imported from `file`, and what it had changed in its process before.

    `changed` are names of environment variables, and of what `launcher.nursery.process_state` compares.
    """

    name: Name
    file: Text
    changed: Annotated[tuple[Name, ...], msgspec.Meta(max_length=CHANGED_MAX)] = ()


class OwnModule(msgspec.Struct, frozen=True):
    """A module of the user's own, and its file."""

    name: Name
    file: Text


class ScriptImports(msgspec.Struct, frozen=True, tag="imports"):
    """What the script has imported before its process group stood, in that order, beside what it found loaded.

    `changed` are the environment variables that it had changed by then, `own` the user's modules that it had imported.
    """

    modules: Annotated[tuple[ScriptImport, ...], msgspec.Meta(max_length=MODULES_MAX)]
    changed: Annotated[tuple[Name, ...], msgspec.Meta(max_length=CHANGED_MAX)] = ()
    own: Annotated[tuple[OwnModule, ...], msgspec.Meta(max_length=OWN_MAX)] = ()


class StartedAgain(msgspec.Struct, frozen=True, tag="again"):
    """The script has set this variable, which a module loaded before it had read: its process begins anew, cold."""

    variable: Name


WorkerMessage = (
    WorkerHello | Preparing | PreparationOver | JoiningGroup | GroupFormed | AcceptsPlannedStop | RestoreDone |
    FirstCommit | Serving | Progress | CheckpointSaved | SavedAndLeaving | Unrecoverable | AgentLogLine |
    SegmentRequest | ScriptImports | StartedAgain
)  # fmt: skip
"""What a worker says."""
AgentMessage = PlannedStopRequest | Segment | SegmentDenied
"""What an agent says."""

said = msgspec.json.Decoder(WorkerMessage)
told = msgspec.json.Decoder(AgentMessage)
_encoder = msgspec.json.Encoder()


def speaker_name(rank: int) -> str:
    """A process that speaks, in words."""
    return f"server {rank - SERVERS_FROM}" if rank >= SERVERS_FROM else f"rank {rank}"


clock: Final[Callable[[], float]] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds of the clock that all processes of a machine share. It is asked in every step."""


def truncate_text(text: str, length: int = TEXT_MAX) -> str:
    """A text as it may be said: not too long, and without what UTF-8 cannot say (odd bytes in the name of a file)."""
    return (text if len(text) <= length else f"{text[: length - 1]}…").encode(errors="replace").decode()


def encode(message: WorkerMessage | AgentMessage) -> bytes:
    """One packet."""
    return _encoder.encode(message)
