"""`elastic-ctl logs --previous`: what a process wrote in the generation before the newest one."""

from __future__ import annotations

from elastic.core.ps.model import ClusterSpec, Role
from elastic.core.text import process_name
from elastic.core.view import StoreView
from launcher.ctl.logs.output import LogOutput
from launcher.job import process_location
from launcher.job.inspect_client import InspectClient, InspectError
from launcher.job.named_job import NamedJob
from launcher.wire.inspect_messages import LogPiece, LogQuestion

Stamp = tuple[int, int]


async def print_previous(job: NamedJob, view: StoreView, role: Role, index: int, lines: int, output: LogOutput) -> None:
    """Write the last lines of the process's previous start. Raises `InspectError` if no node has them."""
    node, wanted = _place(view, role, index)
    stored = view.members.get(node)
    name = process_name(role, index)
    if stored is None:
        raise InspectError(f"{name} was on node {node}, which is not registered any more; its log is on that host")
    secret = view.secret.value if view.secret is not None else None
    starts: dict[Stamp, bytes] = {}
    async with InspectClient.connect(job.job_id, secret, node, stored.value) as client:
        async for answer in client.log(LogQuestion(role, index)):
            if isinstance(answer, LogPiece):
                piece_of = (answer.g, answer.rev)
                starts[piece_of] = starts.get(piece_of, b"") + answer.data
    stamp = previous_start(starts, wanted)
    if stamp is None:
        raise InspectError(
            f"node {node} has no log of {name} before the newest start any more; it is in the log's file"
        )
    output.feed(last_lines(starts[stamp], lines))


def _place(view: StoreView, role: Role, index: int) -> tuple[str, int | None]:
    """The node that had the process before, and its generation there; None: the start before the newest one."""
    generation = view.current_generation
    location = process_location.locate(view, role, index)
    if location is None or generation is None:
        raise InspectError(process_location.why_absent(view, role, index))
    if isinstance(generation, ClusterSpec) or location.stamp[0] != generation.g:
        return location.node, None
    before, m_id = generation.before, index // generation.slots
    if before is None:
        raise InspectError(f"generation {generation.g} is the first: {process_name(role, index)} has no earlier log")
    if m_id >= len(before.nodes):
        raise InspectError(f"there was no {process_name(role, index)} in generation {before.g}")
    return before.nodes[m_id], before.g


def previous_start(starts: dict[Stamp, bytes], g: int | None) -> Stamp | None:
    """The newest start of generation `g`, or with None the one before the newest; None if it is not among them."""
    stamps = sorted(starts)
    if g is None:
        return stamps[-2] if len(stamps) > 1 else None
    return max((stamp for stamp in stamps if stamp[0] == g), default=None)


def last_lines(data: bytes, lines: int) -> bytes:
    """The end of a log."""
    split = data.splitlines(keepends=True)
    return b"".join(split[max(len(split) - lines, 0) :])
