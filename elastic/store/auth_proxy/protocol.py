"""What is said at the entrance to an etcd that is served with a secret, as lines (pure).

    proxy                                         client
    elastic-entrance 1 <nonce>        ──►                   for everybody that connects
                                      ◄──  <nonce> <mac>    who knows the secret proves it
    welcome <mac>, or no              ──►                   so does the proxy; from here on it is etcd that speaks

Both proofs are HMAC-SHA256 over the role and both nonces, with a key that is slow to make from the secret: who hears
them can try no more than a few thousand secrets in a second, and cannot use them again. What follows is not signed and
not encrypted.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final

GREETING: Final = "elastic-entrance"
VERSION: Final = 1
LINE_MAX = 256
"""Bytes of one line, with its end."""
KEY_ROUNDS = 100_000
"""Of PBKDF2: 40 ms once for each process."""
NO: Final = b"no\n"

_NONCE, _MAC = r"([0-9a-f]{32})", r"([0-9a-f]{64})"
_GREETING = re.compile(rf"{GREETING} {VERSION} {_NONCE}\n".encode())
_PROOF = re.compile(rf"{_NONCE} {_MAC}\n".encode())
_WELCOME = re.compile(rf"welcome {_MAC}\n".encode())


def key_of(secret: str) -> bytes:
    """What proofs are made with."""
    return hashlib.pbkdf2_hmac("sha256", secret.encode(), GREETING.encode(), KEY_ROUNDS)


def proxy_greeting(nonce: str) -> bytes:
    """The proxy's first line; a nonce is 32 hexadecimal digits that nobody can foresee."""
    return f"{GREETING} {VERSION} {nonce}\n".encode()


def read_greeting(line: bytes) -> str | None:
    """The proxy's nonce, None if this is no proxy of this version."""
    found = _GREETING.fullmatch(line)
    return found[1].decode() if found else None


def is_auth_proxy(start: bytes) -> bool:
    """Tell whether the first bytes of a connection are a proxy's, of whatever version."""
    return start.startswith(GREETING.encode()[: len(start)]) and bool(start)


def proof(key: bytes, proxy: str, client: str) -> bytes:
    """The client's line; `proxy` and `client` are their nonces."""
    return f"{client} {_mac(key, 'guest', proxy, client)}\n".encode()


def read_proof(key: bytes, proxy: str, line: bytes) -> str | None:
    """The nonce of a client that knows the secret, None of anybody else."""
    found = _PROOF.fullmatch(line)
    if found is None:
        return None
    client = found[1].decode()
    return client if hmac.compare_digest(found[2].decode(), _mac(key, "guest", proxy, client)) else None


def welcome(key: bytes, proxy: str, client: str) -> bytes:
    """The proxy's second line."""
    return f"welcome {_mac(key, 'porter', proxy, client)}\n".encode()


def is_welcome(key: bytes, proxy: str, client: str, line: bytes) -> bool:
    """Tell whether the proxy lets us in and knows the secret itself."""
    found = _WELCOME.fullmatch(line)
    return found is not None and hmac.compare_digest(found[1].decode(), _mac(key, "porter", proxy, client))


def _mac(key: bytes, who: str, proxy: str, client: str) -> str:
    return hmac.new(key, f"{who} {proxy} {client}".encode(), hashlib.sha256).hexdigest()
