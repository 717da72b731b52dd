"""The handshake by which both ends of a connection prove that they know one secret, for four purposes.

    server                    client
    its nonce          ──►
                       ◄──    its nonce, and who it is
    its proof          ──►
                       ◄──    its proof

The server proves first: a client gives no proof to an impostor, which could use it to guess the secret. So every
client gets a proof of the server; a secret that a person has chosen is therefore stretched.

A proof is an HMAC-SHA256 with a key of this connection (HKDF, RFC 5869, with both nonces as salt), so a recorded proof
is good on no other connection. It covers the purpose, the side, and what both ends know about each other: a proof that
is sent back to its maker, or presented for another purpose or under another name, is wrong.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from enum import StrEnum
from typing import Final, NamedTuple

import msgspec

NONCE: Final = "[0-9a-f]{32}"
"""The pattern of a nonce: 128 random bits."""
MAC: Final = "[0-9a-f]{64}"
"""The pattern of a proof."""
STRETCH_ROUNDS: Final = 100_000
"""Of PBKDF2: about 40 ms."""


class Purpose(StrEnum):
    """What a connection is for."""

    LINK = "link"
    """Between two agents."""
    OPERATOR = "operator"
    """From an operator's command to an agent."""
    STORE = "store"
    """From a node to the proxy in front of an etcd."""
    PARAMETERS = "parameters"
    """From a worker to a parameter server."""


class Proofs(NamedTuple):
    """What each side of a connection has to send."""

    server: str
    client: str


def new_nonce() -> str:
    """Random bits that nobody has used before."""
    return secrets.token_hex(16)


def proofs(secret: bytes, purpose: Purpose, server_nonce: str, client_nonce: str, *names: str) -> Proofs:
    """Both proofs of a connection. `names` is what both ends know: the job, who connects, to whom."""
    key = hmac.digest((server_nonce + client_nonce).encode(), secret, "sha256")
    return Proofs(*(_expanded(key, purpose, side, *names).hex() for side in Proofs._fields))


def is_proof(given: str, expected: str) -> bool:
    """Compare in a time that says nothing about where they differ."""
    return hmac.compare_digest(given.encode(), expected.encode())


def derived_secret(secret: str, *purpose: str) -> str:
    """A secret for one purpose, made from a random one, which it does not reveal."""
    return _expanded(hmac.digest(b"", secret.encode(), "sha256"), *purpose).hex()


def stretched(secret: str, salt: str) -> bytes:
    """What proofs are made with where a person chose the secret: slow to make, so that guesses are slow, too."""
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), STRETCH_ROUNDS)


def _expanded(key: bytes, *words: str) -> bytes:
    return hmac.digest(key, msgspec.json.encode(words) + b"\x01", "sha256")
