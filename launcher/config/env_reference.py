"""The environment variables that are read, and the page that explains them and those that are set for workers.

`--help-env` and docs/reference.md are made from this table, from the flags, and from the tables of what workers find.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from launcher.config.flags import FLAGS


@dataclass(frozen=True)
class DocumentedVariables:
    """Variables that say the same, and what that is. `who` has them, "" for all processes."""

    names: tuple[str, ...]
    meaning: str
    who: str = field(default="", kw_only=True)


READ: Final[tuple[DocumentedVariables, ...]] = (
    DocumentedVariables(
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"),
        "etcd's host and port, if both are set; after the other variables of --elastic_server",
    ),
    DocumentedVariables(
        ("FLAGS_START_PORT",),
        "take ports from this one upwards, the workers' first; after the variable of --port_range; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_PORT", "TRAINER_PORTS_NUM"),
        "the same from PADDLE_PORT, if both are set, as on PaddleCloud; after FLAGS_START_PORT; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM"),
        "with those two and POD_IP PaddleCloud's list of hosts, PADDLE_TRAINERS is then --ips; not inside a worker",
    ),
    DocumentedVariables(
        ("CUDA_VISIBLE_DEVICES",),
        "without --gpus the cards to use; with it the cards that it may name, by their numbers in nvidia-smi, or UUIDs",
    ),
    DocumentedVariables(("ELASTIC_ETCD_PASSWORD",), "the password of --etcd_user, unless --etcd_password_file has it"),
    DocumentedVariables(("ELASTIC_JOB_SECRET",), "the secret of the job, unless --job_secret_file has it"),
    DocumentedVariables(
        ("SSL_CERT_FILE",),
        "the authorities that count with https:// in --elastic_server and without --etcd_ca, instead of the system's",
    ),
    DocumentedVariables(
        ("XDG_CACHE_HOME",), "the folder for what scripts import (docs/warm.md), instead of ~/.cache; --no_learn"
    ),
    DocumentedVariables(
        ("XDG_RUNTIME_DIR",), "a folder for the locks of nodes, where another user blocks the one in TMPDIR"
    ),
    DocumentedVariables(
        ("PYTHONSAFEPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"),
        "as python and OpenBLAS read them, for workers that start warm (docs/warm.md)",
    ),
    DocumentedVariables(
        ("ELASTIC_SPOT_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"),
        "where the metadata server of --spot is, http://HOST:PORT; the second for AWS only, the third for Google only",
    ),
    DocumentedVariables(
        ("WANDB_RUN_ID", "MLFLOW_RUN_ID", "TENSORBOARD_LOGGING_DIR"),
        "the run of a tracker in a script that uses elastic.integrations, instead of the job's (docs/trackers.md)",
    ),
    DocumentedVariables(
        ("MLFLOW_RUN_CONTEXT", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI"),
        "as MLflow reads them, in a script that uses elastic.integrations (docs/trackers.md)",
    ),
    DocumentedVariables(
        ("ACCELERATE_USE_CPU", "PL_GLOBAL_SEED"),
        "as Accelerate and Lightning read them, in a script that uses elastic.integrations",
    ),
    DocumentedVariables(("NO_COLOR",), "if it is set, even to nothing, no colour and no live status on a terminal"),
    DocumentedVariables(("CI", "TERM"), "no live status if CI is set, or if TERM is `dumb` or not set"),
)
"""What is read besides the variables of flags."""


def help_text(workers: Sequence[DocumentedVariables], by_role: Sequence[DocumentedVariables]) -> str:
    """The page that `--help-env` prints, with what workers find, and processes of a parameter-server job instead."""
    lines = [
        "Variables that elastic-launch reads. What counts is, in this order: the flag, ELASTIC_<FLAG>, the variable of",
        "another launcher, the default. An empty variable counts as not set; a switch is set by 1, true, yes or on.",
        "",
    ]
    for flag in FLAGS:
        first, *others = flag.variables
        lines.append(_line(first, f"as --{flag.name}: {flag.help}"))
        lines += [_line(other, f"as {first}, which goes before it") for other in others]
    for read in READ:
        lines += [_line(name, read.meaning) for name in read.names]
    lines += [
        "",
        "Variables that are set for workers. M is the number of nodes, N the number of workers on each; M_id and N_id",
        "are the places of the node and of the worker.",
        "",
    ]
    for made in workers:
        lines += [_line(name, made.meaning) for name in made.names]
    lines += ["", "Variables that are set for the processes of a parameter-server job instead.", ""]
    for made in by_role:
        who = f"{made.who}: " if made.who else ""
        lines += [_line(name, who + made.meaning) for name in made.names]
    return "\n".join(lines) + "\n"


def _line(name: str, meaning: str) -> str:
    return f"  {name:<33} {meaning}"
