"""What a process of a job is called, and its log (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from elastic.model import Role, WorkerExit

_NAMES: Final[Mapping[Role, str]] = {Role.WORKER: "rank", Role.SERVER: "server", Role.HETER: "heter worker"}
_LOGS: Final[Mapping[Role, str]] = {Role.WORKER: "workerlog", Role.SERVER: "serverlog", Role.HETER: "heterlog"}
NAMED_MAX = 64
"""Processes that one sentence names; a list of thousands helps nobody."""


def process_name(role: Role, index: int) -> str:
    """One process in a sentence: "rank 3", "server 1"."""
    return f"{_NAMES[role]} {index}"


def log_name(role: Role, index: int) -> str:
    """The file name of its log: workerlog.3, serverlog.1, heterlog.0."""
    return f"{_LOGS[role]}.{index}"


def listed(indexes: Iterable[int]) -> str:
    """Indexes in the way of Paddle's messages, without blanks: "[2,3]"."""
    found = list(indexes)
    more = ",..." if len(found) > NAMED_MAX else ""
    return f"[{','.join(map(str, found[:NAMED_MAX]))}{more}]"


def failed_words(exits: Iterable[WorkerExit], host: str) -> str:
    """Which processes failed, where, and in which log that stands: "rank=[4] failed on host h, see workerlog.4".

    Those that only lost a peer are named if there is no other, and then it says so: the cause is elsewhere.
    """
    found = list(exits)
    own = [worker for worker in found if not worker.consequence]
    what = "failed" if own else "lost a peer"
    named: dict[Role, list[int]] = {}
    for worker in own or found:
        named.setdefault(worker.role, []).append(worker.rank)
    if not named:
        return f"a worker failed on host {host}"
    who = " and ".join(f"{_NAMES[role].replace(' ', '_')}={listed(sorted(set(ids)))}" for role, ids in named.items())
    first = (own or found)[0]
    return f"{who} {what} on host {host}, see {log_name(first.role, first.rank)}"
