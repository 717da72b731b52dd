"""The environment variables that elastic-launch reads, and the page that explains them and those of workers.

`--help-env` and docs/reference/environment.md are generated from this table, from the flags, and from the tables of
variables that are set for workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from launcher.config.flags import FLAGS


@dataclass(frozen=True)
class DocumentedVariables:
    """Variables with the same meaning. `who` is the kind of process that has them, "" for all."""

    names: tuple[str, ...]
    meaning: str
    who: str = field(default="", kw_only=True)


READ: Final[tuple[DocumentedVariables, ...]] = (
    DocumentedVariables(
        ("PADDLE_ELASTIC_ETCD_SERVICE_HOST", "PADDLE_ELASTIC_ETCD_SERVICE_PORT"),
        "etcd's host and port, if both are set; after the other variables of --elastic-server",
    ),
    DocumentedVariables(
        ("FLAGS_START_PORT",),
        "take ports from this one upwards, the workers' first; after the variable of --port-range; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_PORT", "TRAINER_PORTS_NUM"),
        "the same from PADDLE_PORT, if both are set, as on PaddleCloud; after FLAGS_START_PORT; not inside a worker",
    ),
    DocumentedVariables(
        ("PADDLE_TRAINERS", "PADDLE_TRAINER_ID", "PADDLE_TRAINER_ENDPOINTS", "PADDLE_TRAINERS_NUM"),
        "with those two and POD_IP, PaddleCloud's list of hosts: PADDLE_TRAINERS is then --ips; not inside a worker",
    ),
    DocumentedVariables(
        ("CUDA_VISIBLE_DEVICES",),
        "the GPUs to use, by number as in nvidia-smi, or by UUID; with --gpus the GPUs that it may name",
    ),
    DocumentedVariables(("ELASTIC_ETCD_PASSWORD",), "the password of --etcd-user, unless --etcd-password-file has it"),
    DocumentedVariables(("ELASTIC_JOB_SECRET",), "the job secret, unless --job-secret-file has it"),
    DocumentedVariables(
        ("SSL_CERT_FILE",),
        "the CA certificates for https:// in --elastic-server without --etcd-ca, instead of the system's",
    ),
    DocumentedVariables(
        ("XDG_CACHE_HOME",),
        "the directory of the lists of modules that scripts import (docs/guides/fast-restarts.md), instead of ~/.cache",
    ),
    DocumentedVariables(
        ("XDG_RUNTIME_DIR",), "a directory for the locks of nodes, if another user blocks the one in TMPDIR"
    ),
    DocumentedVariables(
        ("PYTHONSAFEPATH", "PYTHONUNBUFFERED", "OPENBLAS_NUM_THREADS"),
        "as python and OpenBLAS read them, for preloaded workers (docs/guides/fast-restarts.md)",
    ),
    DocumentedVariables(
        ("ELASTIC_SPOT_ENDPOINT", "AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"),
        "the metadata server of --spot, http://HOST:PORT; the second for AWS only, the third for Google only",
    ),
    DocumentedVariables(
        ("WANDB_RUN_ID", "MLFLOW_RUN_ID", "TENSORBOARD_LOGGING_DIR"),
        "the tracker's run in a script that uses elastic.integrations, instead of the job's (docs/guides/trackers.md)",
    ),
    DocumentedVariables(
        ("MLFLOW_RUN_CONTEXT", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_TRACKING_URI"),
        "as MLflow reads them, in a script that uses elastic.integrations (docs/guides/trackers.md)",
    ),
    DocumentedVariables(
        ("ACCELERATE_USE_CPU", "PL_GLOBAL_SEED"),
        "as Accelerate and Lightning read them, in a script that uses elastic.integrations",
    ),
    DocumentedVariables(
        ("NO_COLOR",), "if it is set, even to an empty text, no colour and no progress display on a terminal"
    ),
    DocumentedVariables(("CI", "TERM"), "no progress display if CI is set, or if TERM is `dumb` or not set"),
)
"""Variables that are read in addition to those of flags."""


def help_text(workers: Sequence[DocumentedVariables], by_role: Sequence[DocumentedVariables]) -> str:
    """The page that `--help-env` prints, with the variables of workers and of parameter-server processes."""
    lines = [
        "Variables that elastic-launch reads. The first of these that is set counts: the flag, ELASTIC_<FLAG>, the",
        "variable of another launcher, the default. An empty variable counts as not set; a switch is set by 1, true,",
        "yes or on.",
        "",
    ]
    for flag in FLAGS:
        first, *others = flag.variables
        lines.append(_line(first, f"as {flag.option}: {flag.help}"))
        lines += [_line(other, f"as {first}, which takes precedence") for other in others]
    for read in READ:
        lines += [_line(name, read.meaning) for name in read.names]
    lines += [
        "",
        "Variables that are set for workers. M is the number of nodes, N the number of workers on each; M_id is the",
        "node rank, N_id the local rank.",
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
