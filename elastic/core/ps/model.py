"""The documents of a parameter-server job, and their parts, as frozen values (pure).

Such a job has a spec and generations like any other, of separate types: `PsJobSpec` says which process runs where, and
`ClusterSpec` which node has which tasks. The leader revises a cluster spec while its processes run: workers talk to
servers and not to each other, so a node that keeps its tasks is not disturbed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar, Final, NamedTuple

import msgspec

from elastic.core.model import Amount, Cause, Generation, GenerationMember, JobMode, JobSpec, Stamp

TASKS_MAX = 100_000
TaskCount = Annotated[int, msgspec.Meta(ge=0, le=TASKS_MAX)]
"""A number of tasks of one role; it is limited because lists of this length are made."""
Endpoint = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.:%\[\]-]+\Z", max_length=300)]
"""`host:port`, or a host alone if the port is not fixed; IPv6 in brackets if there is a port."""
PS_MODES: Final = (JobMode.PS, JobMode.PS_HETER)
"""The modes of jobs that have a `PsJobSpec`."""


class Role(StrEnum):
    """The role of one process in a parameter-server job."""

    SERVER = "server"
    HETER = "heter"
    WORKER = "worker"


class Task(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One process of a parameter-server job: server 0, worker 3. Indexes of each role count from 0.

    `gc=False`: there may be thousands of tasks, and none of them is part of a reference cycle.
    """

    role: Role
    index: TaskCount


class PsLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Which process runs where in a parameter-server job.

    `servers`, `workers` and `heters` are fixed tasks in the order of the command line; a node has those with its own
    host. If `servers` is empty, there are `server_num` servers. Without `separate` and without lists, one node has all
    tasks. With `separate`, servers run on separate nodes (those with a host in `servers`, otherwise one on each of the
    first nodes), every other node runs `worker_num` workers and `heter_num` heterogeneous workers, and np counts these
    other nodes.
    """

    servers: tuple[Endpoint, ...] = ()
    workers: tuple[Endpoint, ...] = ()
    heters: tuple[Endpoint, ...] = ()
    server_num: TaskCount = 0
    worker_num: TaskCount = 0
    heter_num: TaskCount = 0
    http_port: Amount = 0
    separate: bool = False

    def __str__(self) -> str:
        """Return the layout as it is given on the command line."""
        flags = {
            "--servers": ",".join(self.servers),
            "--workers": ",".join(self.workers),
            "--heter-workers": ",".join(self.heters),
            "--server-num": self.server_num or "",
            "--worker-num": self.worker_num or "",
            "--heter-worker-num": self.heter_num or "",
            "--http-port": self.http_port or "",
        }
        written = " ".join(f"{name} {text}" for name, text in flags.items() if text)
        return f"{written} with --np" if self.separate else written


class PsJobSpec(JobSpec, frozen=True, kw_only=True):
    """The spec of a parameter-server job."""

    layout: PsLayout
    mode: JobMode = JobMode.PS
    one_world: ClassVar[bool] = False

    @property
    def generation_type(self) -> type[Generation]:
        """The type of this job's generation documents."""
        return ClusterSpec

    @property
    def layout_text(self) -> str:
        """The flags that fix which process runs where."""
        return str(self.layout)


class TaskMember(GenerationMember, frozen=True, array_like=True, gc=False):
    """A node of a cluster spec, with its `tasks`, one for each of its `ports`.

    `since` is the revision that assigned the tasks to the node; a higher one starts them again. `leaving`: the node
    must stop them and record its outcome.
    """

    tasks: tuple[Task, ...] = ()
    since: Amount = 0
    leaving: bool = False

    def process_count(self, slots: int) -> int:
        """The number of processes of this member."""
        return len(self.tasks) or slots

    def is_meeting_place(self, m_id: int) -> bool:
        """Return whether processes of other nodes may meet here: M_id 0, or the first process of a role."""
        return m_id == 0 or any(task.index == 0 for task in self.tasks)


class TaskAssignment(NamedTuple):
    """A task with the node that has it, and the address on which its process listens."""

    task: Task
    node: str
    host: str
    port: int


class ClusterSpec(Generation, frozen=True, kw_only=True, dict=True):
    """A generation of a parameter-server job: which node has which tasks.

    Each change of its members while it runs is another revision `rev` of the same generation. `cause` is the root cause
    of the failure that the newest revision answers.
    """

    members: tuple[TaskMember, ...]
    rev: Amount = 0
    cause: Cause | None = None
    document_name: ClassVar[str] = "generation_cluster_spec"
    one_world: ClassVar[bool] = False

    @classmethod
    def of(cls, generation: Generation) -> ClusterSpec:
        """Return the generation as a cluster spec. If the job was collective before, its members have no tasks."""
        if isinstance(generation, cls):
            return generation
        members = tuple(TaskMember(one.node, one.host, one.masters, one.ports) for one in generation.members)
        return cls(**{**msgspec.structs.asdict(generation), "members": members})

    def member(self, node: str) -> TaskMember | None:
        """The member for a node; None if the node has no tasks, or must give them up."""
        index = self.index(node)
        return self.members[index] if index is not None and not self.members[index].leaving else None

    def start_of(self, node: str) -> Stamp | None:
        """The last start that the leader asked of a node, even if the node is leaving; None if it has no tasks."""
        index = self.index(node)
        return (self.g, self.members[index].since) if index is not None else None

    def withdrawn_start(self, node: str) -> Stamp | None:
        """The start of a node that is leaving."""
        return self.start_of(node) if self.member(node) is None else None

    @property
    def later_starts(self) -> tuple[int, ...]:
        """The numbers of the members' starts within this generation; empty before the first revision."""
        return tuple(member.since for member in self.members) if self.rev else ()

    @property
    def continues(self) -> bool:
        """Whether this is a later revision, so that processes of this generation continue to run."""
        return self.rev > 0

    @property
    def world_size(self) -> int:
        """The number of workers of both kinds, without the servers."""
        return len(self.task_assignments(Role.WORKER)) + len(self.task_assignments(Role.HETER))

    def task_assignments(self, role: Role) -> tuple[TaskAssignment, ...]:
        """The assignments of all tasks of a role, in the order of their index."""
        assignments = [
            TaskAssignment(task, member.node, member.host, port)
            for member in self.members
            for task, port in zip(member.tasks, member.ports, strict=False)
            if task.role is role
        ]
        return tuple(sorted(assignments, key=lambda assignment: assignment.task.index))
