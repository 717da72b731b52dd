"""Releases of etcd: which ones are safe to open to others."""

from __future__ import annotations

import re
from typing import Final

SAFE: Final = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""The first patch of each minor line without a published vulnerability, by etcd's advisories and change logs.

The releases of 2026-07-23 fixed the last ones: GHSA-xg4h-6gfc-h4m8, GHSA-6vch-q96h-7gc3, and GHSA-hrxh-6v49-42gf in
its gRPC. Line 3.4 ended on 2026-06-01 with 3.4.45, without these fixes, so none of it is safe. Lines after 3.7 began
with them. Not every advisory concerns an etcd without users and TLS, such as the one that we start; the rule stays
simple.
"""


def numbers(version: str) -> tuple[int, ...]:
    """The first three numbers of a version, fewer if it has no more."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def is_safe(version: str) -> bool:
    """Tell whether this is a release without known vulnerabilities. A pre-release and what is no version are not."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return False
    *line, patch = numbers(version)
    return tuple(line) > max(SAFE) or patch >= SAFE.get((line[0], line[1]), patch + 1)


def safe_ones() -> str:
    """The safe releases, in words."""
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(SAFE.items(), reverse=True))
