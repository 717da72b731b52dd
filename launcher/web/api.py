"""The requests of the page to a node (end of a log, stack traces), and its actions."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

from elastic._decode import UNREADABLE
from elastic.errors import ConfigError
from launcher.config import readers
from launcher.config.durations import duration
from launcher.job import process_location
from launcher.job.inspect_client import node_of
from launcher.job.named_job import NamedJob
from launcher.job.stop import stop, why
from launcher.job.submit import DEADLINE_MIN_S, drain, scale
from launcher.text.sanitize import sanitize_line
from launcher.wire.inspect_messages import LogPiece, LogQuestion, LogStart, StacksQuestion

LINES: Final = 200
BYTES_MAX: Final = 1 << 18


async def log(job: NamedJob, named: str) -> dict[str, Any]:
    """Return the last lines of the log of a process, and its path.

    Raises `InspectError`, `ConfigError`, `StoreError`.
    """
    role, index = process_location.named(named)
    path, data = "", b""
    async with await node_of(job, role, index, "its log is a file on the host where it ran") as client:
        async for answer in client.log(LogQuestion(role, index, LINES)):
            match answer:
                case LogStart():
                    path = answer.path
                case LogPiece():
                    data = (data + answer.data)[-BYTES_MAX:]
    return {"path": path, "text": log_as_shown(data)}


def log_as_shown(data: bytes) -> str:
    """Return the lines of a log as a terminal finally shows them, without colours."""
    return "\n".join(map(sanitize_line, data.decode(errors="replace").split("\n")))


async def stacks(job: NamedJob, named: str) -> dict[str, Any]:
    """Return the stack traces of a process, and how they were taken.

    Raises `InspectError`, `ConfigError`, `StoreError`.
    """
    role, index = process_location.named(named)
    async with await node_of(job, role, index, "none has stack traces") as one:
        answer = await one.stacks(StacksQuestion(role, index))
    return {"how": answer.how, "text": answer.text}


ACTION_BYTES_MAX: Final = 4096
TEXT_MAX: Final = 300


Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]


class ScaleCommand(msgspec.Struct, frozen=True, tag_field="action", tag="scale", forbid_unknown_fields=True):
    """Change np."""

    np: Text


class DrainCommand(msgspec.Struct, frozen=True, tag_field="action", tag="drain", forbid_unknown_fields=True):
    """Drain a node, within `deadline` if it has one."""

    node: Text
    deadline: Text = ""


class StopCommand(msgspec.Struct, frozen=True, tag_field="action", tag="stop", forbid_unknown_fields=True):
    """Stop the job; `now`: its workers do not save."""

    now: bool = False


async def carry_out(job: NamedJob, asked: bytes) -> str:
    """Carry out an action; return the message about its effect. Raises `ConfigError`, `OrderRejected`, `StoreError`."""
    try:
        action = _DECODER.decode(asked)
    except UNREADABLE as error:
        raise ConfigError(f"cannot parse the action: {error}") from error
    match action:
        case ScaleCommand():
            return await scale(job, readers.read_as("np", readers.np, action.np))
        case DrainCommand():
            read = duration(DEADLINE_MIN_S)
            deadline_s = readers.read_as("deadline", read, action.deadline) if action.deadline else None
            return (await drain(job, [action.node], deadline_s))[0]
        case _:
            return (await stop(job, why(at_once=action.now), at_once=action.now))[0]


_DECODER: Final = msgspec.json.Decoder(ScaleCommand | DrainCommand | StopCommand)
