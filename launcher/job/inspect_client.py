"""The client of an agent's status endpoint: connects, authenticates with the job's secret, and sends queries.

    async with InspectClient.connect(job_id, secret, node, member) as one:     # within `CONNECT_LIMIT_S`
        snapshot = await one.snapshot()

A failure raises `InspectError`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self, TypeVar

from elastic._net import connected
from elastic.auth import handshake
from elastic.core.model import Member
from elastic.core.ps.model import Role
from elastic.errors import ElasticError
from launcher.job import process_location
from launcher.job.named_job import NamedJob
from launcher.net.endpoints import join_host_port
from launcher.net.line_socket import watch_by_kernel
from launcher.peers.authentication import authenticate_listener, read_line
from launcher.peers.reachability import reason
from launcher.text.failure_report import HOW_ENDED
from launcher.wire.inspect_messages import (
    InspectAnswer,
    InspectRefusal,
    InspectWelcome,
    LogEnd,
    LogPiece,
    LogQuestion,
    LogStart,
    NodeSnapshot,
    StacksQuestion,
    StackText,
    StatusQuestion,
    question_line,
    read_answer,
)
from launcher.wire.link_messages import InspectRequest, LinkError, Proof, encode

CONNECT_LIMIT_S: Final = 3.0
"""Time limit from the first packet until both sides have authenticated."""
ANSWER_LIMIT_S: Final = 15.0
"""Time limit of an answer; an agent reads stack traces for one client after the other."""
ELSEWHERE: Final = "run this on a host that can connect to it"
NOT_UNDERSTOOD: Final = "cannot parse its answer; it may run another version"
AT_ONCE: Final = 500
"""Nodes that are queried at the same time: their connections fit into the usual limit of 1024 open files."""


_Answer = TypeVar("_Answer", bound=InspectAnswer)
_OF_A_LOG: Final[tuple[type[LogStart | LogPiece | LogEnd], ...]] = (LogStart, LogPiece, LogEnd)


class InspectError(ElasticError):
    """An agent cannot be queried, or does not answer. Use a host in the job's network, or see what the text names."""

    exit_code = 1


class InspectBusy(InspectError):
    """The obstacle is temporary. Try again in a while."""


@dataclass(frozen=True, slots=True)
class InspectClient:
    """One connection to the status endpoint of an agent; `member` is the registration of its node."""

    node: str
    member: Member
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, job_id: str, secret: str | None, node: str, member: Member, limit_s: float = CONNECT_LIMIT_S
    ) -> AsyncIterator[Self]:
        """Connect until the block ends; `secret` is the job's secret from the store. Raises `InspectError`."""
        if not member.link or not secret:
            why = "its agent has no open port" if secret else "the job has no secret in etcd yet"
            raise InspectError(_words(node, member, why))
        with ExitStack() as connection:
            try:
                async with asyncio.timeout(limit_s):
                    reader, writer = await connected(member.host, member.link)
                    connection.callback(writer.transport.abort)
                    client = cls(node, member, reader, writer)
                    await client._authenticate(job_id, secret)
            except TimeoutError as error:
                raise InspectError(_words(node, member, _silent(limit_s))) from error
            except (OSError, ValueError) as error:
                where = f"; {ELSEWHERE}" if isinstance(error, OSError) else ""
                raise InspectError(_words(node, member, reason(error, member.host) + where)) from error
            yield client

    async def snapshot(self) -> NodeSnapshot:
        """Return the state of the node. Raises `InspectError`."""
        self.writer.write(question_line(StatusQuestion()))
        return await self._answer(NodeSnapshot)

    async def stacks(self, asked: StacksQuestion) -> StackText:
        """Return the stack traces of a process. Raises `InspectError`."""
        self.writer.write(question_line(asked))
        return await self._answer(StackText)

    async def log(self, asked: LogQuestion) -> AsyncIterator[LogStart | LogPiece | LogEnd]:
        """Yield the log of a process, piece by piece; the last item is a `LogEnd`. Raises `InspectError`."""
        self.writer.write(question_line(asked))
        while True:
            answer = await self._answer(*_OF_A_LOG, limit_s=None if asked.follow else ANSWER_LIMIT_S)
            yield answer
            if isinstance(answer, LogEnd):
                return

    async def _authenticate(self, job_id: str, secret: str) -> None:
        """Authenticate both sides: each proves that it knows the secret."""
        watch_by_kernel(self.writer.get_extra_info("socket"))
        request = InspectRequest(handshake.new_nonce())
        expected = await authenticate_listener(self.reader, self.writer, job_id, self.node, secret, request)
        self.writer.write(encode(Proof(expected.client)))
        await self._answer(InspectWelcome, limit_s=None)

    async def _answer(self, *kinds: type[_Answer], limit_s: float | None = ANSWER_LIMIT_S) -> _Answer:
        """Read the next answer, which must be of one of these kinds."""
        try:
            async with asyncio.timeout(limit_s):
                line = await read_line(self.reader)
            if not line:
                raise self._unasked("it closed the connection")
            answer = read_answer(line.removesuffix(b"\n"))
        except OSError as error:
            late = limit_s is not None and isinstance(error, TimeoutError)  # Otherwise it is the kernel's.
            why = f"no answer within {limit_s:g} s" if late else reason(error, self.member.host)
            raise self._unasked(why) from error
        except LinkError as error:
            raise self._unasked(NOT_UNDERSTOOD) from error
        if isinstance(answer, InspectRefusal):
            raise (InspectBusy if answer.later else InspectError)(f"{self.node}: {answer.why}")
        if not isinstance(answer, kinds):
            raise self._unasked(NOT_UNDERSTOOD)
        return answer

    def _unasked(self, why: str) -> InspectError:
        return InspectError(_words(self.node, self.member, why))


