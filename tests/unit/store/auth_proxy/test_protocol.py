"""What is said at the entrance to an etcd that is served with a secret."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.store.auth_proxy import protocol

PORTER, GUEST = "0" * 32, "f" * 32
KEY, OTHER = protocol.key_of("a secret"), protocol.key_of("another")


def test_both_sides_prove_that_they_know_the_secret_and_say_nothing_of_it() -> None:
    assert protocol.read_greeting(protocol.proxy_greeting(PORTER)) == PORTER
    proof = protocol.proof(KEY, PORTER, GUEST)
    assert protocol.read_proof(KEY, PORTER, proof) == GUEST
    assert protocol.is_welcome(KEY, PORTER, GUEST, protocol.welcome(KEY, PORTER, GUEST))
    assert all(len(line) <= protocol.LINE_MAX for line in (protocol.proxy_greeting(PORTER), proof))


def test_a_proof_with_another_secret_of_another_time_or_sent_back_proves_nothing() -> None:
    proof = protocol.proof(KEY, PORTER, GUEST)
    assert protocol.read_proof(OTHER, PORTER, proof) is None
    assert protocol.read_proof(KEY, "1" * 32, proof) is None, "the porter has said another nonce since"
    assert not protocol.is_welcome(OTHER, PORTER, GUEST, protocol.welcome(KEY, PORTER, GUEST))
    assert not protocol.is_welcome(KEY, PORTER, GUEST, b"welcome " + proof[33:]), "the guest's own proof"
    assert not protocol.is_welcome(KEY, PORTER, GUEST, protocol.NO)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_whatever_else_is_said_is_nothing(line: bytes) -> None:
    assert protocol.read_proof(KEY, PORTER, line) is None
    assert protocol.read_greeting(line) is None
    assert not protocol.is_welcome(KEY, PORTER, GUEST, line)


def test_a_porter_is_known_by_its_first_bytes_whatever_its_version() -> None:
    assert protocol.is_auth_proxy(b"elastic-e")
    assert protocol.is_auth_proxy(b"elastic-entrance 7 what may come\n")
    assert not protocol.is_auth_proxy(b"")
    assert not protocol.is_auth_proxy(b"\0\0\x06\4\0\0\0\0\0")
