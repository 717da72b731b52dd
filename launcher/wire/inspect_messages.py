"""What an operator asks one agent, and what it answers, as values and lines (pure).

    agent                                         asker
    elastic-launch 4 <job> <node> <nonce>   ──►                   as to everybody that connects
    (`launcher.wire.link_messages`)
                                            ◄──  InspectRequest   it makes no link
    Proof                                   ──►                   that the agent knows the job's secret
                                            ◄──  Proof            that the asker knows it, too
    InspectWelcome                          ──►
                                            ◄──  Now, Log, Stacks     one question, then the next
    Snapshot                                ──►
    LogStart, LogPiece …, LogEnd            ──►
    StackText                               ──►
    Refusal                                 ──►             instead of any answer: why there is none

An asker can only read. Its proof has a role of its own: with it nobody passes for an agent, and no agent's proof opens
a window. A question is one line of JSON of at most `QUESTION_MAX` bytes, an answer one of at most `ANSWER_MAX`.
`LinkError` says that a line is none.
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
"""Bytes of a question with its end."""
ANSWER_MAX: Final = 64 << 10
"""Bytes of an answer with its end; asyncio reads no longer line by default."""
PIECE_BYTES: Final = 32 << 10
"""Bytes of a log in one answer, where they take a third more."""
LINES_MAX: Final = 100_000
"""More lines of a log nobody asks for; an agent has the newest 256 kB of a start in any case."""
WORDS_MAX: Final = 1000
"""Characters of a text in an answer."""
METRICS_MAX: Final = 16
"""So many metrics of a worker are told."""
SILENT_MAX: Final = 16
"""Silent nodes in a snapshot, and evicted hosts."""
STACKS_BYTES: Final = 40_000
"""Stacks that are longer are cut: JSON may need more for some signs."""

Index = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Stamp = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class WorkerState(StrEnum):
    """What a worker does, as far as its agent knows."""

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
    """One process of a node, now.

    `index` is its rank, or the index of its seat. `detail` adds to the state: what it prepares, whom it waits for, how
    it ended. `since_s`: so long it has been so. `step` is the last that it reported, `step_age_s` how long ago; `rate`
    are steps per second lately, `rate_g` since the first report of generation `g`. None: that is not known. `code` is
    the exit code, or minus the signal. `log` is a path on its host.
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
    """A host whose node `node` was evicted lately: its silence counts again in `counts_in_s`.

    `returned`: the node has registered again, as far as the leader knows.
    """

    host: str
    node: str
    counts_in_s: float
    returned: bool = False


class NodeSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """One node, now, as its agent knows it.

    `g` is the newest generation that it knows, `m_id` its place there, None if it has none. `state` says in words what
    the node does, for `since_s`. `lease_age_s` counts from the last good refresh, `right_s` is left of its right to
    run; None while it has none. `waits` is the sentence that says what it waits for, "" if it does not. `workers` are
    those of the newest start, also when they have ended; `more` of them found no room. `silent` are the watched nodes
    from which nothing was received for longer than their timeout; the leader watches all nodes, and those that would
    lead next watch the leader. `evicted` are hosts whose silence does not count yet. `imports` says
    which modules of the script its workers find loaded, and which were left out and why; "" while none was learned.
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
    run_deadline_s: float | None = msgspec.field(name="right_s")
    waits: str
    workers: tuple[WorkerSnapshot, ...] = ()
    more: int = 0
    silent: tuple[SilentNode, ...] = ()
    evicted: tuple[EvictedHost, ...] = ()
    imports: str = ""


class StatusQuestion(msgspec.Struct, frozen=True, tag="now"):
    """How does this node stand? Answered by `NodeSnapshot`."""


class LogQuestion(msgspec.Struct, frozen=True, tag="log"):
    """What has a process written? Answered by `LogStart`, any number of `LogPiece`, and `LogEnd`.

    Of the starts that the agent still has, those after the one of generation `g` and roster revision `rev` are told, at
    most the last `lines` lines of them. With an `offset` that one is told, too, from there on, and all after it.
    `follow`: and what comes, until the newest of these starts has ended.
    """

    role: Role
    index: Index
    lines: Annotated[int, msgspec.Meta(ge=0, le=LINES_MAX)] = LINES_MAX
    follow: bool = False
    g: Stamp = 0
    rev: Stamp = 0
    offset: Annotated[int, msgspec.Meta(ge=-1, le=2**53)] = -1


class StacksQuestion(msgspec.Struct, frozen=True, tag="stacks"):
    """Where is a process just now? Answered by `StackText`."""

    role: Role
    index: Index


InspectQuestion = StatusQuestion | LogQuestion | StacksQuestion


class InspectWelcome(msgspec.Struct, frozen=True, tag="shown"):
    """The agent has taken the asker's proof."""


class LogStart(msgspec.Struct, frozen=True, tag="log start"):
    """Where the whole log is: a path on the node's host."""

    path: str


class LogPiece(msgspec.Struct, frozen=True, tag="log piece"):
    """Bytes of a log as they are (in JSON: base64), after `missing` that the agent does not have any more.

    They are of the start of generation `g` and roster revision `rev`, and end at its byte `offset`.
    """

    data: bytes
    missing: int = 0
    g: Stamp = 0
    rev: Stamp = 0
    offset: Stamp = 0


class LogEnd(msgspec.Struct, frozen=True, tag="log end"):
    """Nothing more comes. The newest start that was told is that of generation `g` and roster revision `rev`.

    `over`: it has ended, and this is all that there will ever be of it. Both are 0 if there was none to tell.
    """

    g: Stamp
    rev: Stamp
    over: bool


class StackText(msgspec.Struct, frozen=True, tag="stack text"):
    """The stacks of all threads of a process, and how they were had."""

    text: str
    how: str


class InspectRefusal(msgspec.Struct, frozen=True, tag="refusal"):
    """There is no answer to this, and why: one line for people. `later`: there will be, once somebody else has gone."""

    why: str
    later: bool = False


InspectAnswer = InspectWelcome | NodeSnapshot | LogStart | LogPiece | LogEnd | StackText | InspectRefusal

_QUESTIONS: msgspec.json.Decoder[InspectQuestion] = msgspec.json.Decoder(InspectQuestion)
_ANSWERS: msgspec.json.Decoder[InspectAnswer] = msgspec.json.Decoder(InspectAnswer)


def question_line(question: InspectQuestion) -> bytes:
    """Write a question as one line."""
    return msgspec.json.encode(question) + b"\n"


def read_question(line: bytes) -> InspectQuestion:
    """Read a question, without its end. Raises `LinkError` for anything else."""
    return read_line(_QUESTIONS, line, "a question")


def answer_line(answer: InspectAnswer) -> bytes:
    """Write an answer as one line of at most `ANSWER_MAX` bytes; of a snapshot what finds room."""
    line = msgspec.json.encode(answer) + b"\n"
    if len(line) <= ANSWER_MAX or not isinstance(answer, NodeSnapshot):
        return line
    workers = tuple(replace(worker, metrics={}) for worker in answer.workers)
    while len(line) > ANSWER_MAX:
        line = msgspec.json.encode(replace(answer, workers=workers, more=len(answer.workers) - len(workers))) + b"\n"
        workers = workers[: len(workers) // 2]
    return line


def read_answer(line: bytes) -> InspectAnswer:
    """Read an answer, without its end. Raises `LinkError` for anything else."""
    return read_line(_ANSWERS, line, "an answer")
