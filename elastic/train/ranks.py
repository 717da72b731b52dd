"""Which rank of how many this process is, for whoever shares data among ranks."""

from __future__ import annotations

import os

from elastic import environment
from elastic.errors import ConfigError


def rank_and_world(rank: int | None = None, world: int | None = None) -> tuple[int, int]:
    """The given rank and world; else those of the process group, or without one those of the environment.

    Raises `ConfigError` if only one is given, if they do not fit together, or if the environment is wrong.
    """
    if (rank is None) != (world is None):
        raise ConfigError(f"rank is {rank} and world is {world}; give both, or neither")
    if rank is None or world is None:
        rank, world = _read_ranks()
    if not 0 <= rank < world:
        raise ConfigError(f"rank {rank} is not one of a world of {world}")
    return rank, world


def _read_ranks() -> tuple[int, int]:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    found = environment.read(os.environ)
    return found.rank, found.world_size
