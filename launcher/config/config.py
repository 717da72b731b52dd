"""One frozen `Config`, from the command line and the environment, with the relations between values checked.

`parse` reads and checks text alone; `check` then looks at this machine: cards, script, addresses, folders. Every
mistake is a `ConfigError` of one line that says what is wrong and how to mend it.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from elastic.core.model import NP_UNLIMITED, Np, Roles
from elastic.errors import ConfigError, StoreUnavailable
from elastic.store.tls import Certificates
from launcher.config import host_list, paddlecloud, readers, slots, store_access
from launcher.config.argv import CommandLine, cut, given_values, sources
from launcher.config.credentials import NOBODY, Login
from launcher.config.flags import FLAGS
from launcher.config.host_list import first_host, job_name
from launcher.config.ps_layout import listed_hosts, own_host, static_hosts, with_roles
from launcher.config.readers import Servers
from launcher.net import addresses
from launcher.net.endpoints import PORT_MAX, as_ip, join_host_port
from launcher.spot.endpoint import PROVIDERS, endpoint
from launcher.system import limits
from launcher.system.preflight import check_surroundings
from launcher.system.private_env import without

LOSS_GRACE_S = 2.0
SERVED_TIMEOUT_S = 600.0
"""How long a host of a list waits for the one that serves etcd: somebody may be starting them one by one, by hand."""
PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that python runs; anything else is run as it is."""
FIND_MODULE_TIMEOUT_S = 60.0
SERVED_MIN = 2
"""A list of one host is a job of that machine alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the user asked for. `parse` fills it, `check` replaces what only the machine can tell.

    `servers` are etcd's endpoints as `host:port`, empty for an etcd of our own; `slots` is the number of workers on
    this node (0 until `check`; with parameter servers 1, and `roles` says what runs where); `np_given` tells whether
    the user named np; `host` is what others are to use, "" to find it by the route to the store. `script` is a path, a
    module (`module`) or an executable. `given` are the flags of the command line as they were read, for the command
    lines of further nodes. `cards` are those that this machine is to use, as CUDA_VISIBLE_DEVICES names them, () for
    the CPU; `warnings` are lines to say once at the start.

    Where all hosts are named (`launcher.config.ps_layout.static_hosts`) and there is no server, `served_by` is the host
    that serves etcd for all, and `servers` is the endpoint there; `serves` tells whether that is this node.
    `paddlecloud`: `ips` came from PaddleCloud's variables.
    """

    script: str
    script_args: tuple[str, ...] = ()
    module: bool = False

    run_mode: str = "collective"
    gpus: tuple[str, ...] = ()
    one_card_per_worker: bool = False
    slots: int = 0
    slots_word: str = ""
    local_nodes: int = 0
    host: str = ""
    nic: str = ""
    port_range: tuple[int, int] | None = None

    ips: tuple[str, ...] = ()
    ctrl_port: int = 0
    serve: str = ""
    serve_port: int = 12379
    served_by: str = ""
    serves: bool = False
    paddlecloud: bool = False

    ps_servers: tuple[str, ...] = ()
    ps_workers: tuple[str, ...] = ()
    ps_heter_workers: tuple[str, ...] = ()
    server_num: int = 0
    worker_num: int = 0
    heter_worker_num: int = 0
    http_port: int = 0
    roles: Roles | None = None

    servers: tuple[str, ...] = ()
    tls: bool = False
    etcd_ca: str = ""
    etcd_cert: str = ""
    etcd_key: str = ""
    etcd_user: str = ""
    etcd_password_file: str = ""
    allow_plaintext_password: bool = False
    job_secret_file: str = ""
    print_secret: bool = False
    login: Login = NOBODY
    job_id: str = ""
    np: Np
    np_given: bool = False
    settle_s: float = 3.0
    grow_every_s: float | None = None
    lease_ttl_s: float = 5.0
    store_outage_limit_s: float = 120.0
    connect_timeout_s: float = 60.0
    elastic_timeout_s: float | None = None
    spot: str = "auto"
    key_prefix: str = "/elastic"
    rerun: bool = False
    force: bool = False
    allow_mismatch: bool = False

    restarts_max: int = 3
    host_cooldown_s: float = 60.0
    grace_s: float = 15.0
    loss_grace_s: float = LOSS_GRACE_S
    fatal_exit_codes: tuple[int, ...] = ()
    retry_startup_errors: bool = False
    hang_timeout_s: float = 1800.0
    reach_timeout_s: float = 30.0
    check_nan: bool = False
    checkpoint_dir: str = ""
    resume_from: str = ""
    restore_step: int | None = None
    allow_rollback: bool = False
    save_limit_s: float = 120.0
    memory_limit_bytes: int | None = None
    preload: tuple[str, ...] = ()
    no_warm: bool = False

    log_dir: str = "log/"
    log_overwrite: bool = False
    log_bytes_max: int | None = readers.LOG_BYTES_MAX
    log_rotate: int = 1
    log_format: str = "text"
    console: str = "rank0"
    metrics_at: tuple[str, int] | None = None
    no_live: bool = False
    verbose: bool = False
    quiet: bool = False

    given: tuple[tuple[str, str], ...] = ()
    cards: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def warm(self) -> bool:
        """Tell whether workers are to start warm, if they can."""
        return not self.no_warm

    @property
    def shown_cards(self) -> tuple[str, ...]:
        """The cards that workers are to see, by local rank; () leaves CUDA_VISIBLE_DEVICES alone."""
        return self.cards if self.gpus or self.one_card_per_worker else ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`servers` as a client of etcd takes them: with https:// in front when they speak TLS."""
        return store_access.endpoints(Servers(self.servers, self.tls))

    @property
    def way(self) -> store_access.Access:
        """The way into etcd."""
        return store_access.Access(self.endpoints, self.login, self.certificates)

    @property
    def certificates(self) -> Certificates:
        """The files for TLS."""
        return Certificates(ca=self.etcd_ca, cert=self.etcd_cert, key=self.etcd_key)

    @property
    def list_flag(self) -> str:
        """Where `ips` came from, for messages."""
        return paddlecloud.LIST if self.paddlecloud else "--ips"

    @property
    def python(self) -> bool:
        """Tell whether python runs the script."""
        return self.module or self.script.endswith(PYTHON_ENDINGS)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Config:
    """Read a command line (without the program's name) and the environment."""
    return build(cut(argv), environ)


