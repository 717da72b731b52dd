"""The environment of a replica: that of a worker of elastic-launch (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

LAUNCHERS: Final = ("ELASTIC_", "PADDLE_", "TORCHELASTIC_", "FLAGS_", "GROUP_", "ROLE_")
"""Prefixes of variables that a launcher of this process may have set."""
JOB: Final = "testing"
FILES: Final = "ELASTIC_TESTING_FILES"
"""The variable with the path prefix of a replica's files: the run's directory, and "replica." with its number."""
SOCKET: Final = "run.sock"
"""The socket of the run, in its directory."""
TASK: Final = "task.json"
"""The file in the run's directory with the function that the replicas run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaPlace:
    """The place of a replica. `m_id` is the node rank in its world, `number` the number of the replica in the run."""

    number: int
    generation: int
    rank: int
    local_rank: int
    slots: int
    m_id: int
    nodes: int
    node: str


def environment(
    place: ReplicaPlace,
    *,
    base: Mapping[str, str],
    more: Mapping[str, str],
    port: int,
    incarnation: str,
    failures: int,
    checkpoint_dir: str,
    channel: str,
    saved: str,
    files: str,
) -> dict[str, str]:
    """Build the environment. `more`, from the caller of the run, overrides the rest; `saved` may be ""."""
    inherited = {name: text for name, text in base.items() if not name.startswith(LAUNCHERS)}
    world = place.nodes * place.slots
    made = {
        "PYTHONUNBUFFERED": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(place.slots),
        "GROUP_RANK": str(place.m_id),
        "GROUP_WORLD_SIZE": str(place.nodes),
        "ROLE_RANK": str(place.rank),
        "ROLE_WORLD_SIZE": str(world),
        "ROLE_NAME": "default",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RESTART_COUNT": str(failures),
        "TORCHELASTIC_MAX_RESTARTS": str(failures + 1),
        "TORCHELASTIC_RUN_ID": JOB,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCHELASTIC_ERROR_FILE": f"{files}.error.json",
        "ELASTIC_JOB_ID": JOB,
        "ELASTIC_NODE_ID": place.node,
        "ELASTIC_GENERATION": str(place.generation),
        "ELASTIC_FENCE": f"{incarnation}/{place.generation}",
        "ELASTIC_CHECKPOINT_DIR": checkpoint_dir,
        "ELASTIC_PROGRESS_FILE": f"{files}.progress",
        "ELASTIC_CHANNEL": channel,
        FILES: files,
    }
    if saved:
        made["ELASTIC_SAVED"] = saved
    return {**inherited, **made, **more}
