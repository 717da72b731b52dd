"""What an asker and an agent say to each other: proofs that are good for one thing, and limits."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.ps.model import Role
from launcher.wire import inspect_messages, link_messages
from launcher.wire.inspect_messages import (
    ANSWER_MAX,
    LINES_MAX,
    PIECE_BYTES,
    QUESTION_MAX,
    STACKS_BYTES,
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
)
from launcher.wire.link_messages import Greeting, LinkError
from tests.support.inspect_documents import snapshot

SECRET = "the secret of the job"
NONCE, OTHER = "0123456789abcdef" * 2, "fedcba9876543210" * 2
LISTENER = Greeting("j1", "h-0001", NONCE)


# Proofs


def test_an_asker_and_an_agent_that_know_the_secret_believe_each_other() -> None:
    said = inspect_messages.inspect_hello(SECRET, LISTENER, OTHER)
    assert inspect_messages.proves(SECRET, LISTENER, said)
    assert inspect_messages.answers(SECRET, LISTENER, said, inspect_messages.inspect_welcome(SECRET, LISTENER, said))


def test_another_secret_another_greeting_and_another_nonce_prove_nothing() -> None:
    said = inspect_messages.inspect_hello(SECRET, LISTENER, OTHER)
    assert not inspect_messages.proves("another", LISTENER, said)
    assert not inspect_messages.proves(SECRET, Greeting("j1", "h-0001", OTHER), said)
    assert not inspect_messages.proves(SECRET, Greeting("j1", "h-0002", NONCE), said)
    assert not inspect_messages.proves(SECRET, LISTENER, msgspec.structs.replace(said, nonce=NONCE))


def test_an_asker_cannot_pass_for_an_agent_nor_an_agent_open_a_window_with_its_proof() -> None:
    look = inspect_messages.inspect_hello(SECRET, LISTENER, OTHER)
    assert not link_messages.proves(SECRET, LISTENER, link_messages.Prove("w-0001", look.nonce, look.mac))
    proof = link_messages.prove(SECRET, LISTENER, "w-0001", OTHER)
    assert not inspect_messages.proves(SECRET, LISTENER, link_messages.InspectHello(proof.nonce, proof.mac))


def test_the_proof_of_an_asker_that_is_sent_back_to_it_proves_nothing() -> None:
    said = inspect_messages.inspect_hello(SECRET, LISTENER, OTHER)
    assert not inspect_messages.answers(SECRET, LISTENER, said, InspectWelcome(said.mac))


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
    line = inspect_messages.answer_line(snapshot(8))
    assert inspect_messages.read_answer(line.removesuffix(b"\n")) == snapshot(8)


@pytest.mark.parametrize("workers", [30, 60, 500])
def test_of_a_snapshot_that_is_too_long_what_finds_room_is_told_and_the_rest_is_counted(workers: int) -> None:
    line = inspect_messages.answer_line(snapshot(workers))
    found = inspect_messages.read_answer(line.removesuffix(b"\n"))
    assert len(line) <= ANSWER_MAX
    assert isinstance(found, NodeSnapshot)
    assert found.workers
    assert len(found.workers) + found.more == workers
    assert [one.index for one in found.workers] == list(range(len(found.workers)))
