"""What an asker and an agent say to each other: questions, answers and limits."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from elastic.core.ps.model import Role
from launcher.wire import inspect_messages
from launcher.wire.inspect_messages import (
    ANSWER_MAX,
    LINES_MAX,
    PIECE_BYTES,
    QUESTION_MAX,
    SILENT_MAX,
    STACKS_BYTES,
    EvictedHost,
    InspectQuestion,
    InspectRefusal,
    LogEnd,
    LogPiece,
    LogQuestion,
    LogStart,
    NodeSnapshot,
    SilentNode,
    StacksQuestion,
    StackText,
    StatusQuestion,
)
from launcher.wire.link_messages import LinkError
from tests.support.inspect_documents import snapshot

# Lines


@pytest.mark.parametrize(
    "question",
    [
        StatusQuestion(),
        LogQuestion(Role.WORKER, 10**9, LINES_MAX, True, 2**53, 2**53, 2**53),
        StacksQuestion(Role.SERVER, 0),
    ],
)
def test_a_question_is_one_short_line_and_is_read_back(question: InspectQuestion) -> None:
    line = inspect_messages.question_line(question)
    assert line.count(b"\n") == 1
    assert len(line) <= QUESTION_MAX
    assert inspect_messages.read_question(line.removesuffix(b"\n")) == question


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[" * 5000,
        b'{"type":"drain"}',
        b'{"type":"log","role":"worker","index":-1}',
        b'{"type":"log","role":"x","index":1}',
        b'{"type":"log","role":"worker","index":1,"lines":1e9}',
        b"\xff\xff",
    ],
)
def test_what_is_no_question_is_refused_with_one_kind_of_error(line: bytes) -> None:
    with pytest.raises(LinkError):
        inspect_messages.read_question(line)
    with pytest.raises(LinkError):
        inspect_messages.read_answer(line)


@given(st.binary(max_size=PIECE_BYTES))
def test_bytes_of_a_log_come_as_they_are(data: bytes) -> None:
    line = inspect_messages.answer_line(LogPiece(data, 7))
    assert len(line) <= ANSWER_MAX
    assert inspect_messages.read_answer(line.removesuffix(b"\n")) == LogPiece(data, 7)


@pytest.mark.parametrize(
    "answer",
    [
        LogPiece(b"\xff" * PIECE_BYTES, 2**53, 2**53, 2**53, 2**53),
        LogEnd(2**53, 2**53, over=True),
        LogStart("/" + "x" * 4096),
        StackText("x" * STACKS_BYTES, "y" * 100),
        InspectRefusal("z" * 2000),
    ],
)
def test_the_longest_answers_find_room_in_a_line(answer: inspect_messages.InspectAnswer) -> None:
    assert len(inspect_messages.answer_line(answer)) <= ANSWER_MAX


def test_a_snapshot_with_little_to_tell_is_told_whole() -> None:
    silent = (SilentNode(node="h-0002", silent_s=1.5),)
    known = replace(snapshot(8), silent=silent, evicted=(EvictedHost(host="h3", node="h-0003", counts_in_s=540.0),))
    line = inspect_messages.answer_line(known)
    assert inspect_messages.read_answer(line.removesuffix(b"\n")) == known


def test_a_snapshot_with_as_many_silent_nodes_and_evicted_hosts_as_there_may_be_finds_room() -> None:
    name = "h" * 253
    silent = [SilentNode(node=f"{name}-{number:06d}", silent_s=1 / 3) for number in range(SILENT_MAX)]
    evicted = [EvictedHost(host=name, node=f"{name}-{number:06d}", counts_in_s=1 / 3) for number in range(SILENT_MAX)]
    line = inspect_messages.answer_line(replace(snapshot(500), silent=tuple(silent), evicted=tuple(evicted)))
    found = inspect_messages.read_answer(line.removesuffix(b"\n"))
    assert isinstance(found, NodeSnapshot)
    assert (len(found.silent), len(found.evicted)) == (SILENT_MAX, SILENT_MAX)
    assert len(line) <= ANSWER_MAX


@pytest.mark.parametrize("workers", [30, 60, 500])
def test_of_a_snapshot_that_is_too_long_what_finds_room_is_told_and_the_rest_is_counted(workers: int) -> None:
    line = inspect_messages.answer_line(snapshot(workers))
    found = inspect_messages.read_answer(line.removesuffix(b"\n"))
    assert len(line) <= ANSWER_MAX
    assert isinstance(found, NodeSnapshot)
    assert found.workers
    assert len(found.workers) + found.more == workers
    assert [one.index for one in found.workers] == list(range(len(found.workers)))
