"""Reads the place of a process in its job from its environment (pure). No other module reads RANK and the like.

`read` supports the variables of every launcher: elastic-launch, Paddle for parameter servers (so that you can start a
process by hand), torchrun, and Paddle for collective jobs. Without any of them the process is worker 0 of 1.
docs/reference/environment.md lists the variables. An empty variable counts as not set. An invalid one raises the same
`ConfigError` for every caller.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from elastic._text import join_host_port, joined
from elastic.errors import ConfigError

if TYPE_CHECKING:
    import torch

PORT_OF_SERVERS = 6174
"""The default of PADDLE_PSERVER_PORT, as in Paddle's quick start."""
PORT_MAX = 65535

RoleName = Literal["server", "worker", "heter"]

OURS: Final[Mapping[str, RoleName]] = {"server": "server", "worker": "worker", "heter": "heter"}
PADDLES: Final[Mapping[str, RoleName]] = {"PSERVER": "server", "TRAINER": "worker", "HETER_TRAINER": "heter"}
NO_ROLE = "PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]"
HINT: Final = "start the script with elastic-launch, or correct or unset the variable"
GROUP: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""The variables with which a process joins a process group, as for torch's env://."""

__all__ = ["ProcessEnvironment", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnvironment:
    """The place of a process in its job, which `elastic.env()` and `elastic.init()` return.

    Unknown values are "", 0 or ().

    Attributes:
        role: "server", "worker" or "heter" (heterogeneous worker); "worker" in a collective job.
        index: The index of the process within its role, from 0.
        servers: The parameter servers as host:port, by index, "" for a task without a node. Empty in a collective job,
            and if the list is too long for a variable: then `roster_file` has it.
        trainers: The number of workers, without heterogeneous ones.
        current: The host:port of this process.
        endpoints: The host:port of every worker, as far as known.
        rank: The rank, as under torchrun: workers first, then heterogeneous workers. -1 in a parameter server.
        local_rank: The index among the workers of this node; -1 in a parameter server.
        world_size: The number of ranks.
        local_world_size: The number of ranks on this node; 0 in a parameter server.
        master: The host:port of the rendezvous of the process group.
        job_id: The job ID.
        node_id: The ID of the node of this process.
        generation: The generation of this process, from 1; 0 outside elastic-launch. For logs.
        restarts: The number of failures that counted against `--max-restarts` so far. For logs.
        checkpoint_dir: The checkpoint directory of the job.
        endpoints_file: The file with the endpoints of this generation.
        roster_file: The file with the cluster spec: the current host:port of each process of a parameter-server job.
        backend: The backend of the process group, such as "nccl"; "" before `elastic.init()`.
    """

    role: RoleName
    index: int
    servers: tuple[str, ...]
    trainers: int
    current: str
    endpoints: tuple[str, ...]
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    master: str
    job_id: str
    node_id: str
    generation: int
    restarts: int
    checkpoint_dir: str
    endpoints_file: str
    roster_file: str
    backend: str = ""
    _device: torch.device | None = field(default=None, repr=False)

    @property
    def device(self) -> torch.device:
        """The device of this worker: its GPU, or the CPU.

        Raises:
            ConfigError: `elastic.init()` has not been called yet.
        """
        if self._device is None:
            raise ConfigError("this process has no device yet; call elastic.init() first")
        return self._device


class Identity(NamedTuple):
    """The identity of a process for its agent. `number` is the index of a server, or a rank."""

    server: bool
    number: int
    slot: int
    generation: int


class _Ranks(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def read(environ: Mapping[str, str]) -> ProcessEnvironment:
    """Read the place of a process from its environment.

    Raises `ConfigError` if a variable is wrong, or a variable without a default is not set.
    """
    own_role = role(environ)
    servers: tuple[str, ...] = ()
    current = environ.get("PADDLE_CURRENT_ENDPOINT", "")
    if own_role is None:
        ranks = _collective_ranks(environ)
        own_role, index, trainers = "worker", ranks.rank, ranks.world_size
    else:
        servers, trainers = _servers(environ), _trainers(environ)
        if own_role == "server" and not current:
            current = _current(environ) or (servers[0] if len(servers) == 1 else "")
        if environ.get("ELASTIC_ROLE"):
            index = number(environ, "ELASTIC_INDEX", 0)
        elif own_role == "server":
            index = _server_index(servers, current)
        else:
            index = _trainer_index(environ, own_role, trainers)
        ranks = _ps_ranks(environ, own_role, index, trainers)
    master_host, master_port = _text(environ, "MASTER_ADDR"), number(environ, "MASTER_PORT", 0)
    return ProcessEnvironment(
        role=own_role,
        index=index,
        servers=servers,
        trainers=trainers,
        current=current,
        endpoints=_listed(environ.get("PADDLE_TRAINER_ENDPOINTS", "")),
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        master=join_host_port(master_host, master_port) if master_host and master_port else "",
        job_id=environ.get("ELASTIC_JOB_ID", "") or environ.get("TORCHELASTIC_RUN_ID", ""),
        node_id=environ.get("ELASTIC_NODE_ID", ""),
        generation=number(environ, "ELASTIC_GENERATION", 0),
        restarts=number(environ, "TORCHELASTIC_RESTART_COUNT", 0),
        checkpoint_dir=environ.get("ELASTIC_CHECKPOINT_DIR", ""),
        endpoints_file=environ.get("ELASTIC_ENDPOINTS_FILE", ""),
        roster_file=environ.get("ELASTIC_ROSTER_FILE", ""),
    )


def role(environ: Mapping[str, str]) -> RoleName | None:
    """Return the role of the process in a job with parameter servers; None in any other job."""
    ours = environ.get("ELASTIC_ROLE", "")
    if ours:
        if ours not in OURS:
            raise ConfigError(f"ELASTIC_ROLE is {ours!r}; write one of {', '.join(OURS)}")
        return OURS[ours]
    for name in ("PADDLE_TRAINING_ROLE", "TRAINING_ROLE"):
        text = environ.get(name, "")
        if text:
            if text not in PADDLES:
                raise ConfigError(NO_ROLE)
            return PADDLES[text]
    if not _text(environ, "RANK") and (
        environ.get("PADDLE_PSERVER_IPS") or environ.get("PADDLE_PSERVERS_IP_PORT_LIST")
    ):
        raise ConfigError(NO_ROLE)
    return None


def names_group(environ: Mapping[str, str]) -> bool:
    """Return whether the environment names a process group to join; False for a single process.

    Raises `ConfigError` if this is one of several processes, or has a rank, but not all variables of `GROUP` are set.
    """
    missing = [name for name in GROUP if not _text(environ, name)]
    if not missing:
        return True
    if "RANK" in missing and read(environ).world_size == 1:
        return False
    verb = "is" if len(missing) == 1 else "are"
    raise ConfigError(f"joining the other workers needs {joined(GROUP)}, but {joined(missing)} {verb} not set; {HINT}")


def identity(environ: Mapping[str, str]) -> Identity:
    """Read only the identity of this process, so that it can report a wrong value of any other variable to its agent.

    Raises `ConfigError` if one of these variables is wrong.
    """
    server = environ.get("ELASTIC_ROLE") == "server"
    return Identity(
        server=server,
        number=number(environ, "ELASTIC_INDEX" if server else "RANK", 0),
        slot=number(environ, "ELASTIC_SLOT", number(environ, "LOCAL_RANK", 0)),
        generation=number(environ, "ELASTIC_GENERATION", 0),
    )


# A job with parameter servers


def _servers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the host:port of every server, by index."""
    listed = environ.get("PADDLE_PSERVERS_IP_PORT_LIST", "")
    if listed:
        endpoints = _listed(listed)
        for endpoint in endpoints:
            if endpoint and not re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+):[0-9]+", endpoint):
                raise ConfigError(f"PADDLE_PSERVERS_IP_PORT_LIST: {endpoint!r} is not host:port")
        return endpoints
    port = _port(environ)
    return tuple(join_host_port(host, port) if host else "" for host in _listed(environ.get("PADDLE_PSERVER_IPS", "")))


def _trainers(environ: Mapping[str, str]) -> int:
    """Return the number of workers. In a collective job PADDLE_TRAINERS is a list of hosts; here it is a number."""
    text = environ.get("PADDLE_TRAINERS", "").strip()
    if not text.isdecimal() and environ.get("PADDLE_TRAINERS_NUM"):
        return number(environ, "PADDLE_TRAINERS_NUM", 0)
    if not text:
        raise ConfigError("PADDLE_TRAINERS is not set; it is the number of trainers, for example PADDLE_TRAINERS=2")
    return number(environ, "PADDLE_TRAINERS", 0)


def _current(environ: Mapping[str, str]) -> str:
    """Return the host:port of this server, from the variables of the quick start or of Paddle's launcher."""
    host, pod = environ.get("PADDLE_CURRENT_IP", ""), environ.get("POD_IP", "")
    if host:
        return join_host_port(host, _port(environ))
    if pod and environ.get("PADDLE_PORT"):
        return join_host_port(pod, number(environ, "PADDLE_PORT", 0))
    return ""


def _server_index(servers: tuple[str, ...], current: str) -> int:
    if not current:
        raise ConfigError("PADDLE_CURRENT_IP is not set; set it to the address of this server in PADDLE_PSERVER_IPS")
    if current not in servers:
        raise ConfigError(
            f"this server is {current} (PADDLE_CURRENT_IP), which is not among the servers: "
            f"{', '.join(servers) or 'PADDLE_PSERVER_IPS is empty'}"
        )
    return servers.index(current)


def _trainer_index(environ: Mapping[str, str], role: RoleName, trainers: int) -> int:
    index = number(environ, "PADDLE_TRAINER_ID", 0)
    if role == "worker" and index >= trainers and not environ.get("ELASTIC_ROSTER_FILE"):
        raise ConfigError(f"PADDLE_TRAINER_ID is {index}, but PADDLE_TRAINERS is {trainers}: ids count from 0")
    return index


def _ps_ranks(environ: Mapping[str, str], role: RoleName, index: int, trainers: int) -> _Ranks:
    """Return the ranks that elastic-launch sets; for a process started by hand, derive them from the index."""
    world_size = trainers + len(_listed(environ.get("PADDLE_HETER_TRAINER_IP_PORT_LIST", "")))
    if role == "server":
        return _Ranks(-1, -1, world_size, 0)
    if environ.get("ELASTIC_ROLE"):
        return _torch_ranks(environ)
    local_rank = number(environ, "PADDLE_RANK_IN_NODE", 0)
    return _Ranks(index if role == "worker" else trainers + index, local_rank, world_size, local_rank + 1)


def _port(environ: Mapping[str, str]) -> int:
    port = number(environ, "PADDLE_PSERVER_PORT", PORT_OF_SERVERS)
    if not 1 <= port <= PORT_MAX:
        raise ConfigError(f"PADDLE_PSERVER_PORT is {port}; a port is 1 to {PORT_MAX}")
    return port


# A collective job


def _collective_ranks(environ: Mapping[str, str]) -> _Ranks:
    """Return the ranks that torchrun or Paddle sets, or those of a single process."""
    if _text(environ, "RANK"):
        ranks = _torch_ranks(environ)
        rank_name, local_name, world_name = "RANK", "LOCAL_RANK", "WORLD_SIZE"
    else:
        local_rank = number(environ, "PADDLE_RANK_IN_NODE", 0)
        world_size = number(environ, "PADDLE_TRAINERS_NUM", number(environ, "WORLD_SIZE", 1))
        ranks = _Ranks(number(environ, "PADDLE_TRAINER_ID", 0), local_rank, world_size, local_rank + 1)
        rank_name, local_name, world_name = "PADDLE_TRAINER_ID", "PADDLE_RANK_IN_NODE", "PADDLE_TRAINERS_NUM"
    for name, index in ((rank_name, ranks.rank), (local_name, ranks.local_rank)):
        if index >= ranks.world_size:
            raise ConfigError(f"{name} {index} is not below {world_name} {ranks.world_size}; {HINT}")
    return ranks


def _torch_ranks(environ: Mapping[str, str]) -> _Ranks:
    rank, local_rank = number(environ, "RANK", 0), number(environ, "LOCAL_RANK", 0)
    world_size = number(environ, "WORLD_SIZE", rank + 1)
    return _Ranks(rank, local_rank, world_size, number(environ, "LOCAL_WORLD_SIZE", local_rank + 1))


# Text


def number(environ: Mapping[str, str], name: str, default: int) -> int:
    """Read a whole number, 0 or more, from a variable. Raises `ConfigError` for any other value."""
    text = _text(environ, name)
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise ConfigError(f"{name} is {text!r}, not a whole number; {HINT}")
    return int(text)


def _text(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name, "").strip()


def _listed(text: str) -> tuple[str, ...]:
    """Split a text at its commas; () if it is empty."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()
