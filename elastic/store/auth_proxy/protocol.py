"""What is said at the entrance to an etcd that is served with a secret, as lines (pure).

    proxy                                         client
    elastic-entrance 2 <salt> <nonce>  ──►                   for everybody that connects
                                       ◄──  <nonce>
    <proof>                            ──►                   that the proxy knows the secret
                                       ◄──  <proof>          that the client knows it, too
    welcome, or no                     ──►                   from here on it is etcd that speaks

A person may have chosen the secret. So the proofs (`elastic.auth.handshake`) are made with a key that is slow to make
from it: a client with a proof can try few secrets in a second. The salt of that key is another one for each proxy that
starts, so that no list of keys can be made beforehand. What follows is not signed and not encrypted.
"""

from __future__ import annotations

import re
from typing import Final

from elastic.auth.handshake import NONCE, Proofs, Purpose, proofs

GREETING: Final = "elastic-entrance"
VERSION: Final = 2
LINE_MAX = 256
"""Bytes of one line, with its end."""
WELCOME: Final = b"welcome\n"
NO: Final = b"no\n"

_GREETING = re.compile(rf"{GREETING} {VERSION} ({NONCE}) ({NONCE})\n".encode())


def proxy_greeting(salt: str, nonce: str) -> bytes:
    """The proxy's first line."""
    return f"{GREETING} {VERSION} {salt} {nonce}\n".encode()


def read_greeting(line: bytes) -> tuple[str, str] | None:
    """The proxy's salt and nonce, None if this is no proxy of this version."""
    found = _GREETING.fullmatch(line)
    return (found[1].decode(), found[2].decode()) if found else None


def is_auth_proxy(start: bytes) -> bool:
    """Tell whether the first bytes of a connection are a proxy's, of whatever version."""
    return start.startswith(GREETING.encode()[: len(start)]) and bool(start)


def word_line(word: str) -> bytes:
    """A line with the client's nonce, or with a proof."""
    return f"{word}\n".encode()


def read_word(line: bytes, pattern: str) -> str:
    """The nonce or the proof of a line, "" if it is none."""
    return line[:-1].decode() if re.fullmatch(pattern.encode() + b"\n", line) else ""


def store_proofs(key: bytes, proxy_nonce: str, client_nonce: str) -> Proofs:
    """The proofs of one connection; `key` is the stretched secret."""
    return proofs(key, Purpose.STORE, proxy_nonce, client_nonce)
