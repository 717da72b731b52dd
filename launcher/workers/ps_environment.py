"""The environment of a process of a parameter-server job, its roster file, and the name of its log (pure).

Scripts written for Paddle's parameter servers find the names they know, workers have torchrun's besides, and our
library reads ours. Everything here is of the revision in which the process was started; later ones stand in the file
of `ELASTIC_ROSTER_FILE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from elastic.core import text
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskAssignment, TaskMember
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.system.private_env import inheritable_env
from launcher.workers.environment import LISTS, ROLE_NAMES, LaunchContext, default_env, lists_that_fit

PADDLE_ROLES: Final[Mapping[Role, str]] = {
    Role.SERVER: "PSERVER",
    Role.WORKER: "TRAINER",
    Role.HETER: "HETER_TRAINER",
}

OF_SOME: Final = frozenset(
    {
        *ROLE_NAMES,
        *LISTS,
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST",
        "PADDLE_CURRENT_IP",
        "PADDLE_HETER_TRAINER_IP_PORT_LIST",
        "PADDLE_PSERVERS_IP_PORT_LIST",
        "PADDLE_PSERVER_IPS",
        "PADDLE_PSERVER_PORT",
        "PADDLE_RANK_IN_NODE",
        "PADDLE_TRAINER_ID",
        "FLAGS_selected_gpus",
    }
)
"""What only some processes have: taken out where an outer launcher left it."""


def log_name(task: Task) -> str:
    """The file in the log folder for the process of a seat."""
    return text.log_name(task.role, task.index)


def cluster_spec_document(cluster_spec: ClusterSpec) -> bytes:
    """Who is where now, as JSON: what stands in the file of `ELASTIC_ROSTER_FILE`.

    `servers` are endpoints by index, "" where a seat is vacant; workers and heterogeneous workers name their index.
    """
    servers, workers, heters = _task_assignments(cluster_spec)
    document = {
        "generation": cluster_spec.g,
        "revision": cluster_spec.rev,
        "servers": _by_index(servers),
        "workers": [{"index": task.task.index, "endpoint": _endpoint(task)} for task in workers],
        "heters": [{"index": task.task.index, "endpoint": _endpoint(task)} for task in heters],
    }
    return msgspec.json.encode(document) + b"\n"


def ps_environment(
    context: LaunchContext, *, place: TaskMember, task_index: int, roster_file: str, error_file: str
) -> dict[str, str]:
    """The whole environment of the process with the seat `place.seats[seat_index]`.

    The master in `context` is on the node of server 0. `error_file` is where torch's @record may write.
    """
    cluster_spec, master = ClusterSpec.of(context.generation), context.master
    task, port = place.tasks[task_index], place.ports[task_index]
    serving, workers, heters = _task_assignments(cluster_spec)
    made = inheritable_env(context.base, OF_SOME)
    made |= context.environment | {"TORCHELASTIC_ERROR_FILE": error_file}
    made |= {
        "ELASTIC_ROLE": str(task.role),
        "ELASTIC_INDEX": str(task.index),
        "ELASTIC_ROSTER_FILE": roster_file,
        "ELASTIC_SLOT": str(task_index),
        "PADDLE_TRAINING_ROLE": PADDLE_ROLES[task.role],
        "TRAINING_ROLE": PADDLE_ROLES[task.role],
        "PADDLE_TRAINERS": str(_count(workers)),
        "PADDLE_TRAINERS_NUM": str(_count(workers)),
        "PADDLE_CURRENT_ENDPOINT": join_host_port(place.host, port),
        "PADDLE_PORT": str(port),
        "POD_IP": place.host,
        "PADDLE_GLOO_RENDEZVOUS": "3",
        "PADDLE_GLOO_HTTP_ENDPOINT": master,
    }
    made |= lists_that_fit(_lists(serving, workers, heters))
    if task.role is Role.SERVER:
        made["PADDLE_CURRENT_IP"] = place.host
    else:
        made |= _ranks(cluster_spec, place, task_index, _gpus(context.base))
        made |= _meeting(cluster_spec, master)
    made |= context.proxies
    return {"PADDLE_WITH_GLOO": "0"} | default_env(len(place.tasks), context.interface) | made


def _task_assignments(
    cluster_spec: ClusterSpec,
) -> tuple[tuple[TaskAssignment, ...], tuple[TaskAssignment, ...], tuple[TaskAssignment, ...]]:
    return (
        cluster_spec.task_assignments(Role.SERVER),
        cluster_spec.task_assignments(Role.WORKER),
        cluster_spec.task_assignments(Role.HETER),
    )


def _lists(
    servers: Sequence[TaskAssignment], workers: Sequence[TaskAssignment], heters: Sequence[TaskAssignment]
) -> dict[str, str]:
    """Who is where, with commas. A server's place in its list is its index, so that a vacant seat leaves a gap."""
    hosts = {server.task.index: server.host for server in servers}
    made = {
        "PADDLE_PSERVERS_IP_PORT_LIST": ",".join(_by_index(servers)),
        "PADDLE_PSERVER_IPS": ",".join(hosts.get(index, "") for index in range(_count(servers))),
    }
    ports = {server.port for server in servers}
    if len(ports) == 1:
        made["PADDLE_PSERVER_PORT"] = str(*ports)
    made |= dict.fromkeys(LISTS, ",".join(map(_endpoint, workers)))
    if heters:
        names = ("PADDLE_HETER_TRAINER_IP_PORT_LIST", "PADDLE_ALL_HETER_TRAINER_IP_PORT_LIST")
        made |= dict.fromkeys(names, ",".join(map(_endpoint, heters)))
    return made


