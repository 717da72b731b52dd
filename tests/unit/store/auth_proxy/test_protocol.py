"""What is said at the entrance to an etcd that is served with a secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.auth.handshake import MAC, NONCE
from elastic.store.auth_proxy import protocol

SALT, PROXY = "5" * 32, "0" * 32


def test_a_greeting_reads_back() -> None:
    line = protocol.proxy_greeting(SALT, PROXY)
    assert protocol.read_greeting(line) == (SALT, PROXY)
    assert len(line) <= protocol.LINE_MAX


@pytest.mark.parametrize(("word", "pattern"), [("0" * 32, NONCE), ("f" * 64, MAC)])
def test_a_nonce_or_a_proof_reads_back_as_that_alone(word: str, pattern: str) -> None:
    line = protocol.word_line(word)
    assert protocol.read_word(line, pattern) == word
    assert protocol.read_word(line, NONCE if pattern == MAC else MAC) == ""
    assert len(line) <= protocol.LINE_MAX


@given(st.binary(max_size=300))
def test_whatever_else_is_said_is_nothing(line: bytes) -> None:
    assert protocol.read_word(line, NONCE) == ""
    assert protocol.read_word(line, MAC) == ""
    assert protocol.read_greeting(line) is None


def test_a_porter_is_known_by_its_first_bytes_whatever_its_version() -> None:
    assert protocol.is_auth_proxy(b"elastic-e")
    assert protocol.is_auth_proxy(b"elastic-entrance 7 what may come\n")
    assert not protocol.is_auth_proxy(b"")
    assert not protocol.is_auth_proxy(b"\0\0\x06\4\0\0\0\0\0")
