"""Windows: an asker can say anything to an agent, and an agent anything to an asker."""

from __future__ import annotations

import contextlib
import socket

from elastic.core.ps.model import Role
from elastic.core.view import StoreView
from launcher.agent.inspect_server import InspectServer
from launcher.job.status import NodeState, NodeStatus, describe
from launcher.job.status_text import cells, foot_lines
from launcher.logs.recent_starts import RecentStarts
from launcher.wire import inspect_messages
from launcher.wire.inspect_messages import (
    ANSWER_MAX,
    InspectRefusal,
    InspectWelcome,
    LogEnd,
    LogPiece,
    LogQuestion,
    LogStart,
    StacksQuestion,
    StackText,
    StatusQuestion,
    answer_line,
    question_line,
)
from launcher.wire.link_messages import LinkError
from tests.fuzz.links import rounds, run, tcp_pair
from tests.fuzz.target import Target
from tests.support.inspect_documents import snapshot
from tests.support.start_logs import start

NODE = NodeStatus(m_id=0, node="a-1", host="a", ranks=(0,), state=NodeState.RUNNING)


def questions(data: bytes) -> None:
    """A line is a question, which is written again as it was read, or is refused."""
    for line in data.split(b"\n"):
        with contextlib.suppress(LinkError):
            found = inspect_messages.read_question(line)
            assert inspect_messages.read_question(question_line(found).removesuffix(b"\n")) == found


def answers(data: bytes) -> None:
    """A line is an answer, which can be shown to people, or is refused."""
    for line in data.split(b"\n"):
        with contextlib.suppress(LinkError):
            found = inspect_messages.read_answer(line)
            if isinstance(found, inspect_messages.NodeSnapshot):
                assert len(answer_line(found)) <= ANSWER_MAX or not found.workers
                assert all(cell.isprintable() for cell in cells(NODE, found))
                foot_lines(describe(StoreView(), "j"), {found.node: found.waits})


def window(data: bytes) -> None:
    """An asker that knows the secret and says this is answered or sent away, and the agent is as it was."""

    async def stacks(asked: StacksQuestion) -> StackText | InspectRefusal:
        return StackText("Current thread", "somehow")

    async def story() -> None:
        complaints: list[str] = []
        logs = RecentStarts()
        start(logs).write(b"one\ntwo\n")
        one = InspectServer(lambda: snapshot(1), logs, stacks, complaints.append)
        ours, theirs = tcp_pair()
        ours.setblocking(False)
        one.take(ours)
        with theirs:
            theirs.setblocking(False)
            with contextlib.suppress(OSError):
                theirs.send(data)
                await rounds()
                theirs.shutdown(socket.SHUT_WR)
            await rounds(12)
        for asker in (*one._askers, *one._followers):
            asker.cancel()
        await one.close()
        assert not one._askers | one._followers
        assert not complaints, complaints
        assert logs.path("workerlog.3")

    run(story())


ASKED: tuple[inspect_messages.InspectQuestion, ...] = (
    StatusQuestion(),
    LogQuestion(Role.WORKER, 3, 10),
    LogQuestion(Role.WORKER, 3, follow=True, g=1),
    LogQuestion(Role.SERVER, 0),
    StacksQuestion(Role.WORKER, 3),
)
TOLD: tuple[inspect_messages.InspectAnswer, ...] = (
    InspectWelcome(),
    snapshot(1),
    LogStart("/log/workerlog.3"),
    LogPiece(b"one\n", 3),
    LogEnd(1, 0, over=True),
    StackText("Current thread", "somehow"),
    InspectRefusal("no"),
)
QUESTIONS = b"".join(map(question_line, ASKED))
ANSWERS = b"".join(map(answer_line, TOLD))
TARGETS = (
    Target("window questions", questions, (QUESTIONS,)),
    Target(
        "window", window, (QUESTIONS, question_line(StatusQuestion()), question_line(LogQuestion(Role.WORKER, 3, 1)))
    ),
    Target("window answers", answers, (ANSWERS,)),
)
