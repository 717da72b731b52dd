"""The environment of a worker (pure): one table, from which the variables and their documentation are made.

It has torchrun's variables, so that scripts written for torchrun run unchanged, Paddle's collective ones, and ours.
Variables with the same names in the agent's own environment are replaced or removed, never mixed in.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, Final, Generic, Literal, TypeVar

from elastic.core.model import Generation, GenerationMember
from launcher.config.config import Config
from launcher.config.env_reference import DocumentedVariables
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.net.traffic_variables import LIST_BYTES_MAX, proxy_exceptions
from launcher.system.private_env import inheritable_env

ROLE_NAMES: Final = (
    "ELASTIC_ROLE",
    "ELASTIC_INDEX",
    "ELASTIC_SLOT",
    "ELASTIC_PS_SECRET",
    "ELASTIC_ROSTER_FILE",
    "PADDLE_TRAINING_ROLE",
    "TRAINING_ROLE",
)
"""Variables of a process of a parameter-server job, which would be misleading in a worker of a collective job."""


@dataclass(frozen=True, slots=True)
class JobContext:
    """What this agent has learned about the job so far, for the processes that it starts next.

    `saved` is the job's newest committed checkpoint as JSON, "" without one; `restore_step` the step to roll back to,
    if that has not happened yet; `channel` the socket on which workers talk to the agent, "" if there is none; `secret`
    authenticates the job's peer connections.
    """

    saved: str = ""
    restore_step: int | None = None
    channel: str = ""
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """The data that all processes of a generation on a node share.

    `base` is the agent's own environment. `config` went through `check`: its paths are absolute. `master` is the
    `host:port` from the start signal; `restarts` is the number of restarts used so far; `interface` is the network
    interface of the advertised address, None to let NCCL and gloo choose.
    """

    base: Mapping[str, str]
    config: Config
    generation: Generation
    master: str
    restarts: int
    restarts_max: int
    node_id: str
    incarnation: str
    endpoints_file: str
    learned: JobContext = JobContext()
    interface: str | None = None

    @cached_property
    def endpoints(self) -> str | None:
        """The endpoints of all workers of a collective generation, by rank; None if they are too long."""
        members = self.generation.members
        return if_it_fits(",".join(join_host_port(one.host, port) for one in members for port in one.ports))

    @cached_property
    def no_proxy(self) -> tuple[str, ...] | None:
        """The hosts that are reached without a proxy, etcd's included; None where no proxy is set."""
        hosts = [one.host for one in self.generation.members] + [parse_endpoint(one)[0] for one in self.config.servers]
        return tuple(proxy_exceptions(self.base, hosts).values()) or None


@dataclass(frozen=True, kw_only=True)
class ProcessContext:
    """One process. `error_file` is where torch's @record may write."""

    launch: LaunchContext
    error_file: str
    progress_file: str


@dataclass(frozen=True, kw_only=True)
class CollectiveContext(ProcessContext):
    """Worker `local_rank` of member `m_id` in a collective generation."""

    m_id: int
    local_rank: int

    @property
    def processes(self) -> int:
        """The number of workers of this node, which is that of every other node."""
        return self.launch.generation.slots

    @property
    def rank(self) -> int:
        """The global rank."""
        return self.m_id * self.processes + self.local_rank

    @property
    def place(self) -> GenerationMember:
        """The node of the worker."""
        return self.launch.generation.members[self.m_id]

    @property
    def gpus(self) -> str | None:
        """The value of CUDA_VISIBLE_DEVICES; None leaves it unchanged."""
        gpus, alone = self.launch.config.shown_gpus, self.launch.config.isolate_gpus
        return gpus[self.local_rank] if gpus and alone else ",".join(gpus) or None


P_contra = TypeVar("P_contra", contravariant=True)


@dataclass(frozen=True)
class Variable(DocumentedVariables, Generic[P_contra]):
    """Variables of a process. `value` returns one value for all of them, or one for each, or None for no value.

    `outer` says how the same variables of the agent's own environment are treated: "replaced" (removed if there is no
    value), "kept" if there is no value, or "preferred" to the value.
    """

    value: Callable[[P_contra], str | tuple[str, ...] | None]
    outer: Literal["replaced", "kept", "preferred"] = field(default="replaced", kw_only=True)


DEFAULTS: Final[tuple[Variable[Any], ...]] = (
    Variable(("PYTHONUNBUFFERED",), "1, unless it is set", lambda p: "1", outer="preferred"),
    Variable(
        ("OMP_NUM_THREADS",),
        "1, if N > 1 and it is not set",
        lambda p: "1" if p.processes > 1 else None,
        outer="preferred",
    ),
    Variable(("TORCH_NCCL_ASYNC_ERROR_HANDLING",), "1, unless it is set", lambda p: "1", outer="preferred"),
    Variable(
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        "--nic, or the network interface of the node's address, unless they are set or none is found",
        lambda p: p.launch.interface or None,
        outer="preferred",
    ),
)

