"""The commands that start nodes: the nodes of this host, as child processes, and an additional one.

No command line has a secret or a password, because other users of the host can read it. If it came from a pipe, which
can be read only once, the child processes get it in their environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Set
from typing import Final

from launcher.config.config import Config
from launcher.config.devices import share_gpus, unused_gpus
from launcher.config.flags import BY_NAME, FLAGS, JOB_FLAGS, of_scope
from launcher.config.ps_layout import listed_hosts, static_hosts
from launcher.config.setting import Scope, option
from launcher.config.store_access import PASSWORD, SECRET, is_read_once
from launcher.local.etcd_addresses import served_endpoint
from launcher.net.addresses import LOOPBACK
from launcher.net.endpoints import join_host_port, parse_endpoint

WRITTEN: Final = frozenset({"elastic_server", "job_id", "np", "nproc_per_node", "no_live"})
"""Flags that every command sets or omits, whatever the user typed."""
REPLACED: Final = WRITTEN | {flag.name for flag in of_scope(Scope.PARENT)}
"""Flags that nodes do not get from the user's command line."""
FROM_THE_LIST: Final = frozenset({"ips", "host", "serve_port"})
"""Flags that the resolved list of hosts replaces."""


def node_argv(config: Config, server: str) -> tuple[str, ...]:
    """Return the arguments of `elastic-launch` for one node of this host."""
    alone = ("--no-live",) if config.local_nodes > 1 or config.no_live else ()  # Several would draw over each other.
    if config.host in static_hosts(config):
        ips = (f"--ips={','.join(config.ips)}",) if config.ips else ()
        flags = _flags(config, server, _np(config), REPLACED | FROM_THE_LIST, nproc=_needs_nproc(config))
        return (*flags, *ips, "--host", config.host, *alone, *_script(config))
    # A node in another terminal may be the first to register, and it names no np.
    force = ("--force",) if config.np.unlimited and not config.np_given and not config.force else ()
    flags = _flags(config, server, _np(config), REPLACED, nproc=_needs_nproc(config))
    named = config.servers or config.nic or any(name == "host" for name, _ in config.given)
    host = () if named else ("--host", _host(config))
    return (*flags, *force, *host, *alone, *_script(config))


def _host(config: Config) -> str:
    """Return the host name of a node whose etcd also runs on this host."""
    if config.serve:
        return parse_endpoint(served_endpoint(config))[0]
    return config.host if config.roles is not None and config.host in listed_hosts(config.roles) else LOOPBACK


def _np(config: Config) -> str:
    """Return the value of --np for a node; "" if np would separate the servers from the workers."""
    return "" if config.roles is not None and not config.roles.separate else str(config.np)


def joiner_line(config: Config, server: str, environ: Mapping[str, str], *, secret: bool) -> str:
    """Return the shell command that starts an additional node in another terminal, or with --serve on another host.

    It has the flags that the user typed. Without a typed np the node uses that of the job; parameter servers on
    separate nodes need np, because it implies that they are separate. `secret`: show a random secret, see `_secret`.
    """
    np = str(config.np) if config.np_given or (config.roles is not None and config.roles.separate) else ""
    nproc = config.slots_word != "auto" or bool(config.gpus) or (config.local_nodes > 1 and bool(config.gpu_ids))
    flags = _flags(config, server, np, REPLACED | {flag.name for flag in FLAGS if flag.once}, nproc=nproc)
    command = ("elastic-launch", *flags, *_script(config))
    if config.serve:
        return _secret(config, shown=secret) + shlex.join(command)
    if config.gpus and config.gpu_ids:
        spare = unused_gpus(config.gpu_ids, environ)[: config.slots]
        if len(spare) == config.slots:
            return shlex.join((command[0], "--gpus", ",".join(spare), *command[1:]))
        return f"CUDA_VISIBLE_DEVICES= {shlex.join(command)}"  # No GPU is left for it.
    if config.local_nodes > 1 and config.gpu_ids:
        spare = config.gpu_ids[config.local_nodes * config.slots :][: config.slots]
        return f"CUDA_VISIBLE_DEVICES={shlex.quote(','.join(spare))} {shlex.join(command)}"
    return shlex.join(command)


def status_line(config: Config, server: str, *, secret: bool) -> str:
    """Return the shell command that shows the status of the job. `secret` as in `joiner_line`."""
    flags = _typed(config, BY_NAME.keys() - set(JOB_FLAGS) | WRITTEN)
    command = ("elastic-ctl", "status", "--elastic-server", server, "--job-id", config.job_id, *flags)
    return _secret(config, shown=secret) + shlex.join(command)


