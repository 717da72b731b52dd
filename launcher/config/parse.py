"""One `Config` from the command line and the environment: values read, and the relations between them checked.

`parse` only reads text; `launcher.config.machine_checks` then checks it against this machine. Every mistake raises a
`ConfigError` with one line that says what is wrong and how to fix it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from elastic.core.model import NP_UNLIMITED, JobMode, Np
from elastic.errors import ConfigError
from launcher.config import devices, host_list, paddlecloud, readers, store_access
from launcher.config.argv import SplitCommandLine, deprecations, given_values, sources, split_argv
from launcher.config.config import Config
from launcher.config.durations import duration_text
from launcher.config.flags import BY_NAME
from launcher.config.ps_layout import static_hosts, with_layout
from launcher.config.worker_settings import FAILURE_STOP_TIMEOUT_S
from launcher.net.endpoints import PORT_MAX, is_any, join_host_port, parse_endpoint

SERVED_TIMEOUT_S = 600.0
"""How long a host of a list waits for the one that starts etcd: people may start the hosts one by one, by hand."""
SERVED_MIN = 2
"""A list of one host is a job of one machine, which starts its own etcd."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read a command line (without the program's name) and the environment."""
    return build(split_argv(argv), environ)


def build(line: SplitCommandLine, environ: Mapping[str, str]) -> Config:
    """Make a `Config` from a command line that is already split, and check the relations between its values."""
    config, _ = resolve(line, environ)
    return config


def resolve(line: SplitCommandLine, environ: Mapping[str, str]) -> tuple[Config, Mapping[str, str]]:
    """Return the same as `build`, and the source of every given value, by the name of its flag (`argv.sources`)."""
    named = sources(line, environ)
    fields = _without_other_nodes(given_values(line, environ), named)
    servers = store_access.over_tls(
        fields.get("servers", readers.StoreEndpoints((), tls=False)), store_access.certificates(fields)
    )
    fields["servers"], fields["tls"] = servers.endpoints, servers.tls
    workers = fields.pop("slots", "auto")
    fields["slots"], fields["slots_word"] = (workers, "") if isinstance(workers, int) else (0, workers)
    if not servers.endpoints:
        fields.setdefault("local_nodes", 1)
    if hosts := paddlecloud.hosts(environ, named, fields.get("run_mode", JobMode.COLLECTIVE)):
        fields["ips"], fields["paddlecloud"] = hosts, True
    hosts = fields.get("ips", ())
    nodes = len(hosts) or fields.get("local_nodes", 1)
    fields["np_given"] = "np" in fields
    fields.setdefault("np", Np(low=1, high=nodes if servers.endpoints or hosts else NP_UNLIMITED, first=nodes))
    fields.setdefault(
        "failure_stop_timeout_s", min(FAILURE_STOP_TIMEOUT_S, fields.get("stop_timeout_s", FAILURE_STOP_TIMEOUT_S))
    )
    config = Config(
        script=line.script,
        script_args=line.script_args,
        module=line.module,
        given=line.flags,
        notes=line.notes,
        warnings=deprecations(named),
        **fields,
    )
    _check_relations(config)
    config = _with_server(with_layout(config, named))
    if config.served_by and "connect_timeout" not in named:
        config = replace(config, connect_timeout_s=SERVED_TIMEOUT_S)
    return config, named


OTHER_NODES: Final = ("elastic_server", "serve", "ips", "local_nodes", "servers", "workers", "heter_workers")
"""Flags with the addresses of other nodes, or of their etcd: none can be combined with --standalone."""


def _without_other_nodes(fields: dict[str, Any], named: dict[str, str]) -> dict[str, Any]:
    """The values of flags by field; with --standalone on the command line, without variables about other nodes.

    `named` loses them too. Raises `ConfigError` where a flag contradicts --standalone.
    """
    if not fields.get("standalone"):
        return fields
    for name in OTHER_NODES:
        if name not in named:
            continue
        if named["standalone"].startswith("--") and not named[name].startswith("--"):
            del fields[BY_NAME[name].field], named[name]
        else:
            raise ConfigError(
                f"{named['standalone']} runs one node on this machine with its own etcd, and {named[name]} names "
                "others; leave one out"
            )
    return fields


def _with_server(config: Config) -> Config:
    """Without --elastic-server: the config with the etcd that one host of a list starts."""
    hosts = static_hosts(config)
    if config.servers or len(hosts) < SERVED_MIN:
        return config
    first = host_list.first_host(hosts)
    return replace(
        config,
        served_by=first,
        servers=(join_host_port(first, config.serve_port),),
        job_id=config.job_id or host_list.job_name(hosts, config.script),
        local_nodes=0,
    )


