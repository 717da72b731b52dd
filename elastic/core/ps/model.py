"""The documents of a parameter-server job, and their parts, as frozen values (pure).

Such a job has a spec and generations like any other, of types of their own: `PsJobSpec` says which process runs where,
and a `ClusterSpec` which node has which tasks. The leader revises a cluster spec while its processes run, because
workers talk to servers and not to each other: a node that keeps its tasks is not disturbed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec

from elastic.core.model import Amount, Cause, Generation, GenerationMember, JobMode, JobSpec, Stamp

TASKS_MAX = 100_000
TaskCount = Annotated[int, msgspec.Meta(ge=0, le=TASKS_MAX)]
"""A number of tasks of one role; lists are made of it."""
Endpoint = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%\[\]-]+\Z", max_length=300)]
"""`host:port`, or a host alone where the port is not fixed; IPv6 in brackets if there is a port."""
PS_MODES: Final = (JobMode.PS, JobMode.PS_HETER)
"""The modes in which a job has a `PsJobSpec`."""


class Role(StrEnum):
    """What one process does in a parameter-server job."""

    SERVER = "server"
    HETER = "heter"
    WORKER = "worker"


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process of a parameter-server job: server 0, worker 3. Indexes of each role count from 0.

    `gc=False`: there may be thousands, and none of them is part of a cycle.
    """

    role: Role
    index: TaskCount


class PsLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Which process runs where in a parameter-server job.

    `servers`, `workers` and `heters` are fixed tasks in the order of the command line; a node takes those whose host
    is its own. Where `servers` is empty there are `server_num` of them. Without `separate` (one machine) one node has
    all tasks. With `separate` the servers run on nodes of their own (those that `servers` names, otherwise one on each
    of the first nodes), every other node brings `worker_num` workers and `heter_num` heterogeneous ones, and np counts
    these other nodes.
    """

    servers: tuple[Endpoint, ...] = ()
    workers: tuple[Endpoint, ...] = ()
    heters: tuple[Endpoint, ...] = ()
    server_num: TaskCount = 0
    worker_num: TaskCount = 0
    heter_num: TaskCount = 0
    http_port: Amount = 0
    separate: bool = msgspec.field(default=False, name="apart")

    def __str__(self) -> str:
        """Write it as on the command line."""
        flags = {
            "--servers": ",".join(self.servers),
            "--workers": ",".join(self.workers),
            "--heter_workers": ",".join(self.heters),
            "--server_num": self.server_num or "",
            "--worker_num": self.worker_num or "",
            "--heter_worker_num": self.heter_num or "",
            "--http_port": self.http_port or "",
        }
        written = " ".join(f"{name} {text}" for name, text in flags.items() if text)
        return f"{written} with --np" if self.separate else written


class PsJobSpec(JobSpec, frozen=True, kw_only=True):
    """The spec of a parameter-server job."""

    layout: PsLayout = msgspec.field(name="roles")
    mode: JobMode = JobMode.PS
    one_world: ClassVar[bool] = False

    @property
    def generation_type(self) -> type[Generation]:
        """The document in which this job's generations are written."""
        return ClusterSpec

    @property
    def layout_text(self) -> str:
        """The flags that fix which process runs where."""
        return str(self.layout)


class TaskMember(GenerationMember, frozen=True, array_like=True, gc=False):
    """A node of a cluster spec, with its `tasks`, one for each of its `ports`.

    `since` is the revision that gave them to it; a higher one starts them again. `leaving`: the node must stop them
    and record its outcome.
    """

    tasks: tuple[Task, ...] = ()
    since: Amount = 0
    leaving: bool = False

    def process_count(self, slots: int) -> int:
        """How many processes it has."""
        return len(self.tasks) or slots

    def is_meeting_place(self, m_id: int) -> bool:
        """Tell whether processes of other nodes may meet here: the first process of each role has a port for that."""
        return m_id == 0 or any(task.index == 0 for task in self.tasks)


class TaskAssignment(NamedTuple):
    """A task with the node that has it, and where its process listens."""

    task: Task
    node: str
    host: str
    port: int


class ClusterSpec(Generation, frozen=True, kw_only=True, dict=True):
    """A generation of a parameter-server job: which node has which tasks.

    Each change of its members while it runs is another revision `rev` of the same generation. `cause` is the failure
    that the newest revision answers.
    """

    members: tuple[TaskMember, ...]
    rev: Amount = 0
    cause: Cause | None = None
    document_name: ClassVar[str] = "generation_cluster_spec"
    one_world: ClassVar[bool] = False

    @classmethod
    def of(cls, generation: Generation) -> ClusterSpec:
        """The same generation as a cluster spec. One of a job that was collective before has members without tasks."""
        if isinstance(generation, cls):
            return generation
        members = tuple(TaskMember(one.node, one.host, one.masters, one.ports) for one in generation.members)
        return cls(**{**msgspec.structs.asdict(generation), "members": members})

    def member(self, node: str) -> TaskMember | None:
        """The member that a node is to be; None if it has no tasks, or is asked to give them up."""
        index = self.index(node)
        return self.members[index] if index is not None and not self.members[index].leaving else None

    def start_of(self, node: str) -> Stamp | None:
        """The last start of a node that the leader asked for, also if the node is leaving; None if it has no tasks."""
        index = self.index(node)
        return (self.g, self.members[index].since) if index is not None else None

    def withdrawn_start(self, node: str) -> Stamp | None:
        """The start of a node that is leaving."""
        return self.start_of(node) if self.member(node) is None else None

    @property
    def later_starts(self) -> tuple[int, ...]:
        """The starts of the members within this generation; empty before the first revision."""
        return tuple(member.since for member in self.members) if self.rev else ()

    @property
    def continues(self) -> bool:
        """Whether it is a revision: processes of this generation run on."""
        return self.rev > 0

    @property
    def world_size(self) -> int:
        """Workers of both kinds, without the servers."""
        return len(self.task_assignments(Role.WORKER)) + len(self.task_assignments(Role.HETER))

    def task_assignments(self, role: Role) -> tuple[TaskAssignment, ...]:
        """Which node has which task of a role, by index."""
        assignments = [
            TaskAssignment(task, member.node, member.host, port)
            for member in self.members
            for task, port in zip(member.tasks, member.ports, strict=False)
            if task.role is role
        ]
        return tuple(sorted(assignments, key=lambda assignment: assignment.task.index))
