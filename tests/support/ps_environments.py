"""The environment of the processes of a parameter-server job."""

from __future__ import annotations

from collections.abc import Mapping

from elastic.core.model import ChangeReason
from elastic.core.ps.model import ClusterSpec, Role, Task, TaskMember
from launcher.config.config import Config
from launcher.workers.environment import LaunchContext
from launcher.workers.ps_environment import TaskContext, ps_environment

SERVER, WORKER, HETER = Role.SERVER, Role.WORKER, Role.HETER


def place(number: int, *tasks: tuple[Role, int], host: str = "192.168.0.{}", ports: tuple[int, ...] = ()) -> TaskMember:
    return TaskMember(
        node=f"n{number}",
        host=host.format(number),
        masters=(5000 + number, 5100 + number, 5200 + number),
        ports=ports or tuple(6170 + position for position in range(len(tasks))),
        tasks=tuple(Task(role, index) for role, index in tasks),
    )


def generation(*places: TaskMember) -> ClusterSpec:
    return ClusterSpec(
        g=7, run=1, leader="t", why=ChangeReason.FIRST, reason="all are here", slots=1, members=places, rev=3
    )


DOCUMENTED = generation(
    place(16, (SERVER, 0), (WORKER, 0), (WORKER, 1)),
    place(17, (SERVER, 1), (WORKER, 2), (WORKER, 3)),
)
"""--servers and --workers as in the documentation of paddle.distributed.launch."""
HETEROGENEOUS = generation(
    place(16, (SERVER, 0), (HETER, 0), (WORKER, 0)),
    place(17, (SERVER, 1), (HETER, 1), (WORKER, 1)),
)


def environment(
    world: ClusterSpec,
    m_id: int,
    task_index: int,
    *,
    base: Mapping[str, str] | None = None,
    master: str = "192.168.0.16:5016",
    interface: str | None = None,
) -> dict[str, str]:
    told = LaunchContext(
        base=base or {},
        config=Config(script="train.py", job_id="j1", checkpoint_dir="/data/checkpoints/j1"),
        generation=world,
        master=master,
        restarts=1,
        restarts_max=3,
        node_id=world.members[m_id].node,
        incarnation="abc",
        endpoints_file="/data/log/endpoints.7.log",
        interface=interface,
    )
    return ps_environment(
        TaskContext(
            launch=told,
            place=world.members[m_id],
            task_index=task_index,
            roster_file="/tmp/x/roster.json",
            error_file="/tmp/x/error.json",
            progress_file="/tmp/x/progress",
        )
    )