COMMON: Final[tuple[Variable[ProcessContext], ...]] = (
    Variable(("TORCHELASTIC_RESTART_COUNT",), "the restarts used so far", lambda p: str(p.launch.restarts)),
    Variable(("TORCHELASTIC_MAX_RESTARTS",), "--max-restarts of this node", lambda p: str(p.launch.restarts_max)),
    Variable(("TORCHELASTIC_RUN_ID", "ELASTIC_JOB_ID"), "the job ID", lambda p: p.launch.config.job_id),
    Variable(("TORCHELASTIC_ERROR_FILE",), "a file where torch's @record may write its error", lambda p: p.error_file),
    Variable(("TORCHELASTIC_USE_AGENT_STORE",), "False", lambda p: "False"),
    Variable(
        ("ELASTIC_ENDPOINTS_FILE",),
        "a file with the list of endpoints, always set: a copy of endpoints.<g>.log",
        lambda p: p.launch.endpoints_file,
    ),
    Variable(
        ("ELASTIC_NODE_ID",),
        "the node ID: host, a dash and 6 letters and digits, new for each start of an agent",
        lambda p: p.launch.node_id,
    ),
    Variable(("ELASTIC_GENERATION",), "the number of the generation", lambda p: str(p.launch.generation.g)),
    Variable(
        ("ELASTIC_FENCE",),
        "<incarnation>/<generation>: the fencing token with which the elastic library may write checkpoints",
        lambda p: f"{p.launch.incarnation}/{p.launch.generation.g}",
    ),
    Variable(
        ("ELASTIC_RUN",),
        "the number of the job's run: starts at 1 and increases with each --rerun",
        lambda p: str(p.launch.generation.run),
    ),
    Variable(
        ("ELASTIC_CHECKPOINT_DIR",), "--checkpoint-dir as an absolute path", lambda p: p.launch.config.checkpoint_dir
    ),
    Variable(
        ("ELASTIC_RESUME_FROM",),
        "--resume-from as an absolute path, if it is given",
        lambda p: p.launch.config.resume_from or None,
    ),
    Variable(
        ("ELASTIC_RESTORE_STEP",),
        "--restore-step, if it is given and no step was committed since",
        lambda p: None if p.launch.learned.restore_step is None else str(p.launch.learned.restore_step),
    ),
    Variable(
        ("ELASTIC_ALLOW_ROLLBACK",),
        "1 with --allow-rollback",
        lambda p: "1" if p.launch.config.allow_rollback else None,
    ),
    Variable(("ELASTIC_CHECK_NAN",), "1 with --check-nan", lambda p: "1" if p.launch.config.check_nan else None),
    Variable(
        ("ELASTIC_NO_TORCH_PATCH",),
        "1 with --no-torch-patch",
        lambda p: "1" if p.launch.config.no_torch_patch else None,
    ),
    Variable(
        ("ELASTIC_SAVED",),
        'the newest committed checkpoint of the job, if one is known: {"step": 500, "host": "a", "folder": "/path"}',
        lambda p: p.launch.learned.saved or None,
    ),
    Variable(
        ("ELASTIC_PROGRESS_FILE",),
        "a file for the highest completed step; the elastic library writes it, and the agent reads it when the workers "
        "have exited",
        lambda p: p.progress_file,
    ),
    Variable(
        ("ELASTIC_CHANNEL",),
        "a Unix socket on which the elastic library talks to the agent: reports, planned restarts; not set if it "
        "cannot be opened",
        lambda p: p.launch.learned.channel or None,
    ),
    *DEFAULTS,
    Variable(
        ("no_proxy", "NO_PROXY"),
        "only where a proxy is set (http_proxy, https_proxy, all_proxy, in either case): the previous value, this "
        "host, the hosts of the generation and those of etcd; unchanged if it would be longer than 64 kB",
        lambda p: p.launch.no_proxy,
        outer="kept",
    ),
)
"""The variables of every process of a job. N is the number of processes of the node."""

