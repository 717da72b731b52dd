"""What one process of a node is started with."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from elastic.channel.messages import truncate_text
from elastic.core.ps.model import Role


class WorkerSpec(Struct, frozen=True):
    """One worker to start.

    Its output passes through the agent into its log and, if it is `shown`, to the console; if the console is `shared`
    with other workers, only whole lines are shown there, each with the worker's name. `header` opens this start in the
    log. If the `role` is not that of a worker, `rank` is the index.
    """

    rank: int
    local_rank: int
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: str
    log: Path
    shown: bool
    header: str
    shared: bool = False
    role: Role = Role.WORKER

    @property
    def log_text(self) -> str:
        """The path of the log, as documents may hold it."""
        return truncate_text(str(self.log))
