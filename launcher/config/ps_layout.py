"""From the flags of a parameter-server job to who is what, and which ports a node must hold (pure).

There are three layouts (`elastic.core.model.PsLayout`):

- one machine: `--server_num 2 --worker_num 2`. One node has every process.
- lists: `--servers a:6170,b:6170 --workers a,a,b,b`. Each host is a node and has what the lists give it.
- apart: `--np 4 --server_num 2 --worker_num 8`. Servers have nodes of their own, np counts the nodes of workers, and
  these come and go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from elastic._text import counted, joined, shortened
from elastic.core.model import NP_UNLIMITED, JobMode, Np
from elastic.core.ps.model import PsLayout
from elastic.errors import ConfigError
from launcher.config.node_settings import PS_FLAGS
from launcher.config.readers import LOCAL_NODES_MAX
from launcher.net.endpoints import parse_host_port

if TYPE_CHECKING:
    from launcher.config.config import Config


TASKS_PER_NODE_MAX = 1024
"""Processes on one node; above it a number is a typing error."""
HOSTS_NAMED_MAX = 8
"""So many hosts are named in a message."""


def with_layout(config: Config, sources: Mapping[str, str]) -> Config:
    """The config with its run mode and, in the parameter-server modes, with `roles`, np and slots that fit them.

    `sources` tells for each flag that was given how it was written: `--servers`, or the variable that stands for it.
    Raises `ConfigError` for flags that contradict each other or do not suffice.
    """
    mode = _mode(config.run_mode if "run_mode" in sources else "", sources)
    if mode is JobMode.COLLECTIVE:
        return replace(config, run_mode=str(mode))
    if "nproc_per_node" in sources:
        raise ConfigError(
            f"{sources['nproc_per_node']} is for collective jobs; with parameter servers --worker_num N says how many "
            "workers there are"
        )
    _check_numbers(config, sources)
    if config.ps_workers or config.ps_heter_workers:
        roles, np = _lists(config, sources)
    elif config.np_given or config.local_nodes > 1:
        roles, np = _separate_servers_layout(config, sources)
    elif config.ps_servers:
        roles, np = _lists(config, sources)
    else:
        roles = PsLayout(
            server_num=config.server_num,
            worker_num=config.worker_num,
            heter_num=config.heter_worker_num,
            http_port=config.http_port,
        )
        np = Np(low=1, high=1, first=1)
    for host in listed_hosts(roles) or ("",):
        count = len(wanted_ports(roles, host))
        if count > TASKS_PER_NODE_MAX:
            raise ConfigError(
                f"{count} processes on one node are more than {TASKS_PER_NODE_MAX}; spread them over more nodes"
            )
    return replace(config, run_mode=str(mode), roles=roles, np=np, slots=1, slots_word="")


def listed_hosts(roles: PsLayout) -> tuple[str, ...]:
    """The hosts that the lists name, each once, in the order servers, workers, heterogeneous workers."""
    return _hosts((*roles.servers, *roles.workers, *roles.heters))


def static_hosts(config: Config) -> tuple[str, ...]:
    """The hosts of a job whose nodes are all named: --ips, or lists of servers and workers; else none.

    The order is that of the command line, the same on every node. Without --elastic_server the one that sorts first
    serves etcd.
    """
    if config.roles is None:
        return config.ips
    return () if config.roles.separate else listed_hosts(config.roles)


def wanted_ports(roles: PsLayout, host: str) -> tuple[int, ...]:
    """The ports that the node `host` holds for its processes; 0 is any free port.

    They are in the order in which the node gets its seats: servers, heterogeneous workers, workers, each by index. A
    node that may become a server or bring workers holds enough for either.
    """
    if roles.separate:
        own = _ports(roles.servers, host)
        return own or (0,) * max(0 if roles.servers else 1, roles.heter_num + roles.worker_num)
    if not roles.servers:
        return (0,) * (roles.server_num + roles.heter_num + roles.worker_num)
    return (*_ports(roles.servers, host), *_ports(roles.heters, host), *_ports(roles.workers, host))


# The mode


def _mode(asked: str, sources: Mapping[str, str]) -> JobMode:
    """The mode that was asked for, or that the flags tell."""
    ps = [sources[name] for name in PS_FLAGS if name in sources]
    heter = [sources[name] for name in ("heter_workers", "heter_worker_num") if name in sources]
    collective = [sources[name] for name in ("ips", "ctrl_port") if name in sources]
    if asked:
        (collective if asked == JobMode.COLLECTIVE else ps).insert(0, f"{sources['run_mode']} {asked}")
    if ps and collective:
        raise ConfigError(
            "Only one mode(Collective or Parameter-Server) can be selected at the same time, but "
            f"{joined(collective)} {'are' if len(collective) > 1 else 'is'} for collective jobs and {joined(ps)} for "
            "jobs with parameter servers; leave out one side"
        )
    if heter and asked == JobMode.PS:
        raise ConfigError(f"{heter[0]} is for --run_mode ps-heter; write that, or leave --run_mode ps out")
    if asked == JobMode.PS_HETER and not heter:
        raise ConfigError(
            "--run_mode ps-heter needs heterogeneous workers: add --heter_worker_num N or --heter_workers HOST:PORT,..."
        )
    if heter:
        return JobMode.PS_HETER
    return JobMode.PS if ps else JobMode.COLLECTIVE


# The layouts


def _lists(config: Config, sources: Mapping[str, str]) -> tuple[PsLayout, Np]:
    """Every process has a host. A number without a list is possible where the lists name one host alone."""
    if config.local_nodes > 1:
        named = next(sources[name] for name in ("workers", "heter_workers", "servers") if name in sources)
        raise ConfigError(
            f"--local_nodes {config.local_nodes} does not go with {named}: use --server_num, --worker_num"
        )
    hosts = _hosts((*config.ps_servers, *config.ps_workers, *config.ps_heter_workers))
    roles = PsLayout(
        servers=config.ps_servers or _on_one(hosts, "server_num", "servers", config.server_num, sources),
        workers=config.ps_workers or _on_one(hosts, "worker_num", "workers", config.worker_num, sources),
        heters=config.ps_heter_workers
        or _on_one(hosts, "heter_worker_num", "heter_workers", config.heter_worker_num, sources),
        http_port=config.http_port,
    )
    _check_endpoints(roles)
    if not config.np_given:
        return roles, Np(low=1, high=len(hosts), first=len(hosts))
    if config.np.high != len(hosts):
        raise ConfigError(
            f"{sources['np']} {config.np}, but the lists name {counted(len(hosts), 'host')} "
            f"({shortened(hosts, HOSTS_NAMED_MAX)}); leave {sources['np']} out"
        )
    return roles, config.np


def _on_one(hosts: Sequence[str], number: str, flag: str, count: int, sources: Mapping[str, str]) -> tuple[str, ...]:
    """The processes that have a number and no list: all are on the one host."""
    if count and len(hosts) > 1:
        raise ConfigError(
            f"{sources[number]} {count} does not say on which of {len(hosts)} hosts they are: name them with --{flag}; "
            "or, for workers on nodes that come and go, use --np with --worker_num and no --workers"
        )
    return tuple(hosts) * count


def _separate_servers_layout(config: Config, sources: Mapping[str, str]) -> tuple[PsLayout, Np]:
    """Servers on nodes of their own."""
    roles = PsLayout(
        servers=config.ps_servers,
        server_num=0 if config.ps_servers else config.server_num,
        worker_num=config.worker_num,
        heter_num=config.heter_worker_num,
        http_port=config.http_port,
        separate=True,
    )
    _check_endpoints(roles)
    if config.local_nodes > 1 and config.ps_servers:
        raise ConfigError(
            f"{sources['servers']} tells nodes apart by their host, and --local_nodes {config.local_nodes} are all on "
            "one; use --server_num"
        )
    if config.np_given:
        return roles, config.np
    workers = config.local_nodes - config.server_num
    if workers < 1:
        least = config.server_num + 1
        more = f"use --local_nodes {least} or more, or " if least <= LOCAL_NODES_MAX else ""
        raise ConfigError(
            f"--local_nodes {config.local_nodes} leaves no node for workers beside "
            f"{counted(config.server_num, 'server')}: {more}leave it out to run all in one node"
        )
    return roles, Np(low=1, high=workers if config.servers else NP_UNLIMITED, first=workers)


# What must hold


def _check_numbers(config: Config, sources: Mapping[str, str]) -> None:
    """Somebody must serve and somebody must work, and a number must be that of its list."""
    servers, workers = config.ps_servers or config.server_num, config.ps_workers or config.worker_num
    if not servers and not workers:
        raise ConfigError(
            "a job with parameter servers needs servers and workers: add --server_num N and --worker_num N for one "
            "machine, or --servers HOST:PORT,... and --workers HOST,... for several"
        )
    if not servers:
        raise ConfigError("there is no parameter server: add --server_num N or --servers HOST:PORT,...")
    if not workers:
        raise ConfigError("there is no worker: add --worker_num N or --workers HOST,...")
    for flag, listed, number, count in (
        ("servers", config.ps_servers, "server_num", config.server_num),
        ("workers", config.ps_workers, "worker_num", config.worker_num),
        ("heter_workers", config.ps_heter_workers, "heter_worker_num", config.heter_worker_num),
    ):
        if listed and count and len(listed) != count:
            raise ConfigError(
                f"{sources[flag]} names {len(listed)}, but {sources[number]} is {count}; "
                f"make them agree, or leave {sources[number]} out"
            )


def _check_endpoints(roles: PsLayout) -> None:
    """No two processes listen on one port."""
    taken: dict[str, str] = {}
    for flag, listed in (("--servers", roles.servers), ("--workers", roles.workers), ("--heter_workers", roles.heters)):
        for endpoint in listed:
            other = taken.setdefault(endpoint, flag)
            if other != flag and parse_host_port(endpoint)[1]:
                raise ConfigError(f"{endpoint} is in {other} and in {flag}; give one of them another port")
    if roles.servers and roles.http_port:
        host, _ = parse_host_port(roles.servers[0])
        for endpoint, flag in taken.items():
            if parse_host_port(endpoint) == (host, roles.http_port):
                raise ConfigError(
                    f"--http_port {roles.http_port} is {endpoint} of {flag}; give one of them another port"
                )


def _ports(listed: Iterable[str], host: str) -> tuple[int, ...]:
    return tuple(port for name, port in map(parse_host_port, listed) if name == host)


def _hosts(listed: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host, _ in map(parse_host_port, listed)))
