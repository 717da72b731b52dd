"""The messages between a worker and its agent, and their encoding.

The agent listens on a Unix socket (SOCK_SEQPACKET: one packet is one message) in its private directory, and passes the
path in ELASTIC_CHANNEL. Messages are JSON with a schema. Standard library and msgspec only.
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
"""The most bytes of one message."""
METRICS_MAX = 64
VARIABLE = "ELASTIC_CHANNEL"
SERVERS_FROM = 1 << 20
"""Servers have no rank; as senders they count from here."""

TEXT_MAX = 4096
"""The most characters of a text. An agent closes the connection of a worker that sends more."""

NAME_MAX = 200
"""The most characters of the name of a module, or of a variable that the script has changed."""
MODULES_MAX, MODULES_BYTES_MAX = 300, 40_000
OWN_FILES_MAX = 1000
IMPORTS_BYTES_MAX = 60_000
"""Limits of `ScriptImports`: its modules, its files, and the whole message."""

Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Moment = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
"""Seconds of `clock`; 0.0: the time of arrival."""


class WorkerHello(msgspec.Struct, frozen=True, tag="hello"):
    """The identity of the sender: the first message of each connection.

    `stacks_signal` is the signal that makes the worker write the stack traces of all its threads to its stderr; 0: none
    does.
    """

    rank: Number
    local_rank: Number
    pid: Number
    generation: Number
    stacks_signal: Number


class Preparing(msgspec.Struct, frozen=True, tag="preparing"):
    """The script is alive but not ready yet; it downloads data, for example. Ended by `PreparationOver`."""

    what: Text


class PreparationOver(msgspec.Struct, frozen=True, tag="ready"):
    """The preparation is over."""


class JoiningGroup(msgspec.Struct, frozen=True, tag="joining"):
    """This worker waits for others before its process group forms; `missing` names them, in words.

    `prepares`: one of them has reported that it prepares something. `met`: all have joined, and the group is about to
    form. `at`: when the script asked for its process group.
    """

    missing: Text
    prepares: bool = False
    met: bool = False
    at: Moment = 0.0


class GroupFormed(msgspec.Struct, frozen=True, tag="formed"):
    """The process group formed at `at`."""

    at: Moment = 0.0


class AcceptsPlannedStop(msgspec.Struct, frozen=True, tag="listening"):
    """The script commits its steps from now on, so the agent may send `PlannedStopRequest`."""


class RestoreDone(msgspec.Struct, frozen=True, tag="restored"):
    """This worker restored its state at `at`: that of `step`, -1 if training begins."""

    step: Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
    at: Moment = 0.0


class FirstCommit(msgspec.Struct, frozen=True, tag="committed"):
    """The first commit of this generation was made, at `at`."""

    at: Moment = 0.0


class Serving(msgspec.Struct, frozen=True, tag="standing"):
    """A process of a parameter-server job began its work at `at`: a server listens, or a worker has made a step."""

    at: Moment = 0.0


class Progress(msgspec.Struct, frozen=True, tag="progress"):
    """A step was made at `at`. `metrics` has the loss under "loss"; None: a value that is not finite.

    `total` is the number of steps of the whole training; 0: unknown.
    """

    step: Number
    world: Number
    metrics: Annotated[
        dict[Annotated[str, msgspec.Meta(max_length=64)], float | None], msgspec.Meta(max_length=METRICS_MAX)
    ]
    at: Moment = 0.0
    total: Number = 0


class CheckpointSaved(msgspec.Struct, frozen=True, tag="saved"):
    """A checkpoint of `step` is complete in `folder`, a path on this worker's host."""

    step: Number
    folder: Text


class SavedAndLeaving(msgspec.Struct, frozen=True, tag="left"):
    """After `PlannedStopRequest`: everything is saved at `step`, and this worker exits now, with any exit code."""

    step: Number


class Unrecoverable(msgspec.Struct, frozen=True, tag="hopeless"):
    """This worker ends with exit code `code`, as each further start would, for the reason in `text`.

    A script may catch the exception and continue; `GroupFormed`, `AcceptsPlannedStop` and `FirstCommit` then revoke
    this message.
    """

    text: Text
    code: Number


class AgentLogLine(msgspec.Struct, frozen=True, tag="note"):
    """One line for the agent to log. `warn`: also with --quiet."""

    text: Text
    warn: bool = False


