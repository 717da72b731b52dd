"""Texts about the tasks of a parameter-server job (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from elastic._text import counted, joined
from elastic.core.ps.model import PsLayout, Role, TaskMember
from elastic.core.ps.task_placement import host_of, servers_wanted, vacant_servers
from elastic.core.text import spans


def tasks_in_words(place: TaskMember) -> str:
    """Format the tasks of a node: "server 0, workers 2-3"."""
    parts = []
    for role in dict.fromkeys(task.role for task in place.tasks):
        indexes = [task.index for task in place.tasks if task.role is role]
        name = f"{role} worker" if role is Role.HETER else str(role)
        parts.append(f"{name}{'s' if len(indexes) > 1 else ''} {spans(indexes)}")
    return ", ".join(parts)


def in_words(roles: PsLayout, places: Sequence[TaskMember]) -> str:
    """Format the numbers of assigned servers and workers: "2 servers and 4 workers"."""
    workers = sum(task.role is Role.WORKER for place in places for task in place.tasks)
    heters = sum(task.role is Role.HETER for place in places for task in place.tasks)
    servers = servers_wanted(roles) - len(vacant_servers(roles, places))
    parts = [counted(servers, "server"), counted(workers, "worker")]
    if heters:
        parts.append(counted(heters, "heter worker"))
    return joined(parts)


def servers_in_words(roles: PsLayout, vacant: list[int]) -> str:
    """Format the missing servers, and the hosts or nodes that they need."""
    if not roles.servers:
        which = f"{'server' if len(vacant) == 1 else 'servers'} {spans(vacant)}"
        return f"{counted(len(vacant), 'node')} to serve ({which})"
    return ", ".join(f"server {index} on {host_of(roles.servers[index])}" for index in vacant)
