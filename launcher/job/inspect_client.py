"""The client of an agent's inspect server: connects, proves the job's secret, and asks.

    async with InspectClient(job_id, secret, node, member) as one:         # within `CONNECT_LIMIT_S`
        snapshot = await one.snapshot()

What does not come about is `InspectError`, in words that follow "node X at ADDRESS cannot be asked: ".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Final, Self

from elastic._net import connected
from elastic.auth import handshake
from elastic.core.model import Member
from elastic.core.ps.model import Role
from elastic.errors import ElasticError
from launcher.job import process_location
from launcher.job.named_job import NamedJob
from launcher.net.endpoints import join_host_port
from launcher.net.line_socket import watch_by_kernel
from launcher.net.lines import LINE_MAX
from launcher.peers.reachability import reason
from launcher.wire.inspect_messages import (
    InspectAnswer,
    InspectQuestion,
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
from launcher.wire.link_messages import InspectRequest, LinkError, Proof, decode, encode, proofs, read_greeting

CONNECT_LIMIT_S: Final = 3.0
"""From the first packet until both sides have proven themselves."""
ANSWER_LIMIT_S: Final = 15.0
"""So long an answer may take; stacks are looked at for one asker after the other."""
ELSEWHERE: Final = "run this on a machine that reaches it"
AT_ONCE: Final = 500
"""Nodes that are asked at the same time: connections for which the usual limit of open files, 1024, has room."""


class InspectError(ElasticError):
    """An agent cannot be asked, or does not answer. Use a machine of the job's network, or see what the text names."""

    exit_code = 1


class InspectBusy(InspectError):
    """What stands in the way passes by itself. Ask again in a while."""


class InspectClient:
    """One connection to one agent's window."""

    def __init__(
        self, job_id: str, secret: str | None, node: str, member: Member, limit_s: float = CONNECT_LIMIT_S
    ) -> None:
        """`member` is what the node has registered, `secret` what stands in the store."""
        self._job_id = job_id
        self._secret = secret
        self._node = node
        self._member = member
        self._limit_s = limit_s
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises `InspectError`."""
        if not self._member.link or not self._secret:
            raise self._unasked("it does not listen" if self._secret else "the job has no secret in the store yet")
        reached = False
        try:
            async with asyncio.timeout(self._limit_s):
                await self._connect(self._secret)
            reached = True
        except TimeoutError as error:
            raise self._unasked(_silent(self._limit_s)) from error
        except (OSError, ValueError) as error:
            where = f"; {ELSEWHERE}" if isinstance(error, OSError) else ""
            raise self._unasked(reason(error, self._member.host) + where) from error
        finally:
            if not reached:
                self._hang_up()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hang up."""
        self._hang_up()

    async def snapshot(self) -> NodeSnapshot:
        """How the node stands. Raises `InspectError`."""
        await self._ask(StatusQuestion())
        answer = await self._answer()
        if not isinstance(answer, NodeSnapshot):
            raise self._bad_answer()
        return answer

    async def stacks(self, asked: StacksQuestion) -> StackText:
        """The stacks of a process. Raises `InspectError`."""
        await self._ask(asked)
        answer = await self._answer()
        if not isinstance(answer, StackText):
            raise self._bad_answer()
        return answer

    async def log(self, asked: LogQuestion) -> AsyncIterator[LogStart | LogPiece | LogEnd]:
        """The log of a process, piece by piece; the last one is a `LogEnd`. Raises `InspectError`."""
        await self._ask(asked)
        while True:
            answer = await self._answer(None if asked.follow else ANSWER_LIMIT_S)
            if not isinstance(answer, LogStart | LogPiece | LogEnd):
                raise self._bad_answer()
            yield answer
            if isinstance(answer, LogEnd):
                return

    async def _connect(self, secret: str) -> None:
        self._reader, self._writer = await connected(self._member.host, self._member.link)
        watch_by_kernel(self._writer.get_extra_info("socket"))
        greeting = read_greeting((await self._line()).removesuffix(b"\n")[:LINE_MAX])
        if (greeting.job_id, greeting.node) != (self._job_id, self._node):
            raise LinkError(f"another node answers there ({greeting.node} of job {greeting.job_id})")
        if greeting.nonce is None:
            other, unlearned = "it is of another version", "it has not learned the job's secret yet; try again"
            raise LinkError(other if greeting.other_version else unlearned)
        request = InspectRequest(handshake.new_nonce())
        expected = proofs(secret, greeting, request)
        self._writer.write(encode(request))
        line = await self._line()
        if not line:
            raise LinkError("it shows nothing to this job's secret; is it of an older version?")
        answer = decode(line.removesuffix(b"\n"))
        if not isinstance(answer, Proof) or not handshake.is_proof(answer.mac, expected.server):
            raise LinkError("who answers there cannot prove to be it")
        self._writer.write(encode(Proof(expected.client)))
        if not isinstance(await self._answer(None), InspectWelcome):
            raise self._bad_answer()

    async def _ask(self, question: InspectQuestion) -> None:
        assert self._writer is not None
        self._writer.write(question_line(question))

    async def _answer(self, limit_s: float | None = ANSWER_LIMIT_S) -> InspectAnswer:
        try:
            async with asyncio.timeout(limit_s):
                line = await self._line()
            if not line:
                raise self._unasked("it closed the connection")
            answer = read_answer(line.removesuffix(b"\n"))
        except TimeoutError as error:
            raise self._unasked(f"no answer within {limit_s:g} s") from error
        except OSError as error:
            raise self._unasked(reason(error, self._member.host)) from error
        except LinkError as error:
            raise self._bad_answer() from error
        if isinstance(answer, InspectRefusal):
            raise (InspectBusy if answer.later else InspectError)(f"{self._node}: {answer.why}")
        return answer

    async def _line(self) -> bytes:
        assert self._reader is not None
        try:
            return await self._reader.readline()
        except ValueError as error:
            raise LinkError("a line is too long") from error

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()

    def _bad_answer(self) -> InspectError:
        return self._unasked("its answer is not understood; is it of another version?")

    def _unasked(self, why: str) -> InspectError:
        return InspectError(_words(self._node, self._member, why))