def build(line: CommandLine, environ: Mapping[str, str]) -> Config:
    """Make a `Config` of a command line that is already cut, and check the relations between its values."""
    fields: dict[str, Any] = {flag.field: flag.default for flag in FLAGS}
    given = given_values(line, environ)
    fields.update(given)
    servers = store_access.over_tls(given.get("servers", Servers((), tls=False)), store_access.certificates(given))
    fields["servers"], fields["tls"] = servers.endpoints, servers.tls
    workers = fields["slots"]
    fields["slots"], fields["slots_word"] = (workers, "") if isinstance(workers, int) else (0, workers)
    if not servers.endpoints:
        fields["local_nodes"] = fields["local_nodes"] or 1
    named = sources(line, environ)
    if paddlecloud.counts(named, fields["run_mode"]) and (hosts := paddlecloud.hosts(environ)):
        fields["ips"], fields["paddlecloud"] = hosts, True
    nodes = len(fields["ips"]) or fields["local_nodes"] or 1
    fields["np_given"] = fields["np"] is not None
    alone = not servers.endpoints and not fields["ips"]
    fields["np"] = fields["np"] or Np(low=1, high=NP_UNLIMITED if alone else nodes, first=nodes)
    if fields["loss_grace_s"] is None:
        fields["loss_grace_s"] = min(LOSS_GRACE_S, fields["grace_s"])
    config = Config(script=line.script, script_args=line.script_args, module=line.module, given=line.flags, **fields)
    _check_relations(config)
    config = _with_server(with_roles(config, named))
    if config.served_by and "connect_timeout" not in named:
        config = replace(config, connect_timeout_s=SERVED_TIMEOUT_S)
    return config


def _with_server(config: Config) -> Config:
    """The config of a job whose hosts are all named: without a server one of them serves."""
    hosts = static_hosts(config)
    if config.servers or len(hosts) < SERVED_MIN:
        return config
    first = first_host(hosts)
    return replace(
        config,
        served_by=first,
        servers=(join_host_port(first, config.serve_port),),
        job_id=config.job_id or job_name(hosts, config.script),
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
            f"--loss_grace {readers.plain(config.loss_grace_s)} is longer than "
            f"--grace {readers.plain(config.grace_s)}, "
            f"but after a loss nothing can be saved; use --loss_grace {readers.plain(config.grace_s)} or less, or a "
            "longer --grace"
        )
    store_access.check_relations(config)
    slots.check_relations(config)
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


