"""The layout of a parameter-server job, from its flags, and the ports that a node must hold (pure).

There are three layouts (`elastic.core.model.PsLayout`):

- one machine: `--server-num 2 --worker-num 2`. One node has every process.
- lists: `--servers a:6170,b:6170 --workers a,a,b,b`. Each host is a node with the processes that the lists give it.
- separate servers: `--np 4 --server-num 2 --worker-num 8`. Servers have separate nodes, np counts the nodes of workers,
  and these may join and leave.
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
from launcher.config.setting import option
from launcher.net.endpoints import parse_host_port

if TYPE_CHECKING:
    from launcher.config.config import Config


TASKS_PER_NODE_MAX = 1024
"""The most processes on one node; a higher number is a typing error."""
HOSTS_NAMED_MAX = 8
"""The most hosts that a message names."""


def with_layout(config: Config, sources: Mapping[str, str]) -> Config:
    """The config with its run mode and, in the parameter-server modes, with `roles`, np and slots that fit them.

    `sources` has the source of each flag that was given: `--servers`, or the variable that stands for it. Raises
    `ConfigError` for flags that contradict each other or are not enough.
    """
    mode = _mode(config.run_mode if "run_mode" in sources else "", sources)
    if mode is JobMode.COLLECTIVE:
        return replace(config, run_mode=str(mode))
    if "nproc_per_node" in sources:
        raise ConfigError(
            f"{sources['nproc_per_node']} is for collective jobs; with parameter servers use --worker-num N"
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
    """The hosts of a job whose nodes are all listed: --ips, or lists of servers and workers; else none.

    The order is that of the command line, the same on every node. Without --elastic-server the host whose name sorts
    first starts etcd.
    """
    if config.roles is None:
        return config.ips
    return () if config.roles.separate else listed_hosts(config.roles)


def wanted_ports(roles: PsLayout, host: str) -> tuple[int, ...]:
    """The ports that the node `host` holds for its processes; 0 is any free port.

    They are in the order of the node's tasks: servers, heterogeneous workers, workers, each by index. A node that may
    become a server or bring workers holds enough ports for either.
    """
    if roles.separate:
        own = _ports(roles.servers, host)
        return own or (0,) * max(0 if roles.servers else 1, roles.heter_num + roles.worker_num)
    if not roles.servers:
        return (0,) * (roles.server_num + roles.heter_num + roles.worker_num)
    return (*_ports(roles.servers, host), *_ports(roles.heters, host), *_ports(roles.workers, host))


# The mode


def _mode(asked: str, sources: Mapping[str, str]) -> JobMode:
    """The mode of --run-mode, or else the one that the other flags imply."""
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
        raise ConfigError(f"{heter[0]} is for --run-mode ps-heter; write that, or leave out --run-mode ps")
    if asked == JobMode.PS_HETER and not heter:
        raise ConfigError(
            "--run-mode ps-heter needs heterogeneous workers: add --heter-worker-num N or --heter-workers HOST:PORT,..."
        )
    if heter:
        return JobMode.PS_HETER
    return JobMode.PS if ps else JobMode.COLLECTIVE


# The layouts


def _lists(config: Config, sources: Mapping[str, str]) -> tuple[PsLayout, Np]:
    """Every process has a host. A number without a list is allowed if the lists name only one host."""
    if config.local_nodes > 1:
        named = next(sources[name] for name in ("workers", "heter_workers", "servers") if name in sources)
        raise ConfigError(f"--local-nodes {config.local_nodes} contradicts {named}: use --server-num and --worker-num")
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
    """Return the processes that have a number but no list: all of them run on the single host."""
    if count and len(hosts) > 1:
        raise ConfigError(
            f"{sources[number]} {count} does not say on which of {len(hosts)} hosts they run: list them with "
            f"{option(flag)}; or, for workers on nodes that join and leave, use --np with --worker-num and no --workers"
        )
    return tuple(hosts) * count


def _separate_servers_layout(config: Config, sources: Mapping[str, str]) -> tuple[PsLayout, Np]:
    """Servers run on separate nodes."""
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
            f"{sources['servers']} needs nodes on different hosts, and the nodes of --local-nodes {config.local_nodes} "
            "share one; use --server-num"
        )
    if config.np_given:
        return roles, config.np
    workers = config.local_nodes - config.server_num
    if workers < 1:
        least = config.server_num + 1
        more = f"use --local-nodes {least} or more, or " if least <= LOCAL_NODES_MAX else ""
        raise ConfigError(
            f"--local-nodes {config.local_nodes} leaves no node for workers, after "
            f"{counted(config.server_num, 'server')}: {more}leave it out to run everything on one node"
        )
    return roles, Np(low=1, high=workers if config.servers else NP_UNLIMITED, first=workers)


# What must hold


def _check_numbers(config: Config, sources: Mapping[str, str]) -> None:
    """There must be servers and workers, and a number must match its list."""
    servers, workers = config.ps_servers or config.server_num, config.ps_workers or config.worker_num
    if not servers and not workers:
        raise ConfigError(
            "a job with parameter servers needs servers and workers: add --server-num N and --worker-num N for one "
            "machine, or --servers HOST:PORT,... and --workers HOST,... for several"
        )
    if not servers:
        raise ConfigError("there is no parameter server: add --server-num N or --servers HOST:PORT,...")
    if not workers:
        raise ConfigError("there is no worker: add --worker-num N or --workers HOST,...")
    for flag, listed, number, count in (
        ("servers", config.ps_servers, "server_num", config.server_num),
        ("workers", config.ps_workers, "worker_num", config.worker_num),
        ("heter_workers", config.ps_heter_workers, "heter_worker_num", config.heter_worker_num),
    ):
        if listed and count and len(listed) != count:
            raise ConfigError(
                f"{sources[flag]} names {len(listed)}, but {sources[number]} is {count}; "
                f"make them equal, or leave out {sources[number]}"
            )


def _check_endpoints(roles: PsLayout) -> None:
    """Raise `ConfigError` if two processes would listen on one port."""
    taken: dict[str, str] = {}
    for flag, listed in (("--servers", roles.servers), ("--workers", roles.workers), ("--heter-workers", roles.heters)):
        for endpoint in listed:
            other = taken.setdefault(endpoint, flag)
            if other != flag and parse_host_port(endpoint)[1]:
                raise ConfigError(f"{endpoint} is in {other} and in {flag}; give one of them another port")
    if roles.servers and roles.http_port:
        host, _ = parse_host_port(roles.servers[0])
        for endpoint, flag in taken.items():
            if parse_host_port(endpoint) == (host, roles.http_port):
                raise ConfigError(
                    f"--http-port {roles.http_port} is {endpoint} of {flag}; give one of them another port"
                )


def _ports(listed: Iterable[str], host: str) -> tuple[int, ...]:
    return tuple(port for name, port in map(parse_host_port, listed) if name == host)


def _hosts(listed: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(host for host, _ in map(parse_host_port, listed)))
