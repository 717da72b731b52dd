"""The messages between the agent and its fork server: one JSON object per line, checked on both sides.

Orders go from the agent to the fork server, reports in the other direction. Standard library only, so that the fork
server starts fast: the check is written by hand, without msgspec. Every time in a message is `CLOCK_BOOTTIME` in
seconds, which both processes read alike and which counts through a suspend of the host. Messages are named tuples: as
dataclasses they would take both processes 10 ms of each start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeVar

MESSAGE_MAX = 256 << 20
"""Bytes in one message. The largest is a `SpawnWorkers`: a few hundred workers with 128 kB of environment each."""

SECONDS_MAX = 1e12
"""The largest time in a message. The limit also rules out NaN and infinity."""

FDS_PER_WORKER = 2
"""Descriptors that travel with a `SpawnWorkers` for each worker, in the order of its workers: stdout, stderr."""


class WireError(ValueError):
    """A message does not fit its schema. It is a bug in elastic-launch: the reader closes the channel."""


class WorkerStart(NamedTuple):
    """One worker to start."""

    local_rank: int
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str


class SpawnWorkers(NamedTuple):
    """Start these workers as generation `g`. Their descriptors travel with this message."""

    g: int
    workers: tuple[WorkerStart, ...]


class SetDeadline(NamedTuple):
    """The workers may run until `t_s`; the latest message counts."""

    t_s: float


class TerminateWorkers(NamedTuple):
    """SIGTERM to the process groups of these workers now, SIGKILL after `stop_timeout_s`; () means all of them."""

    stop_timeout_s: float
    local_ranks: tuple[int, ...] = ()


class KillWorkers(NamedTuple):
    """SIGKILL to everything now."""


class CloseNursery(NamedTuple):
    """Kill everything, then exit gracefully."""


class ModuleToLoad(NamedTuple):
    """A module that a script has imported from `file`, after it had `changed` this of its process.

    `file` is "" if it is not known; `changed` as in `elastic.channel.messages.ScriptImport`.
    """

    name: str
    file: str
    changed: tuple[str, ...]


class PrepareSuccessor(NamedTuple):
    """Fork a successor that also loads these modules. Its socket to the agent travels with this message.

    `differing` are the environment variables that a worker has and a fork server has not, or has with another value;
    `changed` those that the script changes before its process group forms. `own` are the names of the user's modules.
    It takes `share` of a core. `within` is the command of the script whose static imports bound what is loaded, () for
    no bound.
    """

    modules: tuple[ModuleToLoad, ...]
    differing: tuple[str, ...]
    changed: tuple[str, ...]
    own: tuple[str, ...]
    share: float
    within: tuple[str, ...] = ()


class HandOver(NamedTuple):
    """Nothing runs: exit, and leave the node to the successor."""


class RenewNursery(NamedTuple):
    """Nothing runs: start over in the same process, and send `NurseryReady` again. No order is sent until then."""


class NurseryUp(NamedTuple):
    """The fork server runs: it holds its lock, and signals no longer reach it.

    With that of a successor travels a descriptor of its process (pidfd).
    """


class NurseryReady(NamedTuple):
    """The fork server has finished its imports, and accepts orders. `cold` says why it preloads nothing, "" if it does.

    `said` is the output of its imports; `watched` are stamps of files (`preload.stamp`) that make it out of date.
    `loaded` are the modules of the script that a successor has loaded.
    """

    cold: str
    said: str
    watched: tuple[str, ...]
    loaded: tuple[str, ...] = ()


class ModuleBegins(NamedTuple):
    """A successor loads this module next: if no report follows, it was this module that ended it."""

    name: str


class ModuleUnfit(NamedTuple):
    """The last message of a successor that has loaded a module that it must not load, and why it must not."""

    name: str
    why: str


class OrderAck(NamedTuple):
    """The total number of orders that were carried out: the answer to each order."""

    orders: int


class ChildrenForked(NamedTuple):
    """The workers of `g` were forked; pid 0 means that one could not be. In the order of the `SpawnWorkers`.

    `cold` has for each the reason why it started without preloading, "" if it did not.
    """

    g: int
    pids: tuple[int, ...]
    cold: tuple[str, ...]


class ChildrenSignalled(NamedTuple):
    """SIGTERM was sent to these workers of `g`."""

    g: int
    local_ranks: tuple[int, ...]


class ChildExited(NamedTuple):
    """A worker exited: its exit code or minus its signal. `stopped`: the fork server had signalled it before.

    As the agent hands it on, `stopped` is also true of a worker that exited on request.
    """

    g: int
    local_rank: int
    code: int
    at_s: float
    stopped: bool


class GenerationExited(NamedTuple):
    """Nothing of `g` runs any more, except the processes in `left`, which belong to another user."""

    g: int
    left: tuple[int, ...]


class GenerationExpired(NamedTuple):
    """The deadline has passed, or was never set: the workers of `g` were killed or not started."""

    g: int


NurseryOrder = (
    SpawnWorkers
    | SetDeadline
    | TerminateWorkers
    | KillWorkers
    | PrepareSuccessor
    | HandOver
    | RenewNursery
    | CloseNursery
)
NurseryReport = (
    NurseryUp
    | NurseryReady
    | ModuleBegins
    | ModuleUnfit
    | OrderAck
    | ChildrenForked
    | ChildrenSignalled
    | ChildExited
    | GenerationExited
    | GenerationExpired
)
Message = TypeVar("Message")

ORDERS: Mapping[str, type[NurseryOrder]] = {
    "Spawn": SpawnWorkers,
    "Until": SetDeadline,
    "Stop": TerminateWorkers,
    "Kill": KillWorkers,
    "Prepare": PrepareSuccessor,
    "HandOver": HandOver,
    "Renew": RenewNursery,
    "Close": CloseNursery,
}
REPORTS: Mapping[str, type[NurseryReport]] = {
    "Ready": NurseryUp,
    "Prepared": NurseryReady,
    "Loads": ModuleBegins,
    "Unfit": ModuleUnfit,
    "Obeyed": OrderAck,
    "Started": ChildrenForked,
    "Signalled": ChildrenSignalled,
    "Ended": ChildExited,
    "Vanished": GenerationExited,
    "Overran": GenerationExpired,
}
"""The kind of a message as it is sent, and its class."""
KINDS: Mapping[type, str] = {
    WorkerStart: "Start",
    ModuleToLoad: "Module",
    **{of: kind for kind, of in (*ORDERS.items(), *REPORTS.items())},
}


def encode(message: NurseryOrder | NurseryReport) -> bytes:
    """Return one line. Environments that are not UTF-8 survive it (surrogate escapes)."""
    raw = message._asdict()
    if isinstance(message, SpawnWorkers):
        raw["workers"] = [start._asdict() for start in message.workers]
    if isinstance(message, PrepareSuccessor):
        raw["modules"] = [module._asdict() for module in message.modules]
    return json.dumps({"kind": KINDS[type(message)], **raw}).encode("ascii") + b"\n"


def decode(line: bytes, kinds: Mapping[str, type[Message]]) -> Message:
    """Read one line as a message of `kinds`, `ORDERS` or `REPORTS`. Raises `WireError` for anything else."""
    try:
        raw = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise WireError("a message is an object")
    name = raw.pop("kind", None)
    if not isinstance(name, str) or name not in kinds:
        raise WireError(f"unknown kind {name!r}")
    return _build(kinds[name], raw)


def _build(kind: type[Message], raw: object) -> Message:
    """Return an instance of `kind` from an object that has exactly its fields, with their types."""
    wanted: dict[str, str] = {name: of.__forward_arg__ for name, of in kind.__annotations__.items()}
    if not isinstance(raw, dict) or raw.keys() != wanted.keys():
        raise WireError(f"{KINDS[kind]} has the fields {sorted(wanted)}")
    return kind(**{name: _value(f"{KINDS[kind]}.{name}", of, raw[name]) for name, of in wanted.items()})


def _value(where: str, wanted: str, value: object) -> Any:
    """Return the value as the type that the field names; it is text here because annotations are postponed."""
    match wanted, value:
        case ("bool", bool()) | ("str", str()):
            return value
        case "int", int() if not isinstance(value, bool):
            return value
        case "float", int() | float() if not isinstance(value, bool) and abs(value) <= SECONDS_MAX:  # NaN is not.
            return float(value)
        case "tuple[str, ...]", list() if all(isinstance(part, str) for part in value):
            return tuple(value)
        case "tuple[int, ...]", list() if all(type(part) is int for part in value):
            return tuple(value)
        case "dict[str, str]", dict() if all(isinstance(part, str) for part in value.values()):
            return value
        case "tuple[WorkerStart, ...]", list():
            return tuple(_build(WorkerStart, part) for part in value)
        case "tuple[ModuleToLoad, ...]", list():
            return tuple(_build(ModuleToLoad, part) for part in value)
    raise WireError(f"{where} is not {wanted}")
