"""The ID of a node: its host, and a random mark that is new for each agent process."""

from __future__ import annotations

import re
import secrets
from typing import Final

MARK_LENGTH: Final = 6
"""Characters after the host. If a million agents start while the job knows 8 others of their host, 0.008 of them draw
the mark of one of these; with marks of four hexadecimal digits, 122 would."""
SIGNS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without i, l, o and u, which are mistaken for others when they are read aloud or typed."""
MARK: Final = rf"[{SIGNS}]{{{MARK_LENGTH}}}"
"""A regular expression."""

_AFTER_HOST: Final = re.compile(f"-{MARK}")


def new_node_id(host: str) -> str:
    """Return a new node ID for this host; collisions are improbable (`MARK_LENGTH`)."""
    return f"{host}-{''.join(secrets.choice(SIGNS) for _ in range(MARK_LENGTH))}"


def is_of(node: str, host: str) -> bool:
    """Return whether a node ID belongs to this host."""
    return node.startswith(host) and _AFTER_HOST.fullmatch(node, len(host)) is not None
