"""The place of this process among the workers, from its environment and from its process group."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from elastic import environment
from elastic.environment import ProcessEnvironment
from elastic.errors import ConfigError
from elastic.script.error_report import reporting_config_errors
from elastic.train.process_group import shutdown

if TYPE_CHECKING:
    import torch

_devices: Final[dict[int, torch.device]] = {}
"""The device of a process that has called `elastic.init`, by pid, because a fork has not called it."""


def env() -> ProcessEnvironment:
    """Return the place of this process in its job: role, rank, servers, job ID and more.

    Each call reads the environment again. After `elastic.init()`, rank, world size, backend and device are those of the
    process group, as long as the group exists. A fork of a worker has no process group.

    Returns:
        The place. Before `elastic.init()`, `backend` is "" and reading `device` raises ConfigError.

    Raises:
        elastic.errors.ConfigError: A variable is wrong or missing. If nothing catches it, Python prints one line to
            stderr and exits with code 2.
    """
    with reporting_config_errors():
        return process_environment()


def process_environment() -> ProcessEnvironment:
    """Return what `env` returns, without reporting a `ConfigError` on stderr."""
    own = environment.read(os.environ)
    device = _devices.get(os.getpid())
    if device is None:
        return own
    import torch.distributed as dist

    if not dist.is_initialized():
        return own
    return replace(
        own, rank=dist.get_rank(), world_size=dist.get_world_size(), backend=dist.get_backend(), _device=device
    )


def rank_and_world(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """Return the given rank and world size, else those of the process group, else those of the environment.

    Raises `ConfigError` if only one is given, if the rank is out of range, or if the environment is wrong.
    """
    if (rank is None) != (world is None):
        raise ConfigError(f"rank is {rank} and world is {world}; give both, or neither")
    if rank is None or world is None:
        import torch.distributed as dist

        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        own = environment.read(os.environ)
        rank, world = own.rank, own.world_size
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} is not below the world size {world}")
    return rank, world


def mark_joined(device: torch.device) -> None:
    """Record that this process has joined the process group, and its device."""
    _devices[os.getpid()] = device


@dataclass(frozen=True, slots=True)
class Topology:
    """The place of this worker, with the gloo groups of the library.

    `group` carries the library's messages between ranks; `background` is a second one, for the thread that saves
    sharded components. Both are None at world size 1.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group: Any = None
    background: Any = None

    @property
    def alone(self) -> bool:
        """Whether this is the only rank."""
        return self.world_size == 1


def current_topology(environ: Mapping[str, str] = os.environ, *, sharded: bool = False) -> Topology:
    """Read the place from the process group; a collective: it may create gloo groups in addition to that of NCCL.

    Raises `ConfigError` if this is one of several workers and the process group is not initialized.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        if environment.read(environ).world_size != 1:
            raise ConfigError("the process group is not initialized; call elastic.init() before state.restore()")
        return Topology(0, 1, 0, 1)
    world_size = dist.get_world_size()
    group = None
    if world_size > 1:
        shutdown.arm()
        group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    own = environment.read(environ)
    return Topology(
        rank=dist.get_rank(),
        world_size=world_size,
        local_rank=own.local_rank,
        local_world_size=own.local_world_size,
        group=group,
        background=dist.new_group(backend="gloo") if sharded and world_size > 1 else None,
    )


def host(environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of this host for messages: the address of the node in its job, otherwise the hostname."""
    return environment.read(environ).node_id.rpartition("-")[0] or socket.gethostname()
