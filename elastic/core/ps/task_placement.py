"""The assignment of tasks to nodes in a parameter-server job (pure).

There are three layouts, depending on the command line (`elastic.core.ps.model.PsLayout`):

- one machine: the first node has every task;
- fixed lists: a host has the tasks that are listed with it;
- separate: servers run on the hosts of `--servers`, or one on each of the first nodes; every other node runs workers,
  up to np's maximum of nodes.

A task is assigned to a second node only when the first has left the cluster spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elastic.core.model import Member
from elastic.core.ps.model import PsLayout, Role, Task, TaskMember

ORDER = {Role.SERVER: 0, Role.HETER: 1, Role.WORKER: 2}
"""The order of a node's tasks, and therefore of its ports."""

Candidate = tuple[str, Member]


def host_of(endpoint: str) -> str:
    """Return the host of `host:port`, of `[v6]:port`, or of a host alone."""
    if endpoint.startswith("["):
        return endpoint[1:].partition("]")[0]
    host, colon, _ = endpoint.rpartition(":")
    return host if colon and ":" not in host else endpoint


def one_machine(roles: PsLayout) -> bool:
    """Return whether one node has every task."""
    return not roles.separate and not roles.workers


def fixed_tasks(roles: PsLayout, host: str) -> tuple[Task, ...]:
    """The tasks that belong to a host regardless of other nodes, in the order of its ports."""
    if one_machine(roles):
        counts = ((Role.SERVER, roles.server_num), (Role.HETER, roles.heter_num), (Role.WORKER, roles.worker_num))
        return tuple(Task(role, index) for role, count in counts for index in range(count))
    lists = ((Role.SERVER, roles.servers), (Role.HETER, roles.heters), (Role.WORKER, roles.workers))
    return tuple(
        Task(role, index)
        for role, endpoints in lists
        for index, endpoint in enumerate(endpoints)
        if host_of(endpoint) == host
    )


def servers_wanted(roles: PsLayout) -> int:
    """The number of servers of the job."""
    return len(roles.servers) or roles.server_num


def has_workers(place: TaskMember) -> bool:
    """Return whether a node has workers, of either kind."""
    return any(task.role is not Role.SERVER for task in place.tasks)


def has_servers(place: TaskMember) -> bool:
    """Return whether a node has servers."""
    return any(task.role is Role.SERVER for task in place.tasks)


def without_servers(place: TaskMember) -> TaskMember:
    """Return the member with its workers only."""
    kept = [at for at, task in enumerate(place.tasks) if task.role is not Role.SERVER]
    ports, tasks = tuple(place.ports[at] for at in kept), tuple(place.tasks[at] for at in kept)
    return TaskMember(place.node, place.host, place.masters, ports, tasks, place.since, place.leaving)


def vacant_servers(roles: PsLayout, places: Iterable[TaskMember]) -> list[int]:
    """The indexes of the servers that no node has."""
    taken = {task.index for place in places for task in place.tasks if task.role is Role.SERVER}
    return [index for index in range(servers_wanted(roles)) if index not in taken]


def in_order(places: Iterable[TaskMember]) -> tuple[TaskMember, ...]:
    """Sort members by their first task, servers first, so that server 0 is on M_id 0."""
    return tuple(sorted(places, key=_order))


def _order(place: TaskMember) -> tuple[int, int, str]:
    """Sort by the first task; a member without tasks, which only a damaged document has, comes last."""
    first = place.tasks[0] if place.tasks else None
    return (ORDER[first.role], first.index, place.node) if first is not None else (len(ORDER), 0, place.node)


def assign(
    roles: PsLayout, places: Sequence[TaskMember], candidates: Iterable[Candidate], worker_nodes: int, rev: int
) -> list[TaskMember]:
    """Assign the tasks that `places` do not have to candidates, oldest first; return the new members.

    If np counts nodes with workers (`separate`), at most `worker_nodes` nodes have workers, and the indexes of workers
    stay below the number of tasks of that many nodes: while a leaving node keeps its tasks, a joining node waits for
    them, so that no gap remains. A candidate gets at most as many tasks as it has ports.
    """
    given: list[TaskMember] = []
    taken = {task for place in places for task in place.tasks}
    at_work = sum(has_workers(place) and not place.leaving for place in places)
    free = _VacantTasks(roles, taken, worker_nodes)
    for node, member in candidates:
        pairs = [
            (task, at) for task, at in free.offer(member.host, room=at_work < worker_nodes) if at < len(member.ports)
        ]
        if pairs:
            ports, tasks = tuple(member.ports[at] for _, at in pairs), tuple(task for task, _ in pairs)
            place = TaskMember(node, member.host, member.masters, ports, tasks, rev)
            given.append(place)
            taken.update(tasks)
            at_work += has_workers(place)
    return given


class _VacantTasks:
    """The tasks that no node has. `taken` grows as tasks are assigned; an index that was taken is not checked again."""

    def __init__(self, roles: PsLayout, taken: set[Task], worker_nodes: int) -> None:
        self._roles, self._taken = roles, taken
        self._lowest = dict.fromkeys(Role, 0)
        self._wanted = {Role.HETER: roles.heter_num, Role.WORKER: roles.worker_num}
        self._end = {role: wanted * worker_nodes for role, wanted in self._wanted.items()}

    def offer(self, host: str, *, room: bool) -> list[tuple[Task, int]]:
        """The free tasks for a node on this host, each with the index of its port among the node's ports."""
        roles = self._roles
        own = fixed_tasks(roles, host)
        if not roles.separate or own:
            if one_machine(roles) and self._taken:
                return []
            return [(task, at) for at, task in enumerate(own) if task not in self._taken]
        if not roles.servers and (vacant := self._next(Role.SERVER, 1, roles.server_num)):
            return [(vacant[0], 0)]
        if not room:
            return []
        tasks = [task for role, wanted in self._wanted.items() for task in self._next(role, wanted, self._end[role])]
        return [(task, at) for at, task in enumerate(tasks)] if len(tasks) == sum(self._wanted.values()) else []

    def _next(self, role: Role, count: int, end: int) -> list[Task]:
        """The lowest free tasks of a role with an index below `end`, at most `count`."""
        tasks: list[Task] = []
        index = self._lowest[role]
        while len(tasks) < count and index < end:
            task = Task(role, index)
            if task not in self._taken:
                tasks.append(task)
            elif not tasks:
                self._lowest[role] = index + 1
            index += 1
        return tasks
