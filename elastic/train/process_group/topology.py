"""Where this process stands among the workers, as the library needs it."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elastic.errors import ConfigError
from elastic.train.process_group import shutdown


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
        if environ.get("WORLD_SIZE", "1") != "1":
            raise ConfigError("the process group does not stand yet; call elastic.init() before state.restore()")
        return Topology(0, 1, 0, 1)
    world_size = dist.get_world_size()
    group = None
    if world_size > 1:
        shutdown.arm()
        group = dist.group.WORLD if dist.get_backend() == "gloo" else dist.new_group(backend="gloo")
    return Topology(
        rank=dist.get_rank(),
        world_size=world_size,
        local_rank=int(environ.get("LOCAL_RANK") or 0),
        local_world_size=int(environ.get("LOCAL_WORLD_SIZE") or 1),
        group=group,
        background=dist.new_group(backend="gloo") if sharded and world_size > 1 else None,
    )


def host(environ: Mapping[str, str] = os.environ) -> str:
    """This machine as people know it: the address that the node has in its job, otherwise the machine's name."""
    return environ.get("ELASTIC_NODE_ID", "").rpartition("-")[0] or socket.gethostname()
