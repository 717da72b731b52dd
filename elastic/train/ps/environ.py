"""What the environment says about this process's place in a parameter-server job.

By hand the `PADDLE_` variables say it, one line for each process::

    export PADDLE_PSERVER_IPS=ps0,ps1 PADDLE_PSERVER_PORT=6174 PADDLE_TRAINERS=2
    PADDLE_TRAINING_ROLE=PSERVER PADDLE_CURRENT_IP=ps0 python train.py
    PADDLE_TRAINING_ROLE=TRAINER PADDLE_TRAINER_ID=0 python train.py

Under elastic-launch the launcher sets them, and `ELASTIC_` variables that count before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic.errors import ConfigError

PORT = 6174
"""Where a server listens when PADDLE_PSERVER_PORT does not say it."""

ROLES = {"PSERVER": "server", "TRAINER": "worker", "HETER_TRAINER": "heter"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Environ:
    """One process's place: its role, its number among those of its role, and who else there is.

    `current` is the host:port where a server listens; "" elsewhere. `trainers` is the number of workers that the first
    synchronous step waits for. `roster_file` is kept up to date by the launcher; "" without one.
    """

    role: str
    index: int
    servers: tuple[str, ...]
    trainers: int
    current: str = ""
    job_id: str = ""
    checkpoint_dir: str = ""
    roster_file: str = ""


def read(environ: Mapping[str, str]) -> Environ:
    """Read a process's place. `ConfigError` names the variable that is wrong and what it should be."""
    role = _role(environ)
    servers = _servers(environ)
    current = environ.get("PADDLE_CURRENT_ENDPOINT") or ""
    if not current and (host := environ.get("PADDLE_CURRENT_IP")):
        current = endpoint(host, _number(environ, "PADDLE_PSERVER_PORT", PORT, most=65_535))
    roster_file = environ.get("ELASTIC_ROSTER_FILE") or ""
    if not environ.get("PADDLE_TRAINERS"):
        raise ConfigError("PADDLE_TRAINERS is not set; set it to the number of workers (trainers)")
    trainers = _number(environ, "PADDLE_TRAINERS", 1, least=1)
    if not servers:
        raise ConfigError("no servers are named; set PADDLE_PSERVER_IPS to their hosts, with commas between them")
    if environ.get("ELASTIC_INDEX"):
        index = _number(environ, "ELASTIC_INDEX", 0)
    elif role == "server":
        index = _own_place(current, servers)
    else:
        index = _number(environ, "PADDLE_TRAINER_ID", 0)
        if not roster_file and index >= trainers:
            raise ConfigError(
                f"PADDLE_TRAINER_ID is {index}, but there are {trainers} (PADDLE_TRAINERS); number them from 0"
            )
    return Environ(
        role=role,
        index=index,
        servers=servers,
        trainers=trainers,
        current=(current or servers[index]) if role == "server" else "",
        job_id=environ.get("ELASTIC_JOB_ID") or "",
        checkpoint_dir=environ.get("ELASTIC_CHECKPOINT_DIR") or "",
        roster_file=roster_file,
    )


def endpoint(host: str, port: int) -> str:
    """Join a host and a port; an IPv6 address gets its brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _role(environ: Mapping[str, str]) -> str:
    if given := environ.get("ELASTIC_ROLE"):
        if given not in ROLES.values():
            raise ConfigError(f"ELASTIC_ROLE is {given!r}; it should be one of [server, worker, heter]")
        return given
    role = ROLES.get(environ.get("PADDLE_TRAINING_ROLE") or "")
    if role is None:
        raise ConfigError("PADDLE_TRAINING_ROLE should be one of [TRAINER, PSERVER]")
    return role


def _servers(environ: Mapping[str, str]) -> tuple[str, ...]:
    listed = _listed(environ.get("PADDLE_PSERVERS_IP_PORT_LIST"))
    if listed:
        for one in listed:
            if not one.rpartition(":")[2].isdecimal():
                raise ConfigError(f"{one!r} in PADDLE_PSERVERS_IP_PORT_LIST has no port; write host:port")
        return listed
    port = _number(environ, "PADDLE_PSERVER_PORT", PORT, most=65_535)
    return tuple(endpoint(host, port) for host in _listed(environ.get("PADDLE_PSERVER_IPS")))


def _listed(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _number(environ: Mapping[str, str], name: str, default: int, *, least: int = 0, most: int = 2**31 - 1) -> int:
    text = (environ.get(name) or "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and least <= int(text) <= most):
        raise ConfigError(f"{name} is {text!r}; it should be a whole number from {least} to {most}")
    return int(text)


def _own_place(current: str, servers: tuple[str, ...]) -> int:
    if current in servers:
        return servers.index(current)
    if not current and len(servers) == 1:
        return 0
    if not current:
        raise ConfigError("PADDLE_CURRENT_IP is not set; set it to this server's own host of PADDLE_PSERVER_IPS")
    raise ConfigError(
        f"this server, {current}, is not one of the servers, {', '.join(servers)}; mend PADDLE_CURRENT_IP"
    )
