"""Releases of etcd: which ones are safe to expose to other hosts."""

from __future__ import annotations

import re
from typing import Final

SAFE: Final = {(3, 5): 33, (3, 6): 14, (3, 7): 1}
"""The first patch of each minor line without a published vulnerability, by etcd's advisories and change logs.

The releases of 2026-07-23 fixed the latest ones: GHSA-xg4h-6gfc-h4m8, GHSA-6vch-q96h-7gc3, and GHSA-hrxh-6v49-42gf in
gRPC. Line 3.4 ended on 2026-06-01 with 3.4.45, without these fixes, so none of its releases is safe. Lines after 3.7
have had them from the start. Not every advisory concerns an etcd without users and TLS, such as the embedded one, but
the rule is kept simple.
"""


def numbers(version: str) -> tuple[int, ...]:
    """Return the first three numbers of a version, or fewer if it has fewer."""
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def is_safe(version: str) -> bool:
    """Return whether this is a release without known vulnerabilities; False for a pre-release or an invalid version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+", version):
        return False
    *line, patch = numbers(version)
    return tuple(line) > max(SAFE) or patch >= SAFE.get((line[0], line[1]), patch + 1)


def safe_ones() -> str:
    """List the safe releases, for people."""
    return ", ".join(f"{major}.{minor}.{patch}" for (major, minor), patch in sorted(SAFE.items(), reverse=True))
