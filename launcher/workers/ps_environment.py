"""The environment of a process of a parameter-server job, and its cluster spec file (pure).

Scripts written for Paddle's parameter servers find the names they know, workers also have torchrun's variables, and the
elastic library reads its own. Everything here is of the revision in which the process was started; later revisions are
in the file of `ELASTIC_ROSTER_FILE`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec

from elastic.auth.handshake import derived_secret
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskAssignment, TaskMember
from launcher.config.env_reference import DocumentedVariables
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.workers.environment import (
    COMMON,
    ProcessContext,
    Variable,
    environment_of,
    if_it_fits,
)

PADDLE_ROLES: Final[Mapping[Role, str]] = {
    Role.SERVER: "PSERVER",
    Role.WORKER: "TRAINER",
    Role.HETER: "HETER_TRAINER",
}
SERVERS, TRAINERS = "servers", "workers, heterogeneous"
"""The kinds of process that have a variable, for variables that not every kind has."""


@dataclass(frozen=True, kw_only=True)
class TaskContext(ProcessContext):
    """The process with the task `place.tasks[task_index]`.

    The master in `launch` is on the node of server 0.
    """

    place: TaskMember
    task_index: int
    roster_file: str

    @property
    def task(self) -> Task:
        """The task of the process."""
        return self.place.tasks[self.task_index]

    @property
    def processes(self) -> int:
        """The number of processes of this node, servers included."""
        return len(self.place.tasks)

    @property
    def secret(self) -> str:
        """The secret with which servers and workers authenticate each other, "" if the job's secret is not known."""
        known = self.launch.learned.secret
        return derived_secret(known, "parameter servers", self.launch.config.job_id) if known else ""

    @cached_property
    def cluster_spec(self) -> ClusterSpec:
        """The endpoints of all processes."""
        return ClusterSpec.of(self.launch.generation)

    def having(self, role: Role) -> tuple[TaskAssignment, ...]:
        """The processes of a role."""
        return self.cluster_spec.task_assignments(role)

    @cached_property
    def trainers(self) -> list[int]:
        """The indices of this node's tasks that are workers of either kind."""
        return [number for number, task in enumerate(self.place.tasks) if task.role is not Role.SERVER]

    @property
    def local_rank(self) -> int:
        """The index among the node's workers of both kinds."""
        return self.trainers.index(self.task_index)

    @property
    def meeting(self) -> tuple[str, str]:
        """The host and port of the rendezvous of the workers' torch process group.

        It is the master, unless worker 0 is on another host: torch's rank 0 opens the store on its own host, so then it
        is a port that the node of worker 0 holds.
        """
        host, port = parse_endpoint(self.launch.master)
        for place in self.cluster_spec.members:
            if Task(Role.WORKER, 0) in place.tasks and place.host != host and place.masters:
                host, port = place.host, place.masters[self.cluster_spec.g % len(place.masters)]
        return host, str(port)


