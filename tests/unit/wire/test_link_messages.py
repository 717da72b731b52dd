"""The handshake and the messages of links, as values."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.core.membership.decision import Reason
from launcher.net.lines import LINE_MAX, LineSplitter, LineTooLong
from launcher.wire import link_messages
from launcher.wire.link_messages import (
    Admitted,
    Bye,
    Greeting,
    Heartbeat,
    InspectRequest,
    LinkError,
    LinkMessage,
    LinkRequest,
    Ping,
    Pong,
    Proof,
    Tried,
    Try,
    Vouch,
    VouchGranted,
    WaitTold,
)

A, B = "a" * 32, "b" * 32
LISTENER = Greeting("j1", "n-1", A)
SECRET = "s"
MAC = "0" * 64

EACH: tuple[LinkMessage, ...] = (
    LinkRequest("n-2", B),
    InspectRequest(B),
    Proof(MAC),
    Admitted(),
    Heartbeat(0.25),
    Heartbeat(link_messages.EVERY_MAX_S),
    Heartbeat(0.25, unheard=True),
    Ping(1),
    Pong(2**53),
    Try(1, "n-2", "h2.example", 65_535, 0.25),
    Try(2**53, "n-2", "fe80::1%eth0", 1, link_messages.TRY_MAX_S),
    Tried(1, True),
    Tried(2**53, False),
    Vouch(1, 2),
    VouchGranted(1, 2, 3.5),
    WaitTold("SCALE_UP_LATER", "c joins in \ufffc", (41.5,)),
    Bye(),
)


def test_a_message_of_every_kind_is_tried_here() -> None:
    assert {type(message) for message in EACH} == set(get_args(LinkMessage))


@pytest.mark.parametrize("message", EACH, ids=lambda message: type(message).__name__)
def test_each_message_is_one_line_that_reads_back(message: LinkMessage) -> None:
    line = link_messages.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert link_messages.decode(line[:-1]) == message


def test_the_longest_lines_are_not_too_long() -> None:
    long = "n" * link_messages.NAME_MAX
    assert len(link_messages.encode(LinkRequest(long, B))) < LINE_MAX
    assert len(link_messages.encode(Try(2**53, long, long, 65_535, 0.1 + 0.2))) < LINE_MAX
    assert len(link_messages.greeting_line(Greeting(long, long, A))) < LINE_MAX


@pytest.mark.parametrize("one", ["x", '"', "\\", "é", "\U0001f600", "\ufffc", "\x1b", "\n", "\udcff"])
def test_a_sentence_of_any_length_is_a_message_that_reads_back(one: str) -> None:
    longest = max(Reason.__members__, key=len)
    for length in (0, 1, 100, 399, 400, 401, 5000):
        told = link_messages.wait_told(longest, one * length, [float("inf"), -1.0, 1e6, 1.0, 2.0, 3.0])
        line = link_messages.encode(told)
        assert len(line) < LINE_MAX
        assert link_messages.decode(line[:-1]) == told
        assert len(told.text) == length or told.text.endswith("…")


@pytest.mark.parametrize("nonce", [None, A])
def test_a_greeting_reads_back(nonce: str | None) -> None:
    greeting = Greeting("j1", "h.example-12ab", nonce)
    assert link_messages.read_greeting(link_messages.greeting_line(greeting)[:-1]) == greeting


def test_a_line_of_version_1_has_no_nonce_and_one_of_another_version_says_who_it_is() -> None:
    assert link_messages.read_greeting(b"elastic-launch 1 j1 n-1") == Greeting("j1", "n-1")
    for line in (b"elastic-launch 2 j1 n-1 " + A.encode(), b"elastic-launch 5 j1 n-1 something else"):
        assert link_messages.read_greeting(line) == Greeting("j1", "n-1", other_version=True)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r",
        b"elastic-launch 1",
        b"elastic-launch 1 j1 n-1 more",
        b"elastic-launch 4 j1 n-1",
        b"elastic-launch 4 j1 n-1 short",
        b"elastic-launch 4 j1 n-1 " + b"A" * 32,
        b"elastic-launch 4 j1 n-1 " + b"a" * 33,
        b"elastic-launch 0 j1 n-1",
        b"elastic-launch -1 j1 n-1",
        "elastic-launch ² j1 n-1".encode(),
        b"elastic-launch 1 j1 \x1b[2J",
        b"elastic-launch 1  n-1",
        b"elastic-launch 1 j1 " + b"n" * 301,
        b"elastic-launch " + b"9" * 900 + b" j1",
    ],
)
def test_another_line_is_no_greeting(line: bytes) -> None:
    with pytest.raises(LinkError):
        link_messages.read_greeting(line)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff",
        b'{"type":"ping"}',
        b'{"type":"ping","n":-1}',
        b'{"type":"ping","n":1e300}',
        b'{"type":"ping","n":9007199254740993}',
        b'{"type":"heartbeat"}',
        b'{"type":"heartbeat","every_s":0.0}',
        b'{"type":"heartbeat","every_s":-0.25}',
        b'{"type":"heartbeat","every_s":3600.1}',
        b'{"type":"heartbeat","every_s":NaN}',
        b'{"type":"heartbeat","every_s":"1"}',
        b'{"type":"heartbeat","every_s":0.25,"unheard":1}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":80}',
        b'{"type":"try","n":1,"node":"n 2","host":"h2","port":80,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"","port":80,"limit_s":0.25}',
        rb'{"type":"try","n":1,"node":"n-2","host":"h2\u0000","port":80,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"' + b"h" * 301 + b'","port":80,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":0,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":65536,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":80.5,"limit_s":0.25}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":80,"limit_s":0.0}',
        b'{"type":"try","n":1,"node":"n-2","host":"h2","port":80,"limit_s":600.1}',
        b'{"type":"try","n":-1,"node":"n-2","host":"h2","port":80,"limit_s":0.25}',
        b'{"type":"tried","n":1}',
        b'{"type":"tried","n":1,"reached":1}',
        b'{"type":"tried","n":-1,"reached":true}',
        b'{"type":"granted","n":1,"g":1,"seconds":-1.0}',
        b'{"type":"granted","n":1,"g":1,"seconds":1e9}',
        b'{"type":"granted","n":1,"g":1,"seconds":NaN}',
        b'{"type":"link","node":"a b","nonce":"' + A.encode() + b'"}',
        b'{"type":"link","node":"a","nonce":""}',
        b'{"type":"link","node":"n-2","nonce":"' + A.encode() + rb'\n"}',
        rb'{"type":"link","node":"n-2\n","nonce":"' + A.encode() + b'"}',
        b'{"type":"inspect","nonce":"' + A[1:].encode() + b'"}',
        b'{"type":"prove","node":"n-2","nonce":"' + A.encode() + b'","mac":"' + MAC.encode() + b'"}',
        b'{"type":"proof","mac":""}',
        b'{"type":"proof","mac":"' + MAC[1:].encode() + b'"}',
        b'{"type":"proof","mac":"' + MAC.encode() + rb'\n"}',
        b'{"type":"proof","mac":null}',
        b'{"type":"wait","code":"","text":"","left":[-1.0]}',
        b'{"type":"wait","code":"","text":"","left":[1e9]}',
        b'{"type":"wait","code":"","text":"","left":[1,2,3,4,5]}',
        b'{"type":"wait","code":"' + b"X" * 41 + b'","text":"","left":[]}',
        b'{"type":"wait","code":"","text":"' + b"x" * 401 + b'","left":[]}',
        rb'{"type":"wait","code":"","text":"\u001b[2J","left":[]}',
        rb'{"type":"wait","code":"","text":"one\n","left":[]}',
        b'{"type":"exec","n":1}',
        b'{"type":"ping","n":1,"x":' + b"[" * 1000,
    ],
)
def test_another_line_is_no_message(line: bytes) -> None:
    with pytest.raises(LinkError):
        link_messages.decode(line)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(line: bytes) -> None:
    for read in (link_messages.decode, link_messages.read_greeting):
        try:
            read(line)
        except LinkError:
            continue


# The handshake


REQUEST = LinkRequest("n-2", B)


@pytest.mark.parametrize(
    ("secret", "listener", "request_"),
    [
        ("t", LISTENER, REQUEST),
        (SECRET, Greeting("j2", "n-1", A), REQUEST),
        (SECRET, Greeting("j1", "n-3", A), REQUEST),
        (SECRET, Greeting("j1", "n-1", B), REQUEST),
        (SECRET, LISTENER, LinkRequest("n-3", B)),
        (SECRET, LISTENER, LinkRequest("n-2", A)),
        (SECRET, LISTENER, InspectRequest(B)),
    ],
    ids=["secret", "job", "listener", "the listener's nonce: a replay", "dialler", "the dialler's nonce", "operator"],
)
def test_proofs_hold_for_one_secret_job_role_both_nodes_and_both_nonces(
    secret: str, listener: Greeting, request_: LinkRequest | InspectRequest
) -> None:
    given = link_messages.proofs(SECRET, LISTENER, REQUEST)
    assert given == link_messages.proofs(SECRET, LISTENER, REQUEST)
    assert not set(given) & set(link_messages.proofs(secret, listener, request_))


def test_a_listener_that_names_another_version_gets_no_request_and_so_no_proof() -> None:
    """Who stands between two agents can change the version in the greeting. It is never one without proofs."""
    for version in (1, 2, 3, 5):
        line = f"elastic-launch {version} j1 n-1" + (f" {A}" if version > 1 else "")
        assert link_messages.read_greeting(line.encode()).nonce is None


def test_what_is_relayed_under_another_name_has_other_proofs() -> None:
    """An impostor at the address of n-1 asks n-3, and gives its greeting out for one of n-1."""
    real = Greeting("j1", "n-3", A)
    at_the_dialler = link_messages.proofs(SECRET, LISTENER, REQUEST)
    assert not set(at_the_dialler) & set(link_messages.proofs(SECRET, real, REQUEST))


# Lines


@given(st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=20), st.integers(1, 50))
def test_lines_come_out_as_they_went_in_however_they_are_cut(lines: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in lines)
    cutter = LineSplitter()
    found = [line for at in range(0, len(stream), size) for line in cutter.feed(stream[at : at + size])]
    assert found == lines


@pytest.mark.parametrize("data", [b"x" * LINE_MAX, b"a\n" + b"x" * LINE_MAX + b"\n"])
def test_a_line_that_is_too_long_ends_it(data: bytes) -> None:
    with pytest.raises(LineTooLong):
        LineSplitter().feed(data)


def test_a_line_that_never_ends_is_not_kept() -> None:
    cutter = LineSplitter()
    for _ in range(LINE_MAX - 1):
        assert cutter.feed(b"x") == []
    with pytest.raises(LineTooLong):
        cutter.feed(b"x")
