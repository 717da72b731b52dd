"""The frozen `Config` of a node: the user's configuration. `launcher.config.parse` creates it."""

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
"""Scripts that python runs; anything else is run as a program."""


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
    """The user's configuration. `parse` fills it, `check` adds the values that depend on the machine.

    It combines all groups of settings; code that needs one group takes that group as its type. The fields below have no
    flag. `script` is a path, a module (`module`) or an executable. `given` are the flags of the command line as they
    were read, for the command lines of further nodes. `gpu_ids` are the GPUs that this machine uses, as
    CUDA_VISIBLE_DEVICES names them, () for the CPU; `warnings` and `notes` are lines to print once at the start;
    --quiet leaves out the notes.

    `servers` are etcd's endpoints as `host:port`, empty if elastic-launch starts etcd; with `tls` they use TLS. `slots`
    is the number of workers on this node: 0 until `check` if `slots_word` is given instead; with parameter servers it
    is 1, and `roles` is the layout. `np_given` tells whether the user set np; `host` is this node's address for others,
    "" to find it by the route to etcd.

    If all hosts are listed (`launcher.config.ps_layout.static_hosts`) without --elastic-server, `served_by` is the host
    that starts etcd for all, and `servers` is its endpoint; `serves` tells whether that is this node. `paddlecloud`
    tells whether `ips` came from PaddleCloud's variables.
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
    notes: tuple[str, ...] = ()

    @property
    def shown_gpus(self) -> tuple[str, ...]:
        """The GPUs that workers see, by local rank; () leaves CUDA_VISIBLE_DEVICES unchanged."""
        return self.gpu_ids if self.gpus or self.isolate_gpus else ()

    @property
    def endpoints(self) -> tuple[str, ...]:
        """`servers` as a client of etcd takes them: with https:// in front if they use TLS."""
        return store_access.endpoints(StoreEndpoints(self.servers, self.tls))

    @property
    def store_access(self) -> store_access.StoreAccess:
        """Access to etcd."""
        return store_access.StoreAccess(self.endpoints, self.login, self.certificates)

    @property
    def certificates(self) -> Certificates:
        """The files for TLS."""
        return Certificates(ca=self.etcd_ca, cert=self.etcd_cert, key=self.etcd_key)

    @property
    def list_flag(self) -> str:
        """The source of `ips`, for messages."""
        return paddlecloud.LIST if self.paddlecloud else "--ips"

    @property
    def python(self) -> bool:
        """Return whether python runs the script."""
        return self.module or (self.script.endswith(PYTHON_ENDINGS) and not self.no_python)


def worker_argv(config: Config) -> tuple[str, ...]:
    """The command that starts one worker; of a config that went through `check`."""
    start = (sys.executable, "-m") if config.module else (sys.executable,) if config.python else ()
    return (*start, config.script, *config.script_args)
