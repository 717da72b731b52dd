"""The queries of a status client and the answers of an agent, as values and lines (pure).

    agent                                         client
    elastic-launch 4 <job> <node> <nonce>   ──►                   the greeting for every client
    (`launcher.wire.link_messages`)
                                            ◄──  InspectRequest   asks for status, not for a link
    Proof                                   ──►                   that the agent knows the job's secret
                                            ◄──  Proof            that the client knows it too
    InspectWelcome                          ──►
                                            ◄──  Now, Log, Stacks     one query, then the next
    Snapshot                                ──►
    LogStart, LogPiece …, LogEnd            ──►
    StackText                               ──►
    Refusal                                 ──►             instead of any answer: why there is none

A client can only read. Its proof covers its role: a client cannot pass for an agent with it, and an agent's proof does
not authenticate a client. A query is one line of JSON of at most `QUESTION_MAX` bytes, an answer one of at most
`ANSWER_MAX`. `LinkError` is raised for any other line.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec.structs import replace

from elastic.core.model import Step
from elastic.core.ps.model import Role
from launcher.net.lines import LINE_MAX
from launcher.wire.link_messages import read_line

QUESTION_MAX: Final = LINE_MAX
"""Maximum bytes of a query with its line end."""
ANSWER_MAX: Final = 64 << 10
"""Maximum bytes of an answer with its line end; asyncio's default limit of a line."""
PIECE_BYTES: Final = 32 << 10
"""Bytes of a log in one answer; base64 adds a third."""
LINES_MAX: Final = 100_000
"""Maximum lines of a log that a query asks for; an agent retains only the newest 256 kB of a start."""
WORDS_MAX: Final = 1000
"""Maximum characters of a text in an answer."""
METRICS_MAX: Final = 16
"""Maximum number of metrics of a worker."""
SILENT_MAX: Final = 16
"""Maximum number of silent nodes in a snapshot, and of evicted hosts."""
STACKS_BYTES: Final = 40_000
"""Longer stack traces are truncated: JSON needs several bytes for some characters."""

Index = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class WorkerState(StrEnum):
    """The state of a worker, as far as its agent knows."""

    STARTING = "starting"
    RUNNING = "running"
    PREPARING = "preparing"
    JOINING = "joining"
    IN_GROUP = "in group"
    RESTORED = "restored"
    STEPPING = "stepping"
    SERVING = "serving"
    STOPPING = "stopping"
    EXITED = "exited"


class WorkerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one process of a node.

    `index` is its rank, or the index of its task. `detail` adds to the state: what it prepares, what it waits for, how
    it ended. `since_s` is the duration of the state. `step` is the last reported step, `step_age_s` its age; `rate` are
    recent steps per second, `rate_g` since the first report of generation `g`. None: unknown. `code` is the exit code,
    or minus the signal. `log` is a path on its host.
    """

    role: Role
    index: int
    local_rank: int
    pid: int
    g: int
    state: WorkerState
    detail: str = ""
    since_s: float = 0.0
    step: Step | None = None
    step_age_s: float | None = None
    rate: float | None = None
    rate_g: float | None = None
    metrics: Mapping[str, float | None] = msgspec.field(default_factory=dict)
    code: int | None = None
    log: str = ""


class SilentNode(msgspec.Struct, frozen=True, kw_only=True):
    """A node from which the agent has received nothing for `silent_s`, longer than the node's timeout."""

    node: str
    silent_s: float


class EvictedHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host whose node `node` was recently evicted: its silence counts again in `counts_in_s`.

    `returned`: the node has registered again, as far as the leader knows.
    """

    host: str
    node: str
    counts_in_s: float
    returned: bool = False


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """The state of one node, as its agent knows it.

    `g` is the newest generation that it knows, `m_id` its place there, None if it has none. `state` says what the node
    does, for `since_s`. `lease_age_s` is the time since the lease was renewed, `lease_remaining_s` the time for which
    the node may still run workers if no renewal succeeds; both are None without a lease. `waits` is a sentence about
    what the node waits for, "" if it does not wait. `workers` are those of the newest start, including workers that
    have ended; `more` of them did not fit. `silent` are the watched nodes from which nothing was received for longer
    than their timeout; the leader watches all nodes, and its next successors watch the leader. `evicted` are hosts
    whose silence does not count yet. `imports` lists the modules of the script that its workers find loaded, and those
    that were left out, with the reason; "" while none was learned.
    """

    job_id: str
    node: str
    host: str
    version: str
    pid: int
    up_s: float
    g: int
    m_id: int | None
    state: str
    since_s: float
    lease_age_s: float | None
    lease_remaining_s: float | None
    waits: str
    workers: tuple[WorkerSnapshot, ...] = ()
    more: int = 0
    silent: tuple[SilentNode, ...] = ()
    evicted: tuple[EvictedHost, ...] = ()
    imports: str = ""


class StatusQuestion(msgspec.Struct, frozen=True, tag="status"):
    """Requests the state of the node. Answered by `NodeSnapshot`."""


class LogQuestion(msgspec.Struct, frozen=True, tag="log"):
    """Requests the log of a process. Answered by `LogStart`, any number of `LogPiece`, and `LogEnd`.

    The answer has the retained starts after the one of generation `g` and cluster spec revision `rev`, at most the last
    `lines` lines of them. With an `offset` it also has that start, from this byte on. `follow`: it continues with new
    output until the newest of these starts has ended. With `since_s` and without an `offset`, it has only the lines of
    the last `since_s` seconds.
    """

    role: Role
    index: Index
    lines: Annotated[int, msgspec.Meta(ge=0, le=LINES_MAX)] = LINES_MAX
    follow: bool = False
    g: Stamp = 0
    rev: Stamp = 0
    offset: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1
    since_s: Annotated[float, msgspec.Meta(ge=0)] | None = None


class StacksQuestion(msgspec.Struct, frozen=True, tag="stacks"):
    """Requests the stack traces of a process. Answered by `StackText`."""

    role: Role
    index: Index


InspectQuestion = StatusQuestion | LogQuestion | StacksQuestion


class InspectWelcome(msgspec.Struct, frozen=True, tag="welcome"):
    """The agent has accepted the client's proof."""


class LogStart(msgspec.Struct, frozen=True, tag="log start"):
    """The path of the whole log on the node's host."""

    path: str


class LogPiece(msgspec.Struct, frozen=True, tag="log piece"):
    """Unchanged bytes of a log (in JSON: base64), after `missing` bytes that the agent no longer has.

    They belong to the start of generation `g` and cluster spec revision `rev`, and end at its byte `offset`.
    """

    data: bytes
    missing: int = 0
    g: Stamp = 0
    rev: Stamp = 0
    offset: Stamp = 0


class LogEnd(msgspec.Struct, frozen=True, tag="log end"):
    """The end of the answer. Its newest start is that of generation `g` and cluster spec revision `rev`.

    `over`: this start has ended, and its log is complete. Both numbers are 0 if there was no start.
    """

    g: Stamp
    rev: Stamp
    over: bool


class StackText(msgspec.Struct, frozen=True, tag="stack text"):
    """The stack traces of all threads of a process, and how they were obtained."""

    text: str
    how: str


class InspectRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """Why the agent does not answer a query, as one line. `later`: a retry can succeed once another client is gone."""

    why: str
    later: bool = False


InspectAnswer = InspectWelcome | NodeSnapshot | LogStart | LogPiece | LogEnd | StackText | InspectRefusal

_QUESTIONS: msgspec.json.Decoder[InspectQuestion] = msgspec.json.Decoder(InspectQuestion)
_ANSWERS: msgspec.json.Decoder[InspectAnswer] = msgspec.json.Decoder(InspectAnswer)


def question_line(question: InspectQuestion) -> bytes:
    """Encode a query as one line."""
    return msgspec.json.encode(question) + b"\n"


def read_question(line: bytes) -> InspectQuestion:
    """Decode a query, without its line end. Raises `LinkError` for anything else."""
    return read_line(_QUESTIONS, line, "a query")


def answer_line(answer: InspectAnswer) -> bytes:
    """Encode an answer as one line of at most `ANSWER_MAX` bytes; a large snapshot is reduced to fit."""
    line = msgspec.json.encode(answer) + b"\n"
    if len(line) <= ANSWER_MAX or not isinstance(answer, NodeSnapshot):
        return line
    workers = tuple(replace(worker, metrics={}) for worker in answer.workers)
    while len(line) > ANSWER_MAX:
        line = msgspec.json.encode(replace(answer, workers=workers, more=len(answer.workers) - len(workers))) + b"\n"
        workers = workers[: len(workers) // 2]
    return line


def read_answer(line: bytes) -> InspectAnswer:
    """Decode an answer, without its line end. Raises `LinkError` for anything else."""
    return read_line(_ANSWERS, line, "an answer")
