"""The handshake with which both ends of a connection prove that they know a secret, for four purposes.

    server                    client
    nonce              ──►
                       ◄──    nonce and name
    proof              ──►
                       ◄──    proof

The server proves first, so that a client never sends a proof to an impostor, which could use it to guess the secret. In
turn, every client gets a proof of the server, so a secret that a user has chosen is stretched.

A proof is an HMAC-SHA256 with a key of the connection (HKDF, RFC 5869, with both nonces as salt), so a recorded proof
is not valid on another connection. It covers the purpose, the side, and the names that both ends know: a proof that is
reflected, or presented for another purpose or under another name, is not valid.
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
"""The iterations of PBKDF2: about 40 ms."""


class Purpose(StrEnum):
    """The purpose of a connection."""

    LINK = "link"
    """Between two agents."""
    OPERATOR = "operator"
    """From a user's command to an agent."""
    STORE = "store"
    """From a node to the auth proxy of an etcd."""
    PARAMETERS = "parameters"
    """From a worker to a parameter server."""


class Proofs(NamedTuple):
    """The proof that each side of a connection sends."""

    server: str
    client: str


def new_nonce() -> str:
    """Return a new nonce."""
    return secrets.token_hex(16)


def proofs(secret: bytes, purpose: Purpose, server_nonce: str, client_nonce: str, *names: str) -> Proofs:
    """Return both proofs of a connection. `names` are known to both ends: the job, the client, the server."""
    key = hmac.digest((server_nonce + client_nonce).encode(), secret, "sha256")
    return Proofs(*(_expanded(key, purpose, side, *names).hex() for side in Proofs._fields))


def is_proof(given: str, expected: str) -> bool:
    """Compare two proofs in constant time."""
    return hmac.compare_digest(given.encode(), expected.encode())


def derived_secret(secret: str, *purpose: str) -> str:
    """Derive a secret for one purpose from a random secret, which the result does not reveal."""
    return _expanded(hmac.digest(b"", secret.encode(), "sha256"), *purpose).hex()


def stretched(secret: str, salt: str) -> bytes:
    """Stretch a secret that a user has chosen: the computation is slow, so that guesses are slow too."""
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), salt.encode(), STRETCH_ROUNDS)


def _expanded(key: bytes, *words: str) -> bytes:
    return hmac.digest(key, msgspec.json.encode(words) + b"\x01", "sha256")