OWN: Final[tuple[Variable[TaskContext], ...]] = (
    Variable(("ELASTIC_ROLE",), "server, worker or heter", lambda p: str(p.task.role)),
    Variable(("ELASTIC_INDEX",), "the index within the role, from 0", lambda p: str(p.task.index)),
    Variable(
        ("ELASTIC_ROSTER_FILE",),
        'a JSON file that the agent rewrites at each revision: {"generation", "revision", "servers": '
        '["host:port", ...], "workers": [{"index", "endpoint"}, ...], "heters": [...]}; servers is by '
        'index, "" where a slot is vacant',
        lambda p: p.roster_file,
    ),
    Variable(
        ("ELASTIC_PS_SECRET",),
        "the secret with which servers and workers authenticate each other; derived from the job's secret in etcd",
        lambda p: p.secret,
    ),
    Variable(
        ("PADDLE_TRAINING_ROLE", "TRAINING_ROLE"),
        "PSERVER, TRAINER or HETER_TRAINER",
        lambda p: PADDLE_ROLES[p.task.role],
    ),
    Variable(
        ("PADDLE_PSERVERS_IP_PORT_LIST",),
        "every server's host:port by index, separated by commas; empty where a slot is vacant",
        lambda p: if_it_fits(",".join(_by_index(p.having(Role.SERVER)))),
    ),
    Variable(
        ("PADDLE_PSERVER_IPS",),
        "the same without the ports",
        lambda p: if_it_fits(",".join(_by_index(p.having(Role.SERVER), lambda server: server.host))),
    ),
    Variable(
        ("PADDLE_PSERVER_PORT",),
        "the port of the servers, if all have the same; otherwise not set",
        lambda p: (
            str(p.having(Role.SERVER)[0].port) if len({server.port for server in p.having(Role.SERVER)}) == 1 else None
        ),
    ),
    Variable(
        ("PADDLE_TRAINERS", "PADDLE_TRAINERS_NUM"),
        "the number of workers, heterogeneous ones not included",
        lambda p: str(_count(p.having(Role.WORKER))),
    ),
    Variable(
        ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"),
        "the workers' host:port by index",
        lambda p: if_it_fits(",".join(map(_endpoint, p.having(Role.WORKER)))),
    ),
    Variable(
        ("PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST"),
        "the heterogeneous workers' host:port by index, if there are any",
        lambda p: if_it_fits(",".join(map(_endpoint, p.having(Role.HETER)))) if p.having(Role.HETER) else None,
    ),
    Variable(
        ("PADDLE_CURRENT_ENDPOINT",),
        "the host:port of this process",
        lambda p: join_host_port(p.place.host, p.place.ports[p.task_index]),
    ),
    Variable(
        ("POD_IP", "PADDLE_PORT"),
        "the same as two variables",
        lambda p: (p.place.host, str(p.place.ports[p.task_index])),
    ),
    Variable(("PADDLE_CURRENT_IP",), "this server's host", lambda p: p.place.host, who=SERVERS),
    Variable(
        ("PADDLE_GLOO_HTTP_ENDPOINT", "PADDLE_MASTER"),
        "the host of server 0 and --http-port, or a port that its node holds",
        lambda p: p.launch.master,
    ),
    Variable(("PADDLE_GLOO_RENDEZVOUS",), "3: over HTTP", lambda p: "3"),
    Variable(("PADDLE_WITH_GLOO",), "0, unless it is set", lambda p: "0", outer="preferred"),
    Variable(("PADDLE_TRAINER_ID",), "the index within the role", lambda p: str(p.task.index), who=TRAINERS),
    Variable(
        ("RANK",),
        "the index of a worker; for a heterogeneous worker, the number of workers plus its index",
        lambda p: str(p.task.index + (0 if p.task.role is Role.WORKER else _count(p.having(Role.WORKER)))),
        who=TRAINERS,
    ),
    Variable(
        ("WORLD_SIZE",),
        "workers of both kinds",
        lambda p: str(_count(p.having(Role.WORKER)) + _count(p.having(Role.HETER))),
        who=TRAINERS,
    ),
    Variable(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
        "the index among the workers of both kinds of this node",
        lambda p: str(p.local_rank),
        who=TRAINERS,
    ),
    Variable(("LOCAL_WORLD_SIZE",), "the number of these workers", lambda p: str(len(p.trainers)), who=TRAINERS),
    Variable(
        ("FLAGS_selected_gpus",),
        "the local rank, modulo the number of GPUs if CUDA_VISIBLE_DEVICES names any",
        lambda p: str(p.local_rank % (_gpus(p.launch.base) or len(p.place.tasks))),
        who=TRAINERS,
    ),
    Variable(
        ("ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE"),
        "worker or heter, the index within the role, the number of processes in the role",
        lambda p: (
            str(p.task.role),
            str(p.task.index),
            str(_count(p.having(p.task.role))),
        ),
        who=TRAINERS,
    ),
    Variable(
        ("GROUP_RANK", "GROUP_WORLD_SIZE"),
        "M_id and the number of nodes, those of servers included",
        lambda p: (str(p.cluster_spec.index(p.place.node) or 0), str(len(p.cluster_spec.members))),
        who=TRAINERS,
    ),
    Variable(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where the workers' torch process group meets: PADDLE_GLOO_HTTP_ENDPOINT, or, if that is another host, a "
        "port that the node of worker 0 holds, because torch's rank 0 opens the store on its own host",
        lambda p: p.meeting,
        who=TRAINERS,
    ),
    Variable(
        ("ELASTIC_SLOT",), "the index among the processes of its node, servers included", lambda p: str(p.task_index)
    ),
)
"""The variables of a process of a parameter-server job, in addition to `COMMON`."""

DOCUMENTED: Final[tuple[DocumentedVariables, ...]] = (
    *OWN,
    DocumentedVariables(tuple(name for row in COMMON for name in row.names), "as in a worker of a collective job"),
)


def ps_environment(context: TaskContext) -> dict[str, str]:
    """Return the whole environment of a process of a parameter-server job."""
    return environment_of((*OWN, *COMMON), context, SERVERS if context.task.role is Role.SERVER else TRAINERS)


def cluster_spec_document(cluster_spec: ClusterSpec) -> bytes:
    """Return the endpoints of all processes as JSON, the content of the file of `ELASTIC_ROSTER_FILE`.

    `servers` are endpoints by index, "" where a slot is vacant; workers and heterogeneous workers name their index.
    """
    servers, workers, heters = map(cluster_spec.task_assignments, (Role.SERVER, Role.WORKER, Role.HETER))
    document = {
        "generation": cluster_spec.g,
        "revision": cluster_spec.rev,
        "servers": _by_index(servers),
        "workers": [{"index": task.task.index, "endpoint": _endpoint(task)} for task in workers],
        "heters": [{"index": task.task.index, "endpoint": _endpoint(task)} for task in heters],
    }
    return msgspec.json.encode(document) + b"\n"


def _endpoint(one: TaskAssignment) -> str:
    return join_host_port(one.host, one.port)


def _gpus(base: Mapping[str, str]) -> int:
    """Return the number of GPUs that the agent was assigned, 0 if none were named."""
    return len([gpu for gpu in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()])


def _count(assignments: Sequence[TaskAssignment]) -> int:
    """Return the number of slots of a role, including vacant ones between others: every index is below it."""
    return max((one.task.index + 1 for one in assignments), default=0)


def _by_index(assignments: Sequence[TaskAssignment], shown: Callable[[TaskAssignment], str] = _endpoint) -> list[str]:
    found = {one.task.index: shown(one) for one in assignments}
    return [found.get(index, "") for index in range(_count(assignments))]
