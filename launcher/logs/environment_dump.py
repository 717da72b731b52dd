"""The environment of each worker at its newest start, for users: envlog.<rank>, without anything that looks secret."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from elastic.core.ps.model import Role
from launcher.system.private_env import SECRETS

_PARTS: Final = frozenset(
    {
        "AUTH", "COOKIE", "CREDENTIAL", "CREDENTIALS", "CREDS", "KEY", "KEYS", "PASS", "PASSPHRASE", "PASSWD",
        "PASSWORD", "PASSWORDS", "PAT", "PW", "PWD", "SECRET", "SECRETS", "SIGNATURE", "TOKEN", "TOKENS",
    }
)  # fmt: skip
"""A name with one of these between its underscores is left out: HF_TOKEN, but not TOKENIZERS_PARALLELISM."""
_INSIDE: Final = ("PASSWORD", "PASSWD", "PASSPHRASE", "SECRET", "CREDENTIAL", "APIKEY", "ACCESSKEY", "PRIVATEKEY")
_ENDINGS: Final = ("KEY", "TOKEN")
_PLAIN: Final = frozenset({"PWD", "OLDPWD", "SSH_AUTH_SOCK"})
_USER_IN_URL: Final = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]*@")


def looks_secret(name: str) -> bool:
    """Return whether a variable looks like a password, a token, a secret or a key."""
    upper = name.upper()
    if name in SECRETS:
        return True
    if upper in _PLAIN:
        return False
    parts = re.split(r"[^A-Z0-9]+", upper)
    return (
        not _PARTS.isdisjoint(parts)
        or any(word in upper for word in _INSIDE)
        or any(part.endswith(_ENDINGS) for part in parts)
    )


def environment_text(environment: Mapping[str, str]) -> str:
    r"""NAME=value, one line each, sorted. A password inside a URL is masked; a line break is written as \n."""
    lines = []
    for name, value in sorted(environment.items()):
        if not looks_secret(name):
            masked = _USER_IN_URL.sub("***@", value)
            lines.append(f"{name}={masked}".replace("\r", "\\r").replace("\n", "\\n") + "\n")
    return "".join(lines)


def environment_file_name(role: Role, index: int) -> str:
    """Return the name of a process's file."""
    return f"envlog.{index}" if role is Role.WORKER else f"envlog.{role.value}.{index}"
