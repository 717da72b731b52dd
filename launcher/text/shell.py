"""A command as a person can paste it into a shell: one line, whatever its words have in them (pure)."""

from __future__ import annotations

import shlex
from collections.abc import Iterable


def joined(words: Iterable[str]) -> str:
    """The words with blanks between them."""
    return " ".join(map(quoted, words))


def quoted(word: str) -> str:
    r"""One word. What no terminal shows, a line end before all, is written as bash, zsh and ksh read it: $'a\nb'."""
    return shlex.quote(word) if word.isprintable() else f"$'{''.join(map(_sign, word))}'"


def _sign(sign: str) -> str:
    if sign in ("\\", "'"):
        return f"\\{sign}"
    if sign.isprintable():
        return sign
    # A byte that is no text came from the system in this way, and goes back as it was.
    return {"\n": "\\n", "\t": "\\t"}.get(sign) or "".join(
        f"\\{byte:03o}" for byte in sign.encode("utf-8", errors="surrogateescape")
    )
