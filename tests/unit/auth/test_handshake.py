"""The handshake: what proves that somebody knows a secret, and what does not."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re

import pytest

from elastic.auth.handshake import MAC, NONCE, Purpose, derived_secret, is_proof, new_nonce, proofs, stretched

SERVER, CLIENT = "a" * 32, "b" * 32
SECRET = b"the secret"
GIVEN = proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-2", "n-1")


def test_both_sides_expect_the_same_proofs() -> None:
    again = proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-2", "n-1")
    assert is_proof(GIVEN.server, again.server)
    assert is_proof(GIVEN.client, again.client)


@pytest.mark.parametrize(
    "other",
    [
        proofs(b"another", Purpose.LINK, SERVER, CLIENT, "job", "n-2", "n-1"),
        proofs(SECRET, Purpose.OPERATOR, SERVER, CLIENT, "job", "n-2", "n-1"),
        proofs(SECRET, Purpose.LINK, "c" * 32, CLIENT, "job", "n-2", "n-1"),
        proofs(SECRET, Purpose.LINK, SERVER, "c" * 32, "job", "n-2", "n-1"),
        proofs(SECRET, Purpose.LINK, CLIENT, SERVER, "job", "n-2", "n-1"),
        proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "another", "n-2", "n-1"),
        proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-3", "n-1"),
        proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-1", "n-2"),
        proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-2n", "-1"),
        proofs(SECRET, Purpose.LINK, SERVER, CLIENT, "job", "n-2"),
    ],
    ids=[
        "secret", "purpose", "replay to a server", "replay to a client", "nonces swapped", "job", "client",
        "names swapped", "names that touch", "a name less",
    ],
)  # fmt: skip
def test_a_proof_is_good_for_one_secret_purpose_connection_and_pair_of_names(other: tuple[str, str]) -> None:
    assert not any(is_proof(given, expected) for given, expected in itertools.product(other, GIVEN))


def test_a_proof_that_is_sent_back_to_its_maker_is_wrong() -> None:
    assert not is_proof(GIVEN.server, GIVEN.client)


def test_of_two_connections_that_cross_neither_gives_a_proof_for_the_other() -> None:
    """Who stands between two agents that connect to each other gives each the nonces of the other connection."""
    back = proofs(SECRET, Purpose.LINK, CLIENT, SERVER, "job", "n-1", "n-2")
    echoed = proofs(SECRET, Purpose.LINK, SERVER, SERVER, "job", "n-2", "n-1")
    assert len({*GIVEN, *back, *echoed}) == 6


@pytest.mark.parametrize(
    "given",
    ["", GIVEN.server[:-1], GIVEN.server[:32], f"{GIVEN.server}0", f"{GIVEN.server}\n", GIVEN.server.upper(), "é" * 64],
    ids=["nothing", "cut", "half", "longer", "with a line end", "in capitals", "not ASCII"],
)
def test_a_part_of_a_proof_or_another_spelling_of_it_is_wrong(given: str) -> None:
    assert not is_proof(given, GIVEN.server)


@pytest.mark.parametrize("pattern", [NONCE, MAC])
def test_the_patterns_fit_nothing_but_their_own_values(pattern: str) -> None:
    values = {NONCE: new_nonce(), MAC: GIVEN.client}
    assert [one for one in values if re.fullmatch(pattern, values[one])] == [pattern]
    assert not re.fullmatch(pattern, values[pattern].upper())
    assert not re.fullmatch(pattern, f"{values[pattern]}\n")


def test_the_key_is_that_of_hkdf_with_both_nonces_as_salt() -> None:
    key = hmac.new((SERVER + CLIENT).encode(), SECRET, hashlib.sha256).digest()
    info = b'["parameters","server"]'
    expected = hmac.new(key, info + b"\x01", hashlib.sha256).hexdigest()
    assert proofs(SECRET, Purpose.PARAMETERS, SERVER, CLIENT).server == expected


def test_a_derived_secret_is_another_one_for_each_purpose() -> None:
    assert len({derived_secret("s", "a"), derived_secret("s", "b"), derived_secret("t", "a"), "s"}) == 4
    assert derived_secret("s", "a", "j") == derived_secret("s", "a", "j")


def test_the_same_secret_makes_another_key_with_each_salt() -> None:
    assert stretched("s", "1") == stretched("s", "1") != stretched("s", "2")


def test_no_two_nonces_are_the_same() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
