"""The handshake of an auth proxy in front of an etcd that is served with a secret, as lines of text (pure).

    proxy                                         client
    elastic-entrance 2 <salt> <nonce>  ──►                   to every client that connects
                                       ◄──  <nonce>
    <proof>                            ──►                   that the proxy knows the secret
                                       ◄──  <proof>          that the client knows it too
    welcome, or no                     ──►                   then the proxy relays to etcd

A user may have chosen the secret. The proofs (`elastic.auth.handshake`) therefore use a key that is slow to derive
from it: a client that has a proof can try only a few secrets per second. The salt of that key differs for each start of
a proxy, so that keys cannot be computed in advance. The traffic after the handshake is neither signed nor encrypted.
"""

from __future__ import annotations

import re
from typing import Final

from elastic.auth.handshake import NONCE, Proofs, Purpose, proofs

GREETING: Final = "elastic-entrance"
VERSION: Final = 2
LINE_MAX = 256
"""The most bytes of one line, including its end."""
WELCOME: Final = b"welcome\n"
NO: Final = b"no\n"

_GREETING = re.compile(rf"{GREETING} {VERSION} ({NONCE}) ({NONCE})\n".encode())


def proxy_greeting(salt: str, nonce: str) -> bytes:
    """Return the first line of the proxy."""
    return f"{GREETING} {VERSION} {salt} {nonce}\n".encode()


def read_greeting(line: bytes) -> tuple[str, str] | None:
    """Return the proxy's salt and nonce; None if this is no proxy of this version."""
    found = _GREETING.fullmatch(line)
    return (found[1].decode(), found[2].decode()) if found else None


def is_auth_proxy(start: bytes) -> bool:
    """Return whether the first bytes of a connection are from a proxy of any version."""
    return start.startswith(GREETING.encode()[: len(start)]) and bool(start)


def word_line(word: str) -> bytes:
    """Return a line with the client's nonce, or with a proof."""
    return f"{word}\n".encode()


def read_word(line: bytes, pattern: str) -> str:
    """Return the nonce or the proof in a line; "" if the line has none."""
    return line[:-1].decode() if re.fullmatch(pattern.encode() + b"\n", line) else ""


def store_proofs(key: bytes, proxy_nonce: str, client_nonce: str) -> Proofs:
    """Return the proofs for one connection; `key` is the stretched secret."""
    return proofs(key, Purpose.STORE, proxy_nonce, client_nonce)
