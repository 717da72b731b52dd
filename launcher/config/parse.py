"""One `Config` from the command line and the environment: values read, and the relations between them checked.

`parse` looks at text alone; `launcher.config.machine_checks` then looks at this machine. Every mistake is a
`ConfigError` of one line that says what is wrong and how to fix it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elastic.core.model import NP_UNLIMITED, JobMode, Np
from elastic.errors import ConfigError
from launcher.config import devices, host_list, paddlecloud, readers, store_access
from launcher.config.argv import SplitCommandLine, given_values, sources, split_argv
from launcher.config.config import Config
from launcher.config.durations import duration_text
from launcher.config.ps_layout import static_hosts, with_layout
from launcher.config.worker_settings import LOSS_GRACE_S
from launcher.net.endpoints import PORT_MAX, is_any, join_host_port, parse_endpoint

SERVED_TIMEOUT_S = 600.0
"""How long a host of a list waits for the one that serves etcd: somebody may be starting them one by one, by hand."""
SERVED_MIN = 2
"""A list of one host is a job of that machine alone."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read a command line (without the program's name) and the environment."""
    return build(split_argv(argv), environ)


def build(line: SplitCommandLine, environ: Mapping[str, str]) -> Config:
    """Make a `Config` of a command line that is already cut, and check the relations between its values."""
    fields = given_values(line, environ)
    servers = store_access.over_tls(
        fields.get("servers", readers.StoreEndpoints((), tls=False)), store_access.certificates(fields)
    )
    fields["servers"], fields["tls"] = servers.endpoints, servers.tls
    workers = fields.pop("slots", "auto")
    fields["slots"], fields["slots_word"] = (workers, "") if isinstance(workers, int) else (0, workers)
    if not servers.endpoints:
        fields.setdefault("local_nodes", 1)
    named = sources(line, environ)
    if hosts := paddlecloud.hosts(environ, named, fields.get("run_mode", JobMode.COLLECTIVE)):
        fields["ips"], fields["paddlecloud"] = hosts, True
    hosts = fields.get("ips", ())
    nodes = len(hosts) or fields.get("local_nodes", 1)
    fields["np_given"] = "np" in fields
    fields.setdefault("np", Np(low=1, high=nodes if servers.endpoints or hosts else NP_UNLIMITED, first=nodes))
    fields.setdefault("loss_grace_s", min(LOSS_GRACE_S, fields.get("grace_s", LOSS_GRACE_S)))
    config = Config(script=line.script, script_args=line.script_args, module=line.module, given=line.flags, **fields)
    _check_relations(config)
    config = _with_server(with_layout(config, named))
    if config.served_by and "connect_timeout" not in named:
        config = replace(config, connect_timeout_s=SERVED_TIMEOUT_S)
    return config


def _with_server(config: Config) -> Config:
    """The config of a job whose hosts are all named: without a server one of them serves."""
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
        raise ConfigError("--elastic_server needs --job_id, the same name on every node of the job: add --job_id NAME")
    _check_list(config)
    if config.loss_grace_s > config.grace_s:
        raise ConfigError(
            f"--loss_grace {duration_text(config.loss_grace_s)} is longer than "
            f"--grace {duration_text(config.grace_s)}, "
            f"but after a loss nothing can be saved; use --loss_grace {duration_text(config.grace_s)} or less, "
            "or a longer --grace"
        )
    check_silence_timeout(config)
    _check_store(config)
    devices.check_relations(config)
    if config.ctrl_port and config.local_nodes > 1:
        raise ConfigError(
            f"--ctrl_port {config.ctrl_port} and --local_nodes {config.local_nodes} contradict each other: this "
            "machine has that port once; leave out --ctrl_port, each node finds free ports"
        )
    if config.metrics_at is not None and config.metrics_at[1] + max(config.local_nodes, 1) - 1 > PORT_MAX:
        raise ConfigError(
            f"--metrics_port {config.metrics_at[1]} leaves no ports for {config.local_nodes} nodes, each takes the "
            f"next one; use {PORT_MAX - config.local_nodes + 1} or less"
        )
    least = readers.LOG_BYTES_LOWEST // 2 * (1 + config.log_rotate)
    if config.log_bytes_max is not None and config.log_bytes_max < least:
        raise ConfigError(
            f"--log_rotate {config.log_rotate} needs --log_max_bytes {least // 1024}KiB or more: each file has a share "
            "of it"
        )
    if config.verbose and config.quiet:
        raise ConfigError("--verbose and --quiet contradict each other; leave one out")


def check_silence_timeout(config: Config) -> None:
    """Raise `ConfigError` where the lease of a silent node ends before its silence counts.

    The default is shorter than every lease.
    """
    if config.silence_timeout_s >= config.lease_ttl_s:
        timeout, ttl = duration_text(config.silence_timeout_s), duration_text(config.lease_ttl_s)
        raise ConfigError(
            f"--silence_timeout {timeout} is not shorter than --lease_ttl {ttl}: the lease of a silent node ends "
            f"first, so that the timeout has no effect; use less than {ttl}, or 0 to rely on leases alone"
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
            f"--local_nodes {config.local_nodes} runs several nodes on one host, {flag} one on each of several; "
            "use one of the two"
        )


def _check_store(config: Config) -> None:
    """Raise `ConfigError` where the flags contradict each other: some are for an etcd of ours, some for another."""
    if config.servers:
        if config.serve:
            raise ConfigError("--serve starts an etcd here, and --elastic_server names one; leave one of the two out")
        return
    if config.serve:
        _check_host(config)
    if config.certificates:
        named = next(name for name in ("ca", "cert", "key") if getattr(config.certificates, name))
        raise ConfigError(
            f"--etcd_{named} is for an etcd of your own: add --elastic_server HOST:PORT, or leave it out (unset "
            f"ELASTIC_ETCD_{named.upper()}); the one that is started here speaks no TLS"
        )
    served = next((f for f, given in ((config.list_flag, config.ips), ("--servers", config.ps_servers)) if given), "")
    if served and config.serve:
        raise ConfigError(f"--serve and {served} contradict each other: with {served} the host that sorts first serves")
    if (served or config.serve) and config.etcd_user:
        raise ConfigError(
            f"--etcd_user is for an etcd of your own; to close the one that {served or '--serve'} starts, give every "
            "node the same --job_secret_file FILE or ELASTIC_JOB_SECRET"
        )


def _check_host(config: Config) -> None:
    """Raise `ConfigError` where --serve names all addresses, and nothing names one that other machines reach."""
    address, _ = parse_endpoint(config.serve)
    if not is_any(address):
        return
    if not config.host:
        raise ConfigError(
            f"--serve {address} is every address of this machine, and other machines need one of them: add --host "
            "ADDRESS, at which they reach this one"
        )
    if is_any(config.host):
        raise ConfigError(f"--host {config.host} is no address that other machines reach; name one of this machine")