class SegmentRequest(msgspec.Struct, frozen=True, tag="wanted"):
    """Request for a shared memory segment `name` that outlives this worker. Size 0: only an existing one.

    Answered by `Segment`, with a descriptor, or `SegmentDenied`. A segment of another size is replaced.
    """

    name: Annotated[str, msgspec.Meta(max_length=128)]
    size: Number


class PlannedStopRequest(msgspec.Struct, frozen=True, tag="stop"):
    """Request for a planned stop: finish a common step, save, and exit with code 143."""

    reason: Text


class Segment(msgspec.Struct, frozen=True, tag="segment"):
    """The requested segment, with `size` in bytes; its descriptor is sent with this message."""

    size: Number


class SegmentDenied(msgspec.Struct, frozen=True, tag="refused"):
    """The segment is not available, for the reason `why`."""

    why: Text


ModuleName = Annotated[str, msgspec.Meta(max_length=NAME_MAX)]
ChangedNames = Annotated[tuple[Annotated[str, msgspec.Meta(max_length=NAME_MAX)], ...], msgspec.Meta(max_length=100)]
"""Names of environment variables, and of other state under names that no variable can have ("sys.argv")."""


class ScriptImport(msgspec.Struct, frozen=True, omit_defaults=True):
    """A module that the script has imported from `file` ("": any location), after it had changed `changed`."""

    name: ModuleName
    file: Text = ""
    changed: ChangedNames = ()


class OwnFile(msgspec.Struct, frozen=True):
    """A file of the user that the script runs, as the module `name` or as `__main__`."""

    name: ModuleName
    file: Text


class ScriptImports(msgspec.Struct, frozen=True, tag="imports", omit_defaults=True):
    """The modules that the script imported before its process group formed, in order, without preloaded ones.

    `changed` is what the script had changed by then. `script_imports` makes a message that fits into a packet.
    """

    modules: Annotated[tuple[ScriptImport, ...], msgspec.Meta(max_length=MODULES_MAX)]
    changed: ChangedNames = ()
    own: Annotated[tuple[OwnFile, ...], msgspec.Meta(max_length=OWN_FILES_MAX)] = ()


class StartedAgain(msgspec.Struct, frozen=True, tag="again"):
    """The script has set a variable that a preloaded module had already read: it runs again in a fresh process."""

    variable: Annotated[str, msgspec.Meta(max_length=NAME_MAX)]


WorkerMessage = (
    WorkerHello | Preparing | PreparationOver | JoiningGroup | GroupFormed | AcceptsPlannedStop | RestoreDone |
    FirstCommit | Serving | Progress | CheckpointSaved | SavedAndLeaving | Unrecoverable | AgentLogLine |
    SegmentRequest | ScriptImports | StartedAgain
)  # fmt: skip
"""A message from a worker."""
AgentMessage = PlannedStopRequest | Segment | SegmentDenied
"""A message from an agent."""

said = msgspec.json.Decoder(WorkerMessage)
told = msgspec.json.Decoder(AgentMessage)
_encoder = msgspec.json.Encoder()
_Item = TypeVar("_Item", ScriptImport, OwnFile)


def script_imports(
    modules: Iterable[ScriptImport], changed: Iterable[str], own: Iterable[OwnFile]
) -> ScriptImports | None:
    """Make the largest message that fits into a packet; None if `changed` alone does not fit.

    Without `changed`, no module may be preloaded. The last files are dropped first, then the last modules, because
    each module is loaded after those before it. An item that cannot be encoded, because of invalid bytes or a name that
    is too long, ends its list too.
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
    """Return the first items that can be encoded and take at most `limit_bytes`."""
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
    """Name the sender for people: "rank 3", "server 1"."""
    return f"server {rank - SERVERS_FROM}" if rank >= SERVERS_FROM else f"rank {rank}"


clock: Final[Callable[[], float]] = functools.partial(time.clock_gettime, time.CLOCK_BOOTTIME)
"""Seconds of the clock that all processes of a host share. Workers read it in every step."""


def truncate_text(text: str, length: int = TEXT_MAX) -> str:
    """Shorten a text to `length` characters, and replace what UTF-8 cannot encode (odd bytes in a file name)."""
    return (text if len(text) <= length else f"{text[: length - 1]}…").encode(errors="replace").decode()


def encode(message: WorkerMessage | AgentMessage) -> bytes:
    """Encode a message as one packet."""
    return _encoder.encode(message)