VARIABLES: Final[tuple[Variable[CollectiveContext], ...]] = (
    Variable(
        ("RANK", "ROLE_RANK", "PADDLE_TRAINER_ID", "PADDLE_GLOBAL_RANK"),
        "the rank: M_id * N + N_id",
        lambda p: str(p.rank),
    ),
    Variable(
        ("LOCAL_RANK", "PADDLE_RANK_IN_NODE", "PADDLE_LOCAL_RANK"),
        "N_id, the local rank: the index of the worker on its node, 0 to N - 1",
        lambda p: str(p.local_rank),
    ),
    Variable(
        ("FLAGS_selected_gpus",),
        "the index of its GPU among the visible ones: N_id, or 0 with --isolate-gpus",
        lambda p: "0" if p.launch.config.isolate_gpus else str(p.local_rank),
    ),
    Variable(
        ("WORLD_SIZE", "ROLE_WORLD_SIZE", "PADDLE_TRAINERS_NUM", "PADDLE_GLOBAL_SIZE"),
        "M * N",
        lambda p: str(p.launch.generation.world_size),
    ),
    Variable(
        ("LOCAL_WORLD_SIZE", "PADDLE_LOCAL_SIZE"),
        "N, the number of workers on each node",
        lambda p: str(p.processes),
    ),
    Variable(("GROUP_RANK",), "M_id, the node rank in the generation", lambda p: str(p.m_id)),
    Variable(
        ("GROUP_WORLD_SIZE", "PADDLE_NNODES"),
        "M, the number of nodes",
        lambda p: str(len(p.launch.generation.members)),
    ),
    Variable(("ROLE_NAME",), "the word default", lambda p: "default"),
    Variable(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where the workers of this generation rendezvous: a host and a port of the node with M_id 0",
        lambda p: tuple(map(str, parse_endpoint(p.launch.master))),
    ),
    Variable(("PADDLE_MASTER",), "the same as host:port", lambda p: p.launch.master),
    Variable(
        ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"),
        "every worker's host:port in rank order, separated by commas; not set if it would be longer than 64 kB",
        lambda p: p.launch.endpoints,
    ),
    Variable(
        ("PADDLE_TRAINERS",),
        "the hosts of the nodes by M_id, separated by commas, as on PaddleCloud; in a parameter-server job a number",
        lambda p: if_it_fits(",".join(one.host for one in p.launch.generation.members)),
    ),
    Variable(
        ("PADDLE_CURRENT_ENDPOINT",),
        "the host:port of this worker",
        lambda p: join_host_port(p.place.host, p.place.ports[p.local_rank]),
    ),
    *COMMON,
    Variable(
        ("CUDA_VISIBLE_DEVICES",),
        "the GPUs of --gpus in that order, LOCAL_RANK is an index into it; with --isolate-gpus the worker's "
        "own; otherwise the agent's value",
        lambda p: p.gpus,
        outer="kept",
    ),
    Variable(
        ("CUDA_DEVICE_ORDER",),
        "PCI_BUS_ID where CUDA_VISIBLE_DEVICES is set: GPUs are numbered as in nvidia-smi",
        lambda p: "PCI_BUS_ID" if p.gpus else None,
        outer="kept",
    ),
    Variable(
        ("PADDLE_DISTRI_BACKEND",),
        "gloo, on a node without GPUs and unless it is set",
        # Otherwise Paddle searches for NCCL, even on a node without GPUs.
        lambda p: None if p.launch.config.gpu_ids else "gloo",
        outer="preferred",
    ),
)
"""The variables of a worker. M is the number of nodes of the generation, N the number of workers on each."""

PROCESS = TypeVar("PROCESS", bound=ProcessContext)


def worker_environment(context: CollectiveContext) -> dict[str, str]:
    """Return the whole environment of a worker of a collective job."""
    return environment_of(VARIABLES, context, others=ROLE_NAMES)


def environment_of(
    variables: Sequence[Variable[PROCESS]], process: PROCESS, who: str = "", *, others: Collection[str] = ()
) -> dict[str, str]:
    """Return the whole environment of a process: the agent's without `variables` and `others`, plus their values.

    `who` is the kind of the process, where not all kinds have the same variables.
    """
    ours = {name for row in variables if row.outer == "replaced" for name in row.names}
    inherited = inheritable_env(process.launch.base, ours.union(others))
    applicable = [row for row in variables if row.who in ("", who)]
    preferred = values([row for row in applicable if row.outer == "preferred"], process)
    return preferred | inherited | values([row for row in applicable if row.outer != "preferred"], process)


def values(variables: Sequence[Variable[P_contra]], process: P_contra) -> dict[str, str]:
    """Return the variables that a process has, with their values."""
    made = ((row.names, row.value(process)) for row in variables)
    return {
        name: value if isinstance(value, str) else value[place]
        for names, value in made
        if value is not None
        for place, name in enumerate(names)
    }


def default_env(processes: int) -> dict[str, str]:
    """Return what is set only where the user set nothing, for `processes` processes that share the node."""
    return values(DEFAULTS, SimpleNamespace(processes=processes, launch=SimpleNamespace(interface=None)))


def if_it_fits(text: str) -> str | None:
    """Return a list if it fits into a variable, else None: above about 6,600 endpoints only the file has them."""
    return text if len(text.encode()) <= LIST_BYTES_MAX else None
