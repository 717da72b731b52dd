"""The frozen `Config` of a node: what the user asked for. `launcher.config.parse` makes one."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final

from elastic.core.ps.model import PsLayout
from elastic.store.tls import Certificates
from launcher.config import paddlecloud, store_access
from launcher.config.job_settings import JobSettings, StoreSettings
from launcher.config.node_settings import DeviceSettings, HostListSettings, NetworkSettings, PsSettings
from launcher.config.readers import StoreEndpoints
from launcher.config.store_access import NOBODY, Credentials
from launcher.config.worker_settings import CheckpointSettings, LogSettings, SupervisionSettings, WarmSettings

PYTHON_ENDINGS: Final = (".py", ".pyc", ".pyz")
"""Scripts that python runs; anything else is run as it is."""


@dataclass(frozen=True, kw_only=True)
class Config(
    DeviceSettings,
    NetworkSettings,
    HostListSettings,
    PsSettings,
    StoreSettings,
    JobSettings,
    SupervisionSettings,
    CheckpointSettings,
    WarmSettings,
    LogSettings,
):
    """What the user asked for. `parse` fills it, `check` replaces what only the machine can tell.

    It is all groups of settings at once: whatever needs one group takes that as its type. The fields below have no
    flag. `script` is a path, a module (`module`) or an executable. `given` are the flags of the command line as they
    were read, for the command lines of further nodes. `gpu_ids` are those that this machine is to use, as
    CUDA_VISIBLE_DEVICES names them, () for the CPU; `warnings` are lines to say once at the start.

    `servers` are etcd's endpoints as `host:port`, empty for an etcd of our own, and speak TLS with `tls`. `slots` is
    the number of workers on this node: 0 until `check` where `slots_word` says it with a word; with parameter servers
    1, and `roles` says what runs where. `np_given` tells whether the user named np; `host` is what others are to use,
    "" to find it by the route to the store.

    Where all hosts are named (`launcher.config.ps_layout.static_hosts`) and there is no server, `served_by` is the host
    that serves etcd for all, and `servers` is the endpoint there; `serves` tells whether that is this node.
    `paddlecloud`: `ips` came from PaddleCloud's variables.
    """

    script: str
    script_args: tuple[str, ...] = ()
    module: bool = False
    slots_word: str = ""
    np_given: bool = False
    paddlecloud: bool = False
    roles: PsLayout | None = None
    served_by: str = ""
    serves: bool = False
    tls: bool = False
    login: Credentials = NOBODY
    given: tuple[tuple[str, str], ...] = ()
    gpu_ids: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

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
    start = (sys.executable, "-m") if config.module else (sys.executable,) if config.python else ()
    return (*start, config.script, *config.script_args)
