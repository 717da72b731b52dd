"""What a worker and its agent say to each other: the messages, and how they are written and read.

The agent listens on a Unix socket (SOCK_SEQPACKET: one packet is one message) in its private folder and names it in
ELASTIC_CHANNEL. Messages are JSON with a schema. Standard library and msgspec only.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Callable, Iterable
from typing import Annotated, Final, TypeVar

import msgspec

from elastic._decode import UNREADABLE

PACKET_MAX = 64 << 10
"""Bytes of one message."""
METRICS_MAX = 64
VARIABLE = "ELASTIC_CHANNEL"
SERVERS_FROM = 1 << 20
"""Servers have no rank. Among those who speak they count from here."""

TEXT_MAX = 4096
"""Characters of a text. An agent hangs up on who says more."""

NAME_MAX = 200
"""Characters in the name of a module, or of a variable that the script has changed."""
MODULES_MAX, MODULES_BYTES_MAX = 300, 40_000
OWN_FILES_MAX = 1000
IMPORTS_BYTES_MAX = 60_000
"""Of `ScriptImports`: its modules, its files, and all of it together."""

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


ModuleName = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
ChangedNames = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=NAME_MAX)], ...], msgspec.Meta(max_length=100)]
"""Environment variables, and other state under a name that no variable has ("sys.argv")."""


class ScriptImport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module that the script has imported from `file`, after it had changed `changed`; file "": wherever it is."""

    name: ModuleName
    file: Text = ""
    changed: ChangedNames = ()


class OwnFile(msgspec.Struct, frozen=True):
    """A file of the user that the script runs: the module of this name, or `__main__`."""

    name: ModuleName
    file: Text


class ScriptImports(msgspec.Struct, frozen=True, tag="imports", omit_defaults=True):
    """What the script has imported before its process group formed, in that order: modules that it did not find loaded.

    `changed` is what the script had changed by then. `script_imports` makes one that fits into a packet.
    """

    modules: Annotated[tuple[ScriptImport, ...], msgspec.Meta(max_length=MODULES_MAX)]
    changed: ChangedNames = ()
    own: Annotated[tuple[OwnFile, ...], msgspec.Meta(max_length=OWN_FILES_MAX)] = ()


class StartedAgain(msgspec.Struct, frozen=True, tag="again"):
    """The script has set this variable, which a module loaded before it had read: its process is run again, cold."""

    variable: Annotated[str, msgspec.Meta(max_length=NAME_MAX)]


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
_Item = TypeVar("_Item", ScriptImport, OwnFile)


def script_imports(
    modules: Iterable[ScriptImport], changed: Iterable[str], own: Iterable[OwnFile]
) -> ScriptImports | None:
    """As much of it as one packet takes; None if it does not take `changed`, without which no module may be loaded.

    The last files are left out first, then the last modules: each module is loaded after those before it. What cannot
    be said, because of odd bytes or a name that is too long, ends its list, too.
    """
    imports = ScriptImports((), tuple(changed))
    try:
        size = len(encode(said.decode(encode(imports))))
    except UNREADABLE:
        return None
    fitting = _fitting(modules, ScriptImport, min(MODULES_BYTES_MAX, IMPORTS_BYTES_MAX - size), MODULES_MAX)
    imports = msgspec.structs.replace(imports, modules=fitting)
    room = IMPORTS_BYTES_MAX - len(encode(imports))
    return msgspec.structs.replace(imports, own=_fitting(own, OwnFile, room, OWN_FILES_MAX))


def _fitting(items: Iterable[_Item], kind: type[_Item], limit_bytes: int, items_max: int) -> tuple[_Item, ...]:
    """The first items that can be said and take `limit_bytes` at most."""
    decoder, fitting = msgspec.json.Decoder(kind), list[_Item]()
    for item in itertools.islice(items, items_max):
        try:
            data = _encoder.encode(item)
            fitting.append(decoder.decode(data))
        except UNREADABLE:
            break
        limit_bytes -= len(data) + 1
        if limit_bytes < 0:
            fitting.pop()
            break
    return tuple(fitting)


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
