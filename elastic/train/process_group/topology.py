"""Where this process stands among the workers: what its environment says, and what its process group says."""

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
"""The device of a process that has called `elastic.init`, by its pid: a fork of it has not."""


def env() -> ProcessEnvironment:
    """Tell this process its place in the job: role, rank, servers, job ID and more.

    Reads the environment again at each call. Once `elastic.init()` has joined the other workers, rank, world size,
    backend and device are those of the process group, for as long as the group exists. A process that is forked from
    a worker has not joined anything.

    Returns:
        The place. Before `elastic.init()`, `backend` is "" and reading `device` raises ConfigError.

    Raises:
        elastic.errors.ConfigError: A variable is wrong or missing. If nothing catches it, it is one line on stderr,
            and the exit code is 2.
    """
    with reporting_config_errors():
        return process_environment()


def process_environment() -> ProcessEnvironment:
    """The same as a value; a `ConfigError` is not reported."""
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
    """The given rank and world; else those of the process group, or without one those of the environment.

    Raises `ConfigError` if only one is given, if they do not fit together, or if the environment is wrong.
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
        raise ConfigError(f"rank {rank} is not one of a world of {world}")
    return rank, world


def mark_joined(device: torch.device) -> None:
    """Remember that this process has joined the others, and the device that it computes on."""
    _devices[os.getpid()] = device


@dataclass(frozen=True, slots=True)
class Topology:
    """This worker's place.

    `group` carries the library's own messages between ranks; `background` is one more, for the thread that saves
    sharded parts. Both are None in a world of one.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    group: Any = None
    background: Any = None

    @property
    def alone(self) -> bool:
        """Whether there is nobody to talk to."""
        return self.world_size == 1


def current_topology(environ: Mapping[str, str] = os.environ, *, sharded: bool = False) -> Topology:
    """Read the place from the process group. A collective: it may make groups of gloo's beside that of NCCL.

    Raises `ConfigError` if this is one of several workers and the process group does not stand.
    """
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_initialized():
        if environment.read(environ).world_size != 1:
            raise ConfigError("the process group does not stand yet; call elastic.init() before state.restore()")
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
    """This machine as people know it: the address that the node has in its job, otherwise the machine's name."""
    return environment.read(environ).node_id.rpartition("-")[0] or socket.gethostname()
