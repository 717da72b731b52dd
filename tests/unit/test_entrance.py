"""What is said at the entrance to an etcd that is served with a secret."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from elastic.store import entrance

PORTER, GUEST = "0" * 32, "f" * 32
KEY, OTHER = entrance.key_of("a secret"), entrance.key_of("another")


def test_both_sides_prove_that_they_know_the_secret_and_say_nothing_of_it() -> None:
    assert entrance.read_greeting(entrance.greeting(PORTER)) == PORTER
    proof = entrance.proof(KEY, PORTER, GUEST)
    assert entrance.read_proof(KEY, PORTER, proof) == GUEST
    assert entrance.is_welcome(KEY, PORTER, GUEST, entrance.welcome(KEY, PORTER, GUEST))
    assert all(len(line) <= entrance.LINE_MAX for line in (entrance.greeting(PORTER), proof))


def test_a_proof_with_another_secret_of_another_time_or_sent_back_proves_nothing() -> None:
    proof = entrance.proof(KEY, PORTER, GUEST)
    assert entrance.read_proof(OTHER, PORTER, proof) is None
    assert entrance.read_proof(KEY, "1" * 32, proof) is None, "the porter has said another nonce since"
    assert not entrance.is_welcome(OTHER, PORTER, GUEST, entrance.welcome(KEY, PORTER, GUEST))
    assert not entrance.is_welcome(KEY, PORTER, GUEST, b"welcome " + proof[33:]), "the guest's own proof"
    assert not entrance.is_welcome(KEY, PORTER, GUEST, entrance.NO)


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_whatever_else_is_said_is_nothing(line: bytes) -> None:
    assert entrance.read_proof(KEY, PORTER, line) is None
    assert entrance.read_greeting(line) is None
    assert not entrance.is_welcome(KEY, PORTER, GUEST, line)


def test_a_porter_is_known_by_its_first_bytes_whatever_its_version() -> None:
    assert entrance.is_porter(b"elastic-e")
    assert entrance.is_porter(b"elastic-entrance 7 what may come\n")
    assert not entrance.is_porter(b"")
    assert not entrance.is_porter(b"\0\0\x06\4\0\0\0\0\0")