def _check_relations(config: Config) -> None:
    if not config.script:
        raise ConfigError("no script is named; write elastic-launch [flags] train.py [its arguments]")
    if config.servers and not config.job_id:
        raise ConfigError("--elastic-server needs --job-id, the same name on every node of the job: add --job-id NAME")
    if config.module and config.no_python:
        raise ConfigError("--no-python and -m contradict each other: python runs a module; leave one out")
    _check_list(config)
    if config.failure_stop_timeout_s > config.stop_timeout_s:
        raise ConfigError(
            f"--failure-stop-timeout {duration_text(config.failure_stop_timeout_s)} is longer than "
            f"--stop-timeout {duration_text(config.stop_timeout_s)}, but after a failure nothing can be saved; use "
            f"--failure-stop-timeout {duration_text(config.stop_timeout_s)} or less, or a longer --stop-timeout"
        )
    check_silence_timeout(config)
    _check_store(config)
    devices.check_relations(config)
    if config.ctrl_port and config.local_nodes > 1:
        raise ConfigError(
            f"--ctrl-port {config.ctrl_port} and --local-nodes {config.local_nodes} contradict each other: "
            "several nodes of a machine cannot have the same port; leave out --ctrl-port, each node finds free ports"
        )
    if config.metrics_at is not None and config.metrics_at[1] + max(config.local_nodes, 1) - 1 > PORT_MAX:
        raise ConfigError(
            f"--metrics-port {config.metrics_at[1]} leaves no ports for {config.local_nodes} nodes, of which each "
            f"takes the next one; use {PORT_MAX - config.local_nodes + 1} or less"
        )
    least = readers.LOG_BYTES_LOWEST // 2 * (1 + config.log_rotate)
    if config.log_bytes_max is not None and config.log_bytes_max < least:
        raise ConfigError(
            f"--log-rotate {config.log_rotate} needs --log-max-bytes {least // 1024}KiB or more: the files share it"
        )
    if config.verbose and config.quiet:
        raise ConfigError("--verbose and --quiet contradict each other; leave one out")


def check_silence_timeout(config: Config) -> None:
    """Raise `ConfigError` if leases end before --silence-timeout; its default is shorter than every lease."""
    if config.silence_timeout_s >= config.lease_ttl_s:
        timeout, ttl = duration_text(config.silence_timeout_s), duration_text(config.lease_ttl_s)
        raise ConfigError(
            f"--silence-timeout {timeout} is not shorter than --lease-ttl {ttl}: the lease of a silent node ends "
            f"first, so the timeout has no effect; use less than {ttl}, or 0 to rely on leases alone"
        )


def _check_list(config: Config) -> None:
    flag, count = config.list_flag, len(config.ips)
    if config.ips and config.np.high > count:
        wanted = "any number of" if config.np.unlimited else config.np.high
        raise ConfigError(
            f"--np {config.np} asks for {wanted} nodes, and {flag} names {count}: "
            f"{host_list.shown(config.ips)}; use --np {count} or name more hosts"
        )
    if config.ips and config.local_nodes > 1:
        raise ConfigError(
            f"--local-nodes {config.local_nodes} runs several nodes on one host, {flag} one on each of several; "
            "use one of the two"
        )


def _check_store(config: Config) -> None:
    """Raise `ConfigError` if flags about an existing etcd meet flags about one that elastic-launch starts."""
    if config.servers:
        if config.serve:
            raise ConfigError(
                "--serve starts an etcd here, and --elastic-server names another; leave one of the two out"
            )
        return
    if config.serve:
        _check_host(config)
    if config.certificates:
        named = next(name for name in ("ca", "cert", "key") if getattr(config.certificates, name))
        raise ConfigError(
            f"--etcd-{named} needs --elastic-server HOST:PORT: add it, or leave out --etcd-{named} (unset "
            f"ELASTIC_ETCD_{named.upper()}); an etcd that elastic-launch starts does not use TLS"
        )
    served = next((f for f, given in ((config.list_flag, config.ips), ("--servers", config.ps_servers)) if given), "")
    if served and config.serve:
        raise ConfigError(f"--serve and {served} contradict each other: with {served} the first host starts etcd")
    if (served or config.serve) and config.etcd_user:
        raise ConfigError(
            f"--etcd-user needs --elastic-server; to protect the etcd that {served or '--serve'} starts, give every "
            "node the same --job-secret-file FILE or ELASTIC_JOB_SECRET"
        )


def _check_host(config: Config) -> None:
    """Raise `ConfigError` if --serve names all addresses, and --host does not name one that other machines reach."""
    address, _ = parse_endpoint(config.serve)
    if not is_any(address):
        return
    if not config.host:
        raise ConfigError(
            f"--serve {address} stands for every address of this machine, and other machines need one of them: add "
            "--host ADDRESS, at which they reach this machine"
        )
    if is_any(config.host):
        raise ConfigError(
            f"--host {config.host} is not an address that other machines can reach; name one of this machine"
        )