def _ranks(cluster_spec: ClusterSpec, place: TaskMember, task_index: int, gpus: int) -> dict[str, str]:
    """What torchrun tells its workers. Workers come first in the order of ranks, then heterogeneous workers."""
    seat = place.tasks[task_index]
    _, workers, heters = map(_count, _task_assignments(cluster_spec))
    trainers = [number for number, task in enumerate(place.tasks) if task.role is not Role.SERVER]
    local_rank = trainers.index(task_index)
    return {
        "RANK": str(seat.index if seat.role is Role.WORKER else workers + seat.index),
        "WORLD_SIZE": str(workers + heters),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(len(trainers)),
        "GROUP_RANK": str(cluster_spec.index(place.node) or 0),
        "GROUP_WORLD_SIZE": str(len(cluster_spec.members)),
        "ROLE_RANK": str(seat.index),
        "ROLE_WORLD_SIZE": str(workers if seat.role is Role.WORKER else heters),
        "ROLE_NAME": str(seat.role),
        "PADDLE_TRAINER_ID": str(seat.index),
        "PADDLE_RANK_IN_NODE": str(local_rank),
        "FLAGS_selected_gpus": str(local_rank % gpus if gpus else local_rank),
    }


def _meeting(cluster_spec: ClusterSpec, master: str) -> dict[str, str]:
    """Where torch's process group of the workers meets.

    It is `master`, unless worker 0 is on another host: torch's rank 0 opens the store on its own machine, so then it
    is a port that the node of worker 0 holds.
    """
    host, port = parse_endpoint(master)
    for place in cluster_spec.members:
        if Task(Role.WORKER, 0) in place.tasks and place.host != host and place.masters:
            host, port = place.host, place.masters[cluster_spec.g % len(place.masters)]
    return {"MASTER_ADDR": host, "MASTER_PORT": str(port)}


def _gpus(base: Mapping[str, str]) -> int:
    """How many cards the agent was told to use, 0 if it was not told."""
    return len([gpu for gpu in base.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu.strip()])


def _count(assignments: Sequence[TaskAssignment]) -> int:
    """Seats of a role, those included that are vacant between others: every index is below it."""
    return max((one.task.index + 1 for one in assignments), default=0)


def _by_index(assignments: Sequence[TaskAssignment]) -> list[str]:
    found = {one.task.index: _endpoint(one) for one in assignments}
    return [found.get(index, "") for index in range(_count(assignments))]


def _endpoint(one: TaskAssignment) -> str:
    return join_host_port(one.host, one.port)
