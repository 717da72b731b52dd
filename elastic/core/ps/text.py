"""Tasks of a parameter-server job in the words of people (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from elastic._text import counted, joined
from elastic.core.ps.model import PsLayout, Role, TaskMember
from elastic.core.ps.task_placement import host_of, servers_wanted, vacant_servers


def tasks_in_words(place: TaskMember) -> str:
    """The tasks of a node: "server 0, workers 2-3"."""
    parts = []
    for role in dict.fromkeys(task.role for task in place.tasks):
        indexes = [task.index for task in place.tasks if task.role is role]
        name = f"{role} worker" if role is Role.HETER else str(role)
        span = f"{indexes[0]}-{indexes[-1]}" if indexes[-1] - indexes[0] == len(indexes) - 1 else _listed(indexes)
        parts.append(f"{name} {indexes[0]}" if len(indexes) == 1 else f"{name}s {span}")
    return ", ".join(parts)


def in_words(roles: PsLayout, places: Sequence[TaskMember]) -> str:
    """How many servers and workers there are."""
    workers = sum(task.role is Role.WORKER for place in places for task in place.tasks)
    heters = sum(task.role is Role.HETER for place in places for task in place.tasks)
    servers = servers_wanted(roles) - len(vacant_servers(roles, places))
    parts = [counted(servers, "server"), counted(workers, "worker")]
    if heters:
        parts.append(counted(heters, "heter worker"))
    return joined(parts)


def _listed(indexes: list[int]) -> str:
    return ",".join(map(str, indexes))


def servers_in_words(roles: PsLayout, vacant: list[int]) -> str:
    """Servers that are missing, and where they belong."""
    if not roles.servers:
        which = f"{'server' if len(vacant) == 1 else 'servers'} {_listed(vacant)}"
        return f"{counted(len(vacant), 'node')} to serve ({which})"
    return ", ".join(f"server {index} on {host_of(roles.servers[index])}" for index in vacant)
