"""Every environment variable that is read, and every one that is set for workers, with one line each.

`--help-env` and docs/reference.md are made from these tables and from the table of flags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.flags import Flag, by_group


@dataclass(frozen=True, slots=True)
class Variables:
    """Variables that say the same, and what that is."""

    names: tuple[str, ...]
    meaning: str


READ: Final[tuple[Variables, ...]] = (
    Variables(
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"),
        "etcd's host and port, if both are set; after the other variables of --elastic_server",
    ),
    Variables(
        ("FLAGS_START_PORT",),
        "take ports from this one upwards, the workers' first; after the variable of --port_range; not inside a worker",
    ),
    Variables(
        ("PADDLE_PORT", "TRAINER_PORTS_NUM"),
        "the same from PADDLE_PORT, if both are set, as on PaddleCloud; after FLAGS_START_PORT; not inside a worker",
    ),
    Variables(
        ("CUDA_VISIBLE_DEVICES",),
        "without --gpus the cards to use; with it the cards that it may name, by their numbers in nvidia-smi, or UUIDs",
    ),
    Variables(("NO_COLOR",), "if it is set, even to nothing, no colour on a terminal"),
)
"""What is read besides the variables of flags."""

SET: Final[tuple[Variables, ...]] = (
    Variables(("RANK", "ROLE_RANK", "PADDLE_TRAINER_ID"), "the rank: M_id * N + N_id"),
    Variables(("LOCAL_RANK", "PADDLE_RANK_IN_NODE"), "N_id, the place of the worker on its node, 0 to N - 1"),
    Variables(
        ("FLAGS_selected_gpus",),
        "the index of its card among the visible ones: N_id, or 0 with --one_card_per_worker",
    ),
    Variables(("WORLD_SIZE", "ROLE_WORLD_SIZE", "PADDLE_TRAINERS_NUM"), "M * N"),
    Variables(("LOCAL_WORLD_SIZE",), "N, the number of workers on each node"),
    Variables(("GROUP_RANK",), "M_id, the place of the node in its generation"),
    Variables(("GROUP_WORLD_SIZE",), "M, the number of nodes"),
    Variables(("ROLE_NAME",), "the word default"),
    Variables(
        ("MASTER_ADDR", "MASTER_PORT"),
        "where the workers of this generation meet: a host and a port of the node with M_id 0",
    ),
    Variables(("PADDLE_MASTER",), "the same as host:port"),
    Variables(("TORCHELASTIC_RESTART_COUNT",), "the restarts charged so far"),
    Variables(("TORCHELASTIC_MAX_RESTARTS",), "--max_restarts of this node"),
    Variables(("TORCHELASTIC_RUN_ID", "ELASTIC_JOB_ID"), "the job id"),
    Variables(("TORCHELASTIC_ERROR_FILE",), "a file where torch's @record may write its error"),
    Variables(("TORCHELASTIC_USE_AGENT_STORE",), "False"),
    Variables(
        ("PADDLE_TRAINER_ENDPOINTS", "ELASTIC_ENDPOINTS"),
        "every worker's host:port in rank order, with commas; left out when it is longer than 64 kB",
    ),
    Variables(
        ("PADDLE_TRAINERS",),
        "the hosts of the nodes in the order of M_id, with commas, as on PaddleCloud; in a parameter-server job a number",
    ),
    Variables(("ELASTIC_ENDPOINTS_FILE",), "the list of endpoints as a file, always: endpoints.<g>.log"),
    Variables(("PADDLE_CURRENT_ENDPOINT",), "this worker's own host:port"),
    Variables(("ELASTIC_NODE_ID",), "the node: host, a dash and 4 hexadecimal digits, new for each start of an agent"),
    Variables(("ELASTIC_GENERATION",), "the number of the generation"),
    Variables(("ELASTIC_FENCE",), "<incarnation>/<generation>: the mark with which our library may write checkpoints"),
    Variables(("ELASTIC_CHECKPOINT_DIR",), "--checkpoint_dir as a full path"),
    Variables(
        ("ELASTIC_PROGRESS_FILE",),
        "a file for the highest step done; our library writes it, and the agent reads it when the workers are gone",
    ),
    Variables(
        ("CUDA_VISIBLE_DEVICES",),
        "the cards of --gpus in that order, LOCAL_RANK is an index into it; with --one_card_per_worker the worker's "
        "own; otherwise as the agent has it",
    ),
    Variables(
        ("CUDA_DEVICE_ORDER",), "PCI_BUS_ID where we set CUDA_VISIBLE_DEVICES: cards are counted as in nvidia-smi"
    ),
    Variables(("PYTHONUNBUFFERED",), "1, unless it is set"),
    Variables(("OMP_NUM_THREADS",), "1, if N > 1 and it is not set"),
    Variables(("TORCH_NCCL_ASYNC_ERROR_HANDLING",), "1, unless it is set"),
    Variables(
        ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"),
        "the network interface of the node's address, unless they are set or none is found",
    ),
)
"""What a worker finds. M is the number of nodes of the generation, N the number of workers on each."""


def help_text() -> str:
    """The page that `--help-env` prints."""
    lines = [
        "Variables that elastic-launch reads. What counts is, in this order: the flag, ELASTIC_<FLAG>, the variable of",
        "another launcher, the default. An empty variable counts as not set; a switch is set by 1, true, yes or on.",
        "",
    ]
    for flag in by_group():
        lines += _flag_lines(flag)
    for read in READ:
        lines += [_line(name, read.meaning) for name in read.names]
    lines += [
        "",
        "Variables that are set for workers. M is the number of nodes, N the number of workers on each; M_id and N_id",
        "are the places of the node and of the worker.",
        "",
    ]
    for made in SET:
        lines += [_line(name, made.meaning) for name in made.names]
    return "\n".join(lines) + "\n"


def _flag_lines(flag: Flag) -> list[str]:
    first, *others = flag.variables
    lines = [_line(first, f"as --{flag.name}: {flag.help}")]
    return lines + [_line(other, f"as {first}, which goes before it") for other in others]


def _line(name: str, meaning: str) -> str:
    return f"  {name:<33} {meaning}"
