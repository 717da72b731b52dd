"""The list of hosts that `--ips` gives: who may be in the world, in which order, and who is missing (pure).

A host is one entry of the list, compared as text. It has at most one node in a generation; a second one is a spare.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from elastic._text import shortened
from elastic.core.model import GenerationMember

NAMED_MAX = 8
"""So many hosts are named in a sentence, the rest is counted."""


def sort_by_host(ips: tuple[str, ...], places: Iterable[GenerationMember]) -> list[GenerationMember]:
    """Sort places by their host's index in the list; hosts that it does not name come last, as they were."""
    index = {host: number for number, host in enumerate(ips)}
    return sorted(places, key=lambda place: index.get(place.host, len(ips)))


def one_node_per_host(ips: tuple[str, ...], taken: Collection[str], nodes: Iterable[tuple[str, str]]) -> list[str]:
    """Of these nodes, as (node, host), the first of each host that the list names and that is not taken."""
    free = frozenset(ips).difference(taken)
    first: dict[str, str] = {}
    for node, host in nodes:
        if host in free:
            first.setdefault(host, node)
    return list(first.values())


def missing_hosts_text(ips: tuple[str, ...], here: Collection[str], missing: int) -> str:
    """Say for whom a start waits that needs `missing` more than the hosts that are here."""
    absent = _absent(ips, here)
    if not ips or missing > len(absent):
        return f"{missing} more"
    if missing == len(absent):
        return shortened(absent, NAMED_MAX)
    return f"{missing} more of {shortened(absent, NAMED_MAX)}"


def possible_hosts_text(ips: tuple[str, ...], here: Collection[str]) -> str:
    """Say who may still come within a settling window."""
    absent = _absent(ips, here)
    return shortened(absent, NAMED_MAX) if absent else "others to join"


def _absent(ips: tuple[str, ...], here: Collection[str]) -> list[str]:
    present = frozenset(here)
    return [host for host in ips if host not in present]
