"""The environment of a worker (pure).

It has torchrun's variables, so that scripts written for torchrun run unchanged, Paddle's collective ones, and ours.
What an outer launcher may have left under the same names is replaced or taken out, never mixed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from elastic.core.model import Generation
from launcher.net import proxies
from launcher.net.endpoints import join_host_port, parse_endpoint
from launcher.system.private_env import inheritable_env

LIST_BYTES_MAX = 64 * 1024
"""Above this an endpoint list is left out and the file serves: Linux lets one variable have 128 kB, name included,
and refuses every exec above it (at about 6,600 endpoints)."""


LISTS: Final = ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS")

ROLE_NAMES: Final = (
    "ELASTIC_ROLE",
    "ELASTIC_INDEX",
    "ELASTIC_SLOT",
    "ELASTIC_ROSTER_FILE",
    "PADDLE_TRAINING_ROLE",
    "TRAINING_ROLE",
)
"""What a process of a parameter-server job has; in a worker of a collective job it would tell another story."""


@dataclass(frozen=True, kw_only=True)
class LaunchContext:
    """What every process of a generation on a node is told, whatever it does.

    `base` is the agent's own environment. `master` is the `host:port` of the go; `restarts` are those charged so far;
    `interface` is the network interface of the advertised address, None to let NCCL and gloo choose. `servers` are
    etcd's endpoints, which no proxy serves. `resume_from` (a full path), `restore_step`, `allow_rollback` and
    `check_nan` are what the user asked of our library; `saved` is the job's newest committed checkpoint as JSON, ""
    if none is known; `channel` is where the agent listens, "" if it does not.
    """

    base: Mapping[str, str]
    generation: Generation
    master: str
    restarts: int
    restarts_max: int
    job_id: str
    node_id: str
    incarnation: str
    checkpoint_dir: str
    endpoints_file: str
    interface: str | None = None
    servers: Sequence[str] = ()
    resume_from: str = ""
    restore_step: int | None = None
    allow_rollback: bool = False
    check_nan: bool = False
    saved: str = ""
    channel: str = ""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that say it; what was not asked for is not among them."""
        made = {
            "TORCHELASTIC_RESTART_COUNT": str(self.restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(self.restarts_max),
            "TORCHELASTIC_RUN_ID": self.job_id,
            "TORCHELASTIC_USE_AGENT_STORE": "False",
            "PADDLE_MASTER": self.master,
            "ELASTIC_JOB_ID": self.job_id,
            "ELASTIC_NODE_ID": self.node_id,
            "ELASTIC_GENERATION": str(self.generation.g),
            "ELASTIC_FENCE": f"{self.incarnation}/{self.generation.g}",
            "ELASTIC_RUN": str(self.generation.run),
            "ELASTIC_ENDPOINTS_FILE": self.endpoints_file,
            "ELASTIC_CHECKPOINT_DIR": self.checkpoint_dir,
        }
        asked = {
            "ELASTIC_RESUME_FROM": self.resume_from,
            "ELASTIC_RESTORE_STEP": "" if self.restore_step is None else str(self.restore_step),
            "ELASTIC_ALLOW_ROLLBACK": "1" if self.allow_rollback else "",
            "ELASTIC_CHECK_NAN": "1" if self.check_nan else "",
            "ELASTIC_SAVED": self.saved,
            "ELASTIC_CHANNEL": self.channel,
        }
        return made | {name: text for name, text in asked.items() if text}

    @cached_property
    def lists(self) -> dict[str, str]:
        """Everybody's endpoints and hosts, as far as they fit; the same for all workers of a collective generation."""
        members = self.generation.members
        endpoints = ",".join(join_host_port(one.host, port) for one in members for port in one.ports)
        hosts = ",".join(one.host for one in members)
        return lists_that_fit(dict.fromkeys(LISTS, endpoints) | {"PADDLE_TRAINERS": hosts})

    @cached_property
    def proxies(self) -> dict[str, str]:
        """The hosts that no proxy serves, where a proxy is set."""
        hosts = [one.host for one in self.generation.members]
        return proxies.exceptions(self.base, hosts + [parse_endpoint(server)[0] for server in self.servers])


def worker_environment(
    context: LaunchContext,
    *,
    m_id: int,
    local_rank: int,
    error_file: str,
    gpus: Sequence[str] = (),
    one_gpu: bool = False,
    no_gpu: bool = False,
) -> dict[str, str]:
    """The whole environment of worker `local_rank` of member `m_id` in the generation.

    `error_file` is where torch's @record may write. `gpus` are this node's, in the order of the local ranks; ()
    leaves the choice to what the agent's environment says. With `one_gpu` each worker sees its own alone. `no_gpu`
    says that there is none on this node.
    """
    generation = context.generation
    slots, nodes = generation.slots, len(generation.members)
    place = generation.members[m_id]
    rank, world_size = m_id * slots + local_rank, generation.world_size
    master_host, master_port = parse_endpoint(context.master)

    made = inheritable_env(context.base, {*LISTS, *ROLE_NAMES, "PADDLE_TRAINERS"})
    made |= context.environment | {"TORCHELASTIC_ERROR_FILE": error_file}
    made |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_WORLD_SIZE": str(slots),
        "GROUP_RANK": str(m_id),
        "GROUP_WORLD_SIZE": str(nodes),
        "ROLE_RANK": str(rank),
        "ROLE_WORLD_SIZE": str(world_size),
        "ROLE_NAME": "default",
        "MASTER_ADDR": master_host,
        "MASTER_PORT": str(master_port),
        "PADDLE_TRAINER_ID": str(rank),
        "PADDLE_TRAINERS_NUM": str(world_size),
        "PADDLE_CURRENT_ENDPOINT": join_host_port(place.host, place.ports[local_rank]),
        "PADDLE_RANK_IN_NODE": str(local_rank),
        "PADDLE_GLOBAL_RANK": str(rank),
        "PADDLE_GLOBAL_SIZE": str(world_size),
        "PADDLE_LOCAL_RANK": str(local_rank),
        "PADDLE_LOCAL_SIZE": str(slots),
        "PADDLE_NNODES": str(nodes),
        "FLAGS_selected_gpus": "0" if one_gpu else str(local_rank),
    }
    if gpus:
        made["CUDA_VISIBLE_DEVICES"] = gpus[local_rank] if one_gpu else ",".join(gpus)
        made["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # So that CUDA counts the cards as nvidia-smi does.
    made |= context.lists
    made |= context.proxies
    wished = default_env(slots, context.interface)
    if no_gpu:
        wished["PADDLE_DISTRI_BACKEND"] = "gloo"  # Paddle looks for NCCL otherwise, also where there is no card.
    return wished | made


def lists_that_fit(lists: Mapping[str, str]) -> dict[str, str]:
    """Those lists that fit into a variable."""
    return {name: text for name, text in lists.items() if len(text.encode()) <= LIST_BYTES_MAX}


def default_env(processes: int, interface: str | None) -> dict[str, str]:
    """What is set only where the user set nothing. `processes` are those that share the node."""
    wishes = {"PYTHONUNBUFFERED": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
    if processes > 1:
        wishes["OMP_NUM_THREADS"] = "1"
    if interface:
        wishes |= {"NCCL_SOCKET_IFNAME": interface, "GLOO_SOCKET_IFNAME": interface}
    return wishes