def _secret(config: Config, *, shown: bool) -> str:
    """Return the variable assignment before a command that needs the random secret of --serve, "" without one.

    The secret is not an argument: other users of the host can read every command line. If it is not shown, the shell
    refuses the command until the variable is set there.
    """
    if not config.login.made:
        return ""
    return f"{SECRET}={config.login.secret if shown else f'${{{SECRET}:?}}'} "


def node_environments(config: Config, environ: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """Return the environment of each node's agent: that of this process, with the GPUs divided among the nodes.

    It has the secret or password that a node cannot read from the source of this process. If there are fewer GPUs than
    workers, no node gets any: two workers on one GPU cannot communicate over NCCL.
    """
    done_here = {name for flag in of_scope(Scope.PARENT) for name in flag.own_variables}
    base = _with_current_names({name: text for name, text in environ.items() if name not in done_here})
    for name, (variable, known) in _inherited_settings(config).items():
        base.pop(f"ELASTIC_{name.upper()}", None)
        base[variable] = known
    if config.gpus and not config.gpu_ids and "CUDA_VISIBLE_DEVICES" in base:  # No driver.
        base["CUDA_VISIBLE_DEVICES"] = ""
    nodes = [{**base, **_metrics_port(config, number)} for number in range(config.local_nodes)]
    if not config.gpu_ids or (config.local_nodes == 1 and not config.gpus):
        return tuple(nodes)
    shares = share_gpus(config.gpu_ids, config.local_nodes, config.slots) or ((),) * config.local_nodes
    gpus = [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(own)} for own in shares]
    return tuple({**node, **own} for node, own in zip(nodes, gpus, strict=True))


def _with_current_names(environ: dict[str, str]) -> dict[str, str]:
    """The environment with current names of variables: this process has already warned about the old ones."""
    for flag in FLAGS:
        for old in flag.deprecated:
            text = environ.pop(old, "").strip()
            if text and not environ.get(flag.variables[0], "").strip():
                environ[flag.variables[0]] = text
    return environ


def _metrics_port(config: Config, number: int) -> dict[str, str]:
    """Give each node a separate port, in sequence."""
    if config.metrics_at is None:
        return {}
    host, port = config.metrics_at
    return {"ELASTIC_METRICS_PORT": join_host_port(host, port + number)}


def _needs_nproc(config: Config) -> bool:
    """Return whether the command of a node needs the number of workers."""
    return config.slots != 1 or config.slots_word != "auto" or config.local_nodes > 1 or bool(config.gpus)


def _flags(config: Config, server: str, np: str, without: Set[str], *, nproc: bool) -> tuple[str, ...]:
    made = ["--elastic-server", server, "--job-id", config.job_id]
    if np:
        made += ["--np", np]
    if nproc and config.roles is None:
        made += ["--nproc-per-node", str(config.slots)]
    return (*made, *_typed(config, without))


def _typed(config: Config, without: Set[str]) -> list[str]:
    """Return the flags that the user typed, without these, and without those that nodes get in their environment."""
    left_out = without | _inherited_settings(config).keys()
    return [f"{option(name)}={text}" if text else option(name) for name, text in config.given if name not in left_out]


def extra_variable(config: Config) -> str:
    """Return the variable that an additional node needs in its environment, "" if its command has everything."""
    login = config.login
    if login.made or not (login.secret or login.password):
        return ""
    file, variable = ("job_secret_file", SECRET) if login.secret else ("etcd_password_file", PASSWORD)
    in_the_line = file not in _inherited_settings(config) and any(name == file for name, _ in config.given)
    return "" if in_the_line else variable


def _inherited_settings(config: Config) -> dict[str, tuple[str, str]]:
    """Return what nodes get in their environment: by the flag that it replaces, the variable and its value."""
    login = config.login
    passed = {}
    if login.secret and (login.made or is_read_once(config.job_secret_file)):
        passed["job_secret_file"] = (SECRET, login.secret)
    if login.password and is_read_once(config.etcd_password_file):
        passed["etcd_password_file"] = (PASSWORD, login.password)
    return passed


def _script(config: Config) -> tuple[str, ...]:
    mark = ("-m",) if config.module else ("--",) if config.script.startswith("-") else ()
    return (*mark, config.script, *config.script_args)
