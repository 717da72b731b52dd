"""The host list of `--ips`: which hosts may be in a generation, in which order, and which are missing (pure).

A host is one entry of the list, compared as text. It has at most one node in a generation; a second node is a spare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastic._text import shortened
from elastic.core.model import GenerationMember

NAMED_MAX = 8
"""Hosts that a sentence lists; further ones are counted."""


def sort_by_host(ips: tuple[str, ...], places: Iterable[GenerationMember]) -> list[GenerationMember]:
    """Sort members by the index of their host in the list; members on other hosts come last, in their order."""
    index = {host: number for number, host in enumerate(ips)}
    return sorted(places, key=lambda place: index.get(place.host, len(ips)))


def one_node_per_host(ips: tuple[str, ...], taken: Collection[str], nodes: Iterable[tuple[str, str]]) -> list[str]:
    """Return the first of these nodes, given as (node, host), on each listed host that is not taken."""
    free = frozenset(ips).difference(taken)
    first: dict[str, str] = {}
    for node, host in nodes:
        if host in free:
            first.setdefault(host, node)
    return list(first.values())


def missing_hosts_text(ips: tuple[str, ...], here: Collection[str], missing: int) -> str:
    """Say which hosts a start waits for that needs `missing` more nodes."""
    absent = _absent(ips, here)
    if not ips or missing > len(absent):
        return f"{missing} more"
    if missing == len(absent):
        return shortened(absent, NAMED_MAX)
    return f"{missing} more of {shortened(absent, NAMED_MAX)}"


def possible_hosts_text(ips: tuple[str, ...], here: Collection[str]) -> str:
    """Say which hosts may still join within a join window."""
    absent = _absent(ips, here)
    return shortened(absent, NAMED_MAX) if absent else "others to join"


def _absent(ips: tuple[str, ...], here: Collection[str]) -> list[str]:
    present = frozenset(here)
    return [host for host in ips if host not in present]