def check(config: Config, environ: Mapping[str, str]) -> Config:
    """Look at this machine; the config with what was found there.

    It fills in the cards and the number of workers, a random job id when there is no server, the folders as full
    paths, and an executable's full path. Raises `ConfigError` for a system that is not Linux, a script that cannot be
    read, a card that is not there, and an address that other nodes cannot use. It changes nothing on the machine.
    """
    if sys.platform != "linux":
        raise ConfigError(f"elastic-launch runs on Linux, and this is {sys.platform}; use a container or a Linux host")
    check_surroundings()
    script = _check_script(config, environ)
    config = replace(config, host=_listed_host(config, environ))
    job_id = config.job_id or f"local-{secrets.token_hex(3)}"
    serves = config.serve != "" or (config.served_by != "" and config.host == config.served_by)
    if config.nic:
        addresses.nic_address(config.nic)
    # A name of the list may well stand for a loopback address here, and for a real one elsewhere (Debian's 127.0.1.1).
    if config.servers and (config.host not in static_hosts(config) or as_ip(config.host) is not None):
        # A name may not resolve yet. The agent asks again while it connects, and says so.
        with contextlib.suppress(StoreUnavailable):
            addresses.advertised(config.host, environ, config.servers, config.nic)
    if config.spot != "none":
        for provider in PROVIDERS if config.spot == "auto" else (config.spot,):
            endpoint(provider, environ)  # A variable that names no server is told now.
    who, warnings = store_access.found(config, environ)
    config = slots.found(replace(config, warnings=warnings), environ)
    limits.check(config.slots, nodes=config.local_nodes or 1, etcd=serves or not config.servers)
    return replace(
        config,
        script=script,
        job_id=job_id,
        serves=serves,
        local_nodes=config.local_nodes or int(serves),
        login=who,
        checkpoint_dir=os.path.abspath(config.checkpoint_dir or Path("checkpoints", job_id)),
        resume_from=_resume_from(config),
        log_dir=os.path.abspath(config.log_dir),
    )


def _listed_host(config: Config, environ: Mapping[str, str]) -> str:
    """The name that the lists of hosts have for this node; `Config.host` where they have none."""
    if config.ips:
        source = addresses.source_of(config.host, environ)
        return host_list.own_entry(config.ips, config.host, flag=config.list_flag, source=source)
    if config.roles is None:
        return config.host
    listed = listed_hosts(config.roles)
    matching = addresses.same(listed, config.host) if config.host else ()
    if not matching and all(name != "host" for name, _ in config.given):
        matching = addresses.own(listed)
    return own_host(config, matching, addresses.candidates())


def worker_argv(config: Config) -> tuple[str, ...]:
    """The command that starts one worker; of a config that went through `check`."""
    if config.module:
        return (sys.executable, "-m", config.script, *config.script_args)
    if config.python:
        return (sys.executable, config.script, *config.script_args)
    return (config.script, *config.script_args)


def _check_script(config: Config, environ: Mapping[str, str]) -> str:
    """The script as it is to be run. Raises `ConfigError` if it cannot be."""
    if config.module:
        _check_module(config.script, environ)
        return config.script
    path = Path(config.script)
    try:
        is_file = path.is_file()
    except (OSError, ValueError) as error:
        raise ConfigError(f"the script {config.script!r} cannot be looked up: {error}") from error
    if config.python:
        if not is_file:
            raise ConfigError(_missing(path))
        if not os.access(path, os.R_OK):
            raise ConfigError(f"the script {config.script} cannot be read; check its permissions")
        return config.script
    if is_file:
        if not os.access(path, os.X_OK):
            raise ConfigError(f"{config.script} is not executable; chmod +x it, or give a script that ends in .py")
        return os.path.abspath(path)
    found = shutil.which(config.script, path=environ.get("PATH"))
    if found is None:
        raise ConfigError(_missing(path))
    return os.path.abspath(found)


def _resume_from(config: Config) -> str:
    """The checkpoint to start from as a full path, "" if none is named. Raises `ConfigError` if it is not there."""
    if not config.resume_from:
        return ""
    path = os.path.abspath(config.resume_from)
    if not os.access(path, os.R_OK):
        what = "cannot be read; check its permissions" if os.path.lexists(path) else "is not there; check the path"
        raise ConfigError(f"--resume_from {config.resume_from}: {path} {what}, it has to be readable on every node")
    return path


def _missing(path: Path) -> str:
    if path.is_dir():
        return f"{path} is a folder, not a script"
    return f"there is no script {path} (looked in {Path.cwd()}); check the name"


def _check_module(name: str, environ: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless python can find the module. Nothing of it is imported here."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(f"-m {name!r} is not the name of a module; write it with dots and without .py")
    places: list[str] | None = None
    for length in range(1, name.count(".") + 2):
        part = ".".join(name.split(".")[:length])
        spec = importlib.machinery.PathFinder.find_spec(part, [os.getcwd(), *sys.path] if places is None else places)
        if spec is None:
            break
        places = list(spec.submodule_search_locations or ())
    else:
        return
    # Not in a plain place: ask python itself, which imports the module's parents, and so not in this process.
    code = "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is None)"
    command = [sys.executable, "-c", code, name]
    try:
        asked = subprocess.run(
            command,
            env=without(environ, ()),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=FIND_MODULE_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:  # Its parents are slow to import, so they are there; a worker will tell the rest.
        return
    if asked.returncode:
        mend = f"write -m {name[:-3]}, or leave -m out" if name.endswith(".py") else "check the name, or install it"
        raise ConfigError(f"there is no module {name} here; {mend}")