async def node_of(job: NamedJob, role: Role, index: int, ended: str) -> AbstractAsyncContextManager[InspectClient]:
    """Connect to the node of a running process; `ended` ends the error message if the job has ended.

    Raises `InspectError`, `NoSuchJob`, `StoreError`.
    """
    view = await job.view()
    if why := process_location.elsewhere(view):
        raise InspectError(why)
    if view.verdict is not None:
        raise InspectError(f"the job {HOW_ENDED[view.verdict.value.status]}: no worker runs, and {ended}")
    location = process_location.locate(view, role, index)
    if location is None:
        raise InspectError(process_location.why_absent(view, role, index))
    stored = view.members.get(location.node)
    if stored is None:
        raise InspectError(f"node {location.node} of host {location.host} is no longer registered")
    secret = view.secret.value if view.secret is not None else None
    return InspectClient.connect(job.job_id, secret, location.node, stored.value)


async def ask_all(
    job_id: str, secret: str | None, members: Mapping[str, Member], limit_s: float
) -> tuple[dict[str, NodeSnapshot], dict[str, str]]:
    """Query the state of these members within `limit_s`; return the answers, and why the others have none.

    If there are too many to query at once, each gets its share of the time, so that silent nodes do not delay others.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    each_s = limit_s / max(math.ceil(len(members) / AT_ONCE), 1)
    snapshots: dict[str, NodeSnapshot] = {}
    unreachable = {
        node: f"{_named(node, member)} was not queried: other nodes took all of the {limit_s:g} s"
        for node, member in members.items()
    }

    async def ask(node: str, member: Member) -> None:
        async with gate:
            unreachable[node] = _words(node, member, _silent(each_s))
            with suppress(TimeoutError):
                try:
                    async with (
                        asyncio.timeout(each_s),
                        InspectClient.connect(job_id, secret, node, member, each_s) as asking,
                    ):
                        snapshots[node] = await asking.snapshot()
                        del unreachable[node]
                except InspectError as error:
                    unreachable[node] = str(error)

    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for node, member in members.items():
                group.create_task(ask(node, member))
    return snapshots, unreachable


def _silent(limit_s: float) -> str:
    return f"no answer within {limit_s:.3g} s; {ELSEWHERE}"


def _words(node: str, member: Member, why: str) -> str:
    return f"cannot query {_named(node, member)}: {why}"


def _named(node: str, member: Member) -> str:
    return f"node {node} at {join_host_port(member.host, member.link)}" if member.link else f"node {node}"
