"""The rank and world size of this worker for Lightning, from elastic-launch or torchrun."""

from __future__ import annotations

from lightning.fabric.plugins.environments import ClusterEnvironment

from elastic.environment import ProcessEnvironment


class ElasticEnvironment(ClusterEnvironment):
    """Rank, world size and rendezvous of this worker, for Lightning. The launcher starts the workers.

    Under plain python there is a single rank.
    """

    def __init__(self, place: ProcessEnvironment) -> None:
        """`place` is the value that `elastic.init()` returned."""
        super().__init__()
        self._place = place

    @property
    def creates_processes_externally(self) -> bool:
        """True: the launcher starts the processes, not Lightning."""
        return True

    @property
    def main_address(self) -> str:
        """The host of the rendezvous of the process group."""
        return self._place.master.rpartition(":")[0].strip("[]") or "127.0.0.1"

    @property
    def main_port(self) -> int:
        """The port of `main_address`; 0 for a single process."""
        return int(self._place.master.rpartition(":")[2] or 0)

    @staticmethod
    def detect() -> bool:
        """Return False: Lightning uses this environment only if it is passed to the trainer."""
        return False

    def world_size(self) -> int:
        """The number of ranks."""
        return self._place.world_size

    def set_world_size(self, size: int) -> None:
        """The launcher has set it."""

    def global_rank(self) -> int:
        """This worker's rank."""
        return self._place.rank

    def set_global_rank(self, rank: int) -> None:
        """The launcher has set it."""

    def local_rank(self) -> int:
        """This worker's rank on its node."""
        return self._place.local_rank

    def node_rank(self) -> int:
        """The rank of the node, if all nodes have as many workers as this one."""
        return (self._place.rank - self._place.local_rank) // self._place.local_world_size

    def validate_settings(self, num_devices: int, num_nodes: int) -> None:
        """Do nothing: the launcher sets the numbers of nodes and devices."""