async def node_of(job: NamedJob, role: Role, index: int, ended: str) -> InspectClient:
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
    return InspectClient(job.job_id, secret, location.node, stored.value)


async def ask_all(
    job_id: str, secret: str | None, members: Mapping[str, Member], limit_s: float
) -> tuple[dict[str, NodeSnapshot], dict[str, str]]:
    """Ask these members how they stand, all within `limit_s`; and of those that were not asked, why.

    Where they cannot all be asked at once each has its part of the time, so that silent ones take it from nobody.
    """
    gate = asyncio.Semaphore(AT_ONCE)
    each_s = limit_s / max(math.ceil(len(members) / AT_ONCE), 1)
    snapshots: dict[str, NodeSnapshot] = {}
    unasked: dict[str, str] = {}
    tried: set[str] = set()

    async def ask(node: str, member: Member) -> None:
        async with gate:
            tried.add(node)
            try:
                async with asyncio.timeout(each_s), InspectClient(job_id, secret, node, member, each_s) as asking:
                    snapshots[node] = await asking.snapshot()
            except InspectError as error:
                unasked[node] = str(error)
            except TimeoutError:
                unasked[node] = _words(node, member, _silent(each_s))

    try:
        async with asyncio.timeout(limit_s), asyncio.TaskGroup() as group:
            for node, member in members.items():
                group.create_task(ask(node, member))
    except TimeoutError:
        for node, member in members.items():
            if node in tried and node not in snapshots:
                unasked.setdefault(node, _words(node, member, _silent(each_s)))
            elif node not in tried:
                unasked[node] = f"{_named(node, member)} was not asked: others took the {limit_s:g} s that there are"
    return snapshots, unasked


def _silent(limit_s: float) -> str:
    return f"no answer within {limit_s:.3g} s; {ELSEWHERE}"


def _words(node: str, member: Member, why: str) -> str:
    return f"{_named(node, member)} cannot be asked: {why}"


def _named(node: str, member: Member) -> str:
    return f"node {node} at {join_host_port(member.host, member.link)}" if member.link else f"node {node}"
