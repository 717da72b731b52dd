"""The client of an agent's inspect server: connects, proves the job's secret, and asks.

    async with InspectClient.connect(job_id, secret, node, member) as one:     # within `CONNECT_LIMIT_S`
        snapshot = await one.snapshot()

What does not come about is `InspectError`, in words that follow "node X at ADDRESS cannot be asked: ".
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
"""From the first packet until both sides have proven themselves."""
ANSWER_LIMIT_S: Final = 15.0
"""So long an answer may take; stacks are looked at for one asker after the other."""
ELSEWHERE: Final = "run this on a machine that reaches it"
NOT_UNDERSTOOD: Final = "its answer is not understood; is it of another version?"
AT_ONCE: Final = 500
"""Nodes that are asked at the same time: connections for which the usual limit of open files, 1024, has room."""


_Answer = TypeVar("_Answer", bound=InspectAnswer)
_OF_A_LOG: Final[tuple[type[LogStart | LogPiece | LogEnd], ...]] = (LogStart, LogPiece, LogEnd)


class InspectError(ElasticError):
    """An agent cannot be asked, or does not answer. Use a machine of the job's network, or see what the text names."""

    exit_code = 1


class InspectBusy(InspectError):
    """What stands in the way passes by itself. Ask again in a while."""


@dataclass(frozen=True, slots=True)
class InspectClient:
    """One connection to one agent's window; `member` is what the node has registered."""

    node: str
    member: Member
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, job_id: str, secret: str | None, node: str, member: Member, limit_s: float = CONNECT_LIMIT_S
    ) -> AsyncIterator[Self]:
        """Connect, until the block ends; `secret` is what stands in the store. Raises `InspectError`."""
        if not member.link or not secret:
            why = "it does not listen" if secret else "the job has no secret in the store yet"
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
        """How the node stands. Raises `InspectError`."""
        self.writer.write(question_line(StatusQuestion()))
        return await self._answer(NodeSnapshot)

    async def stacks(self, asked: StacksQuestion) -> StackText:
        """The stacks of a process. Raises `InspectError`."""
        self.writer.write(question_line(asked))
        return await self._answer(StackText)

    async def log(self, asked: LogQuestion) -> AsyncIterator[LogStart | LogPiece | LogEnd]:
        """The log of a process, piece by piece; the last one is a `LogEnd`. Raises `InspectError`."""
        self.writer.write(question_line(asked))
        while True:
            answer = await self._answer(*_OF_A_LOG, limit_s=None if asked.follow else ANSWER_LIMIT_S)
            yield answer
            if isinstance(answer, LogEnd):
                return

    async def _authenticate(self, job_id: str, secret: str) -> None:
        """Have both sides prove that they know the secret."""
        watch_by_kernel(self.writer.get_extra_info("socket"))
        request = InspectRequest(handshake.new_nonce())
        expected = await authenticate_listener(self.reader, self.writer, job_id, self.node, secret, request)
        self.writer.write(encode(Proof(expected.client)))
        await self._answer(InspectWelcome, limit_s=None)

    async def _answer(self, *kinds: type[_Answer], limit_s: float | None = ANSWER_LIMIT_S) -> _Answer:
        """The next answer, which is to be of one of these kinds."""
        try:
            async with asyncio.timeout(limit_s):
                line = await read_line(self.reader)
            if not line:
                raise self._unasked("it closed the connection")
            answer = read_answer(line.removesuffix(b"\n"))
        except OSError as error:
            late = limit_s is not None and isinstance(error, TimeoutError)  # Without a limit it is the kernel's.
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
    """Whom to ask for a process that runs; `ended` says what follows for it from the end of the job.

    Raises `InspectError`, `NoSuchJob`, `StoreError`.
    """
    view = await job.view()
    if why := process_location.elsewhere(view):
        raise InspectError(why)
    if view.verdict is not None:
        raise InspectError(f"the job has {view.verdict.value.status}: no worker runs, and {ended}")
    location = process_location.locate(view, role, index)
    if location is None:
        raise InspectError(process_location.why_absent(view, role, index))
    stored = view.members.get(location.node)
    if stored is None:
        raise InspectError(f"node {location.node} of host {location.host} is not registered any more")
    secret = view.secret.value if view.secret is not None else None
    return InspectClient.connect(job.job_id, secret, location.node, stored.value)


async def ask_all(
    job_id: str, secret: str | None, members: Mapping[str, Member], limit_s: float
) -> tuple[dict[str, NodeSnapshot], dict[str, str]]:
    """Ask these members how they stand, all within `limit_s`; and of those that were not asked, why.

    Where they cannot all be asked at once each has its part of the time, so that silent ones take it from nobody.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    each_s = limit_s / max(math.ceil(len(members) / AT_ONCE), 1)
    snapshots: dict[str, NodeSnapshot] = {}
    unasked = {
        node: f"{_named(node, member)} was not asked: others took the {limit_s:g} s that there are"
        for node, member in members.items()
    }

    async def ask(node: str, member: Member) -> None:
        async with gate:
            unasked[node] = _words(node, member, _silent(each_s))
            with suppress(TimeoutError):
                try:
                    async with (
                        asyncio.timeout(each_s),
                        InspectClient.connect(job_id, secret, node, member, each_s) as asking,
                    ):
                        snapshots[node] = await asking.snapshot()
                        del unasked[node]
                except InspectError as error:
                    unasked[node] = str(error)

    with suppress(TimeoutError):
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for node, member in members.items():
                group.create_task(ask(node, member))
    return snapshots, unasked


def _silent(limit_s: float) -> str:
    return f"no answer within {limit_s:.3g} s; {ELSEWHERE}"


def _words(node: str, member: Member, why: str) -> str:
    return f"{_named(node, member)} cannot be asked: {why}"


def _named(node: str, member: Member) -> str:
    return f"node {node} at {join_host_port(member.host, member.link)}" if member.link else f"node {node}"
