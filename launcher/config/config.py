"""The frozen `Config` of a node: what the user asked for. `launcher.config.parse` makes one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from elastic.core.model import Np
from elastic.core.ps.model import PsLayout
from elastic.store.tls import Certificates
from launcher.config import paddlecloud, readers, store_access
from launcher.config.flags import GRACE_S, LOSS_GRACE_S
from launcher.config.readers import StoreEndpoints
from launcher.config.store_access import NOBODY, Credentials

PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that python runs; anything else is run as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """What the user asked for. `parse` fills it, `check` replaces what only the machine can tell.

    `servers` are etcd's endpoints as `host:port`, empty for an etcd of our own; `slots` is the number of workers on
    this node (0 until `check`; with parameter servers 1, and `roles` says what runs where); `np_given` tells whether
    the user named np; `host` is what others are to use, "" to find it by the route to the store. `script` is a path, a
    module (`module`) or an executable. `given` are the flags of the command line as they were read, for the command
    lines of further nodes. `gpu_ids` are those that this machine is to use, as CUDA_VISIBLE_DEVICES names them, () for
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
    roles: PsLayout | None = None

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
    login: Credentials = NOBODY
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
    grace_s: float = GRACE_S
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
    gpu_ids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def warm(self) -> bool:
        """Tell whether workers are to start warm, if they can."""
        return not self.no_warm

    @property
    def shown_gpus(self) -> tuple[str, ...]:
        """The cards that workers are to see, by local rank; () leaves CUDA_VISIBLE_DEVICES alone."""
        return self.gpu_ids if self.gpus or self.one_card_per_worker else ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`servers` as a client of etcd takes them: with https:// in front when they speak TLS."""
        return store_access.endpoints(StoreEndpoints(self.servers, self.tls))

    @property
    def store_access(self) -> store_access.StoreAccess:
        """The way into etcd."""
        return store_access.StoreAccess(self.endpoints, self.login, self.certificates)

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


def worker_argv(config: Config) -> tuple[str, ...]:
    """The command that starts one worker; of a config that went through `check`."""
    if config.module:
        return (sys.executable, "-m", config.script, *config.script_args)
    if config.python:
        return (sys.executable, config.script, *config.script_args)
    return (config.script, *config.script_args)
