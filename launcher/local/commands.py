"""The commands that start nodes: those of this machine, as children of this process, and a further one.

Neither a secret nor a password stands on a command line, which other users of the machine see. Where it came from a
pipe, which can be read once, the children get it in their environment.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Set
from typing import Final

from launcher.config.config import Config
from launcher.config.devices import share_gpus, unused_gpus
from launcher.config.flags import BY_NAME, FLAGS, JOB_FLAGS, of_scope
from launcher.config.ps_layout import listed_hosts, static_hosts
from launcher.config.setting import Scope
from launcher.config.store_access import PASSWORD, SECRET, is_read_once
from launcher.local.etcd_addresses import served_endpoint
from launcher.net.addresses import LOOPBACK
from launcher.net.endpoints import join_host_port, parse_endpoint

WRITTEN: Final = frozenset({"elastic_server", "job_id", "np", "nproc_per_node", "no_live"})
"""Flags that every command here writes itself, or leaves out on purpose, whatever the user typed."""
REPLACED: Final = WRITTEN | {flag.name for flag in of_scope(Scope.PARENT)}
"""Flags that nodes do not get as the user typed them."""
FROM_THE_LIST: Final = frozenset({"ips", "host", "serve_port"})
"""Flags that give way to what was found out about a list of hosts."""


def node_argv(config: Config, server: str) -> tuple[str, ...]:
    """The arguments of `elastic-launch` for one node of this machine."""
    alone = ("--no_live",) if config.local_nodes > 1 or config.no_live else ()  # Several would draw over each other.
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
    """What a node here is called while its etcd is here, too."""
    if config.serve:
        return parse_endpoint(served_endpoint(config))[0]
    return config.host if config.roles is not None and config.host in listed_hosts(config.roles) else LOOPBACK


def _np(config: Config) -> str:
    """The value of --np for a node; "" where np would take the servers apart from the workers."""
    return "" if config.roles is not None and not config.roles.separate else str(config.np)


def joiner_line(config: Config, server: str, environ: Mapping[str, str], *, secret: bool) -> str:
    """The command, for a shell, that starts a further node in another terminal, or with --serve on another machine.

    It has what the user typed. Without a typed np the node takes that of the job; parameter servers on nodes of their
    own need it, because it tells that they are so. `secret`: show a random secret, see `_secret`.
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
        return f"CUDA_VISIBLE_DEVICES= {shlex.join(command)}"  # No card is left for it.
    if config.local_nodes > 1 and config.gpu_ids:
        spare = config.gpu_ids[config.local_nodes * config.slots :][: config.slots]
        return f"CUDA_VISIBLE_DEVICES={shlex.quote(','.join(spare))} {shlex.join(command)}"
    return shlex.join(command)


def status_line(config: Config, server: str, *, secret: bool) -> str:
    """The command, for a shell, that shows the status of the job. `secret` as in `joiner_line`."""
    flags = _typed(config, BY_NAME.keys() - set(JOB_FLAGS) | WRITTEN)
    command = ("elastic-ctl", "status", "--elastic_server", server, "--job_id", config.job_id, *flags)
    return _secret(config, shown=secret) + shlex.join(command)


def _secret(config: Config, *, shown: bool) -> str:
    """What stands before a command that needs the random secret of --serve, "" if this job has none.

    It is not in the command: other users of the machine see every command line. Where it is not shown, a shell refuses
    the line until the variable is set there.
    """
    if not config.login.made:
        return ""
    return f"{SECRET}={config.login.secret if shown else f'${{{SECRET}:?}}'} "


def node_environments(config: Config, environ: Mapping[str, str]) -> tuple[dict[str, str], ...]:
    """The environment of each node's agent: this one, with the named cards, or all, shared out among the nodes.

    It has the secret or password that a node cannot read where this process did. When there are fewer cards than
    workers no node gets any: two workers on one card cannot talk over NCCL.
    """
    done_here = {flag.own_variable for flag in of_scope(Scope.PARENT)}
    base = {name: text for name, text in environ.items() if name not in done_here}
    for name, (variable, known) in _inherited_settings(config).items():
        base.pop(f"ELASTIC_{name.upper()}", None)
        base[variable] = known
    if config.gpus and not config.gpu_ids and "CUDA_VISIBLE_DEVICES" in base:  # There is no driver.
        base["CUDA_VISIBLE_DEVICES"] = ""
    nodes = [{**base, **_metrics_port(config, number)} for number in range(config.local_nodes)]
    if not config.gpu_ids or (config.local_nodes == 1 and not config.gpus):
        return tuple(nodes)
    shares = share_gpus(config.gpu_ids, config.local_nodes, config.slots) or ((),) * config.local_nodes
    gpus = [{"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(own)} for own in shares]
    return tuple({**node, **own} for node, own in zip(nodes, gpus, strict=True))


def _metrics_port(config: Config, number: int) -> dict[str, str]:
    """Each node has a port of its own, one after the other."""
    if config.metrics_at is None:
        return {}
    host, port = config.metrics_at
    return {"ELASTIC_METRICS_PORT": join_host_port(host, port + number)}


def _needs_nproc(config: Config) -> bool:
    """Tell whether a node needs to be told how many workers it has."""
    return config.slots != 1 or config.slots_word != "auto" or config.local_nodes > 1 or bool(config.gpus)


def _flags(config: Config, server: str, np: str, without: Set[str], *, nproc: bool) -> tuple[str, ...]:
    made = ["--elastic_server", server, "--job_id", config.job_id]
    if np:
        made += ["--np", np]
    if nproc and config.roles is None:
        made += ["--nproc_per_node", str(config.slots)]
    return (*made, *_typed(config, without))


def _typed(config: Config, without: Set[str]) -> list[str]:
    """The flags that the user typed, but for these, and for those whose values nodes get in their environment."""
    left_out = without | _inherited_settings(config).keys()
    return [f"--{name}={text}" if text else f"--{name}" for name, text in config.given if name not in left_out]


def extra_variable(config: Config) -> str:
    """The variable that a further node needs besides the line for it, "" if the line has everything."""
    login = config.login
    if login.made or not (login.secret or login.password):
        return ""
    file, variable = ("job_secret_file", SECRET) if login.secret else ("etcd_password_file", PASSWORD)
    in_the_line = file not in _inherited_settings(config) and any(name == file for name, _ in config.given)
    return "" if in_the_line else variable


def _inherited_settings(config: Config) -> dict[str, tuple[str, str]]:
    """What nodes get in their environment: by the flag that gives way, the variable and its value."""
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
