"""What somebody at the page asks a node for: the end of a worker's log, and its stacks. It changes nothing."""

from __future__ import annotations

from typing import Any, Final

from launcher.job import placement
from launcher.job.connect import node_of
from launcher.job.job import Job
from launcher.text.sanitize import clean
from launcher.wire.inspect import Log, LogEnd, LogPiece, LogStart, Stacks

LINES: Final = 200
BYTES_MAX: Final = 1 << 18


async def log(job: Job, named: str) -> dict[str, Any]:
    """The last lines of the log of a process, and its path. Raises `Unasked`, `ConfigError`, `StoreError`."""
    role, index = placement.named(named)
    path, data = "", b""
    async with await node_of(job, role, index, "its log is a file on the host where it ran") as one:
        async for answer in one.log(Log(role, index, LINES)):
            match answer:
                case LogStart():
                    path = answer.path
                case LogPiece():
                    data = (data + answer.data)[-BYTES_MAX:]
                case LogEnd():
                    pass
    return {"path": path, "text": shown(data)}


def shown(data: bytes) -> str:
    """Lines of a log as a terminal would show them in the end, without colours."""
    return "\n".join(map(clean, data.decode(errors="replace").split("\n")))


async def stacks(job: Job, named: str) -> dict[str, Any]:
    """The stacks of a process, and how they were had. Raises `Unasked`, `ConfigError`, `StoreError`."""
    role, index = placement.named(named)
    async with await node_of(job, role, index, "none has stacks") as one:
        answer = await one.stacks(Stacks(role, index))
    return {"how": answer.how, "text": answer.text}
