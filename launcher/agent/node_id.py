"""The id of a node: its host, and a mark that is new for each agent process."""

from __future__ import annotations

import re
import secrets
from typing import Final

MARK_LENGTH: Final = 6
"""Signs after the host. Of a million agents that start where 8 others of their host are still known, 0.008 draw the
mark of one of these; of marks of four hexadecimal digits it would be 122."""
SIGNS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""Without i, l, o and u, which are taken for others when they are read aloud or typed."""
MARK: Final = rf"[{SIGNS}]{{{MARK_LENGTH}}}"
"""A pattern."""

_AFTER_HOST: Final = re.compile(f"-{MARK}")


def new_node_id(host: str) -> str:
    """An id that is hardly ever one that another node has had (`MARK_LENGTH`)."""
    return f"{host}-{''.join(secrets.choice(SIGNS) for _ in range(MARK_LENGTH))}"


def is_of(node: str, host: str) -> bool:
    """Tell whether a node is of this host. Where a job's id begins with another one's, what follows is no host."""
    return node.startswith(host) and _AFTER_HOST.fullmatch(node, len(host)) is not None
