"""What a process is told of its place by its environment (pure).

`elastic.env()` reads the variables of whoever started the process: ours, Paddle's for parameter servers (so that a
process can be started by hand with them), torchrun's, or Paddle's for collective jobs. With none of them the process
is alone: worker 0 of 1. docs/reference.md lists the variables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from elastic.errors import ConfigError

PORT_OF_SERVERS = 6174
"""PADDLE_PSERVER_PORT where it is not set, as in Paddle's quick start."""
PORT_MAX = 65535

RoleName = Literal["server", "worker", "heter"]

OURS: Final[Mapping[str, RoleName]] = {"server": "server", "worker": "worker", "heter": "heter"}
PADDLES: Final[Mapping[str, RoleName]] = {"PSERVER": "server", "TRAINER": "worker", "HETER_TRAINER": "heter"}
NO_ROLE = "PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]"

__all__ = ["ProcessEnvironment", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessEnvironment:
    """The place of this process in its job, as it was when the process was started.

    `index` counts from 0 within the role. `servers` are the parameter servers as host:port, by index, "" for one that
    was vacant; none in a collective job, or when the list was too long for a variable: then `roster_file` has it.
    `trainers` is the number of workers without heterogeneous ones. `current` is this process's own host:port, and
    `endpoints` are those of all workers, as far as they were told.

    `rank`, `world_size` and the local ones are torchrun's: workers first, then heterogeneous workers. A server takes
    no part in them; its `rank` and `local_rank` are -1. `master` is the host:port where the workers' process group
    meets. What was not told is "", 0 or ().
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
    checkpoint_dir: str
    endpoints_file: str
    roster_file: str


class _Ranks(NamedTuple):
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int


def read(environ: Mapping[str, str]) -> ProcessEnvironment:
    """Read the place of a process from its environment.

    Raises `ConfigError` if a variable is wrong, or if one that has no default is not set.
    """
    role = _role(environ)
    servers: tuple[str, ...] = ()
    current = environ.get("PADDLE_CURRENT_ENDPOINT", "")
    if role is None:
        ranks = _collective_ranks(environ)
        role, index, trainers = "worker", ranks.rank, ranks.world_size
    else:
        servers, trainers = _servers(environ), _trainers(environ)
        if role == "server":
            current = current or _current(environ) or (servers[0] if len(servers) == 1 else "")
            index = _server_index(environ, servers, current)
        else:
            index = _trainer_index(environ, role, trainers)
        ranks = _ranks(environ, role, index, trainers)
    master_host, master_port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return ProcessEnvironment(
        role=role,
        index=index,
        servers=servers,
        trainers=trainers,
        current=current,
        endpoints=_listed(environ.get("PADDLE_TRAINER_ENDPOINTS", "")),
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world_size=ranks.world_size,
        local_world_size=ranks.local_world_size,
        master=f"{_bracketed(master_host)}:{master_port}" if master_host and master_port else "",
        job_id=environ.get("ELASTIC_JOB_ID", "") or environ.get("TORCHELASTIC_RUN_ID", ""),
        node_id=environ.get("ELASTIC_NODE_ID", ""),
        generation=_number(environ, "ELASTIC_GENERATION", 0),
        checkpoint_dir=environ.get("ELASTIC_CHECKPOINT_DIR", ""),
        endpoints_file=environ.get("ELASTIC_ENDPOINTS_FILE", ""),
        roster_file=environ.get("ELASTIC_ROSTER_FILE", ""),
    )


def _role(environ: Mapping[str, str]) -> RoleName | None:
    """What the process does in a job with parameter servers; None if it is in no such job."""
    ours = environ.get("ELASTIC_ROLE", "")
    if ours:
        if ours not in OURS:
            raise ConfigError(f"ELASTIC_ROLE is {ours!r}; it is one of {', '.join(OURS)}")
        return OURS[ours]
    for name in ("PADDLE_TRAINING_ROLE", "TRAINING_ROLE"):
        text = environ.get(name, "")
        if text:
            if text not in PADDLES:
                raise ConfigError(NO_ROLE)
            return PADDLES[text]
    if not environ.get("RANK") and (environ.get("PADDLE_PSERVER_IPS") or environ.get("PADDLE_PSERVERS_IP_PORT_LIST")):
        raise ConfigError(NO_ROLE)
    return None


# A job with parameter servers


def _servers(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Every server's host:port, by index."""
    listed = environ.get("PADDLE_PSERVERS_IP_PORT_LIST", "")
    if listed:
        endpoints = _listed(listed)
        for endpoint in endpoints:
            if endpoint and not re.fullmatch(r"(\[[^\[\]]+\]|[^:\[\]]+):[0-9]+", endpoint):
                raise ConfigError(f"PADDLE_PSERVERS_IP_PORT_LIST: {endpoint!r} is not host:port")
        return endpoints
    port = _port(environ)
    return tuple(
        f"{_bracketed(host)}:{port}" if host else "" for host in _listed(environ.get("PADDLE_PSERVER_IPS", ""))
    )


def _trainers(environ: Mapping[str, str]) -> int:
    """The number of workers. In a collective job PADDLE_TRAINERS is a list of hosts; here only a number counts."""
    text = environ.get("PADDLE_TRAINERS", "").strip()
    if not text.isdecimal() and environ.get("PADDLE_TRAINERS_NUM"):
        return _number(environ, "PADDLE_TRAINERS_NUM", 0)
    if not text:
        raise ConfigError("PADDLE_TRAINERS is not set; it is the number of trainers, for example PADDLE_TRAINERS=2")
    return _number(environ, "PADDLE_TRAINERS", 0)


def _current(environ: Mapping[str, str]) -> str:
    """A server's own host:port, from the variables of the quick start or of Paddle's launcher."""
    host, pod = environ.get("PADDLE_CURRENT_IP", ""), environ.get("POD_IP", "")
    if host:
        return f"{_bracketed(host)}:{_port(environ)}"
    if pod and environ.get("PADDLE_PORT"):
        return f"{_bracketed(pod)}:{_number(environ, 'PADDLE_PORT', 0)}"
    return ""


def _server_index(environ: Mapping[str, str], servers: tuple[str, ...], current: str) -> int:
    if environ.get("ELASTIC_ROLE"):
        return _number(environ, "ELASTIC_INDEX", 0)
    if not current:
        raise ConfigError("PADDLE_CURRENT_IP is not set; it says which of PADDLE_PSERVER_IPS this server is")
    if current not in servers:
        raise ConfigError(
            f"this server is {current} (PADDLE_CURRENT_IP), which is not among the servers: "
            f"{', '.join(servers) or 'PADDLE_PSERVER_IPS is empty'}"
        )
    return servers.index(current)


def _trainer_index(environ: Mapping[str, str], role: RoleName, trainers: int) -> int:
    if environ.get("ELASTIC_ROLE"):
        return _number(environ, "ELASTIC_INDEX", 0)
    index = _number(environ, "PADDLE_TRAINER_ID", 0)
    if role == "worker" and index >= trainers and not environ.get("ELASTIC_ROSTER_FILE"):
        raise ConfigError(f"PADDLE_TRAINER_ID is {index}, but PADDLE_TRAINERS is {trainers}: ids count from 0")
    return index


def _ranks(environ: Mapping[str, str], role: RoleName, index: int, trainers: int) -> _Ranks:
    """Our launcher says them; by hand they follow from the index."""
    heters = _listed(environ.get("PADDLE_HETER_TRAINER_IP_PORT_LIST", ""))
    if role == "server":
        return _Ranks(-1, -1, trainers + len(heters), 0)
    if environ.get("ELASTIC_ROLE"):
        return _torch_ranks(environ)
    local_rank = _number(environ, "PADDLE_RANK_IN_NODE", 0)
    return _Ranks(index if role == "worker" else trainers + index, local_rank, trainers + len(heters), local_rank + 1)


def _port(environ: Mapping[str, str]) -> int:
    port = _number(environ, "PADDLE_PSERVER_PORT", PORT_OF_SERVERS)
    if not 1 <= port <= PORT_MAX:
        raise ConfigError(f"PADDLE_PSERVER_PORT is {port}; a port is 1 to {PORT_MAX}")
    return port


# A collective job


def _collective_ranks(environ: Mapping[str, str]) -> _Ranks:
    """Torchrun's, or Paddle's, or those of a process that is alone."""
    if environ.get("RANK"):
        ranks = _torch_ranks(environ)
    else:
        local_rank = _number(environ, "PADDLE_RANK_IN_NODE", 0)
        rank, world_size = _number(environ, "PADDLE_TRAINER_ID", 0), _number(environ, "PADDLE_TRAINERS_NUM", 1)
        ranks = _Ranks(rank, local_rank, world_size, local_rank + 1)
    if ranks.rank >= ranks.world_size:
        raise ConfigError(f"the rank of this process is {ranks.rank} of {ranks.world_size}: ranks count from 0")
    return ranks


def _torch_ranks(environ: Mapping[str, str]) -> _Ranks:
    rank, local_rank = _number(environ, "RANK", 0), _number(environ, "LOCAL_RANK", 0)
    world_size = _number(environ, "WORLD_SIZE", rank + 1)
    return _Ranks(rank, local_rank, world_size, _number(environ, "LOCAL_WORLD_SIZE", local_rank + 1))


# Text


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,12}", text):
        raise ConfigError(f"{name} is {text!r}, which is not a whole number")
    return int(text)


def _listed(text: str) -> tuple[str, ...]:
    """What stands between commas; none if the text is empty."""
    return tuple(part.strip() for part in text.split(",")) if text.strip() else ()


def _bracketed(host: str) -> str:
    """The host as it stands before a port: IPv6 in brackets."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
