"""The elastic-launch library: what a training script imports, and the core that the launcher runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elastic.environ import Environ

__all__ = ["env"]


def env() -> Environ:
    """What this process is told of its place in the job: role, rank, servers, job id and more.

    It reads the environment anew at each call. Raises `elastic.errors.ConfigError` if a variable is wrong or missing.
    """
    import os

    from elastic.environ import read

    return read(os.environ)
