"""The settings of workers: when they have failed, what becomes of their state, how they start, where output goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text
from launcher.config.setting import BASE, LOGS, WORKERS, Scope, Settings, setting

LOSS_GRACE_S: Final = 2.0
"""`--loss_grace`, unless `--grace` is less."""


@dataclass(frozen=True, kw_only=True)
class SupervisionSettings(Settings, group=WORKERS):
    """When workers count as failed, how they are stopped, and what follows."""

    restarts_max: int = setting(
        3,
        "restarts after failures, for the whole job; lost or new nodes are free",
        readers.count(0, readers.RESTARTS_MAX),
        "N",
        name="max_restarts",
        scope=Scope.JOB,
    )
    host_cooldown_s: float = setting(
        60.0,
        "a host whose workers alone fail twice in a row without progress is quarantined for this long, each time "
        "after that twice as long, up to 30 minutes; 0: never",
        duration(0),
        METAVAR,
        scope=Scope.JOB,
    )
    grace_s: float = setting(
        15.0,
        "the time between SIGTERM and SIGKILL when workers are stopped for a planned change",
        duration(0),
        METAVAR,
    )
    loss_grace_s: float = setting(
        LOSS_GRACE_S,
        "the same after a loss or a failure, when nothing useful can be saved",
        duration(0),
        METAVAR,
        shown=f"{duration_text(LOSS_GRACE_S)}, or --grace if that is less",
    )
    fatal_exit_codes: tuple[int, ...] = setting(
        (),
        "a worker that exits with one of these fails the job without a restart",
        readers.exit_codes,
        "CODE,...",
        shown="none",
        scope=Scope.JOB,
    )
    retry_startup_errors: bool = setting(
        False,
        "restart also a script that cannot start: one that ends with a syntax error, a failed import or a usage "
        "error (exit code 2) in the first generation, before it has a process group; by default the job fails at once",
    )
    hang_timeout_s: float = setting(
        1800.0,
        "a worker that has reported a step and then none for this long has failed, its stacks go to its log; "
        "0 turns this off",
        duration(0),
        METAVAR,
    )
    reach_timeout_s: float = setting(
        30.0,
        "when workers wait for others or make no step for this long while another machine cannot be reached, the "
        "job goes on without the machine that is cut off; 0 turns this off",
        duration(0),
        METAVAR,
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Settings, group=WORKERS):
    """What `elastic.train` in the workers, and the planned stop, do about the state of the training."""

    check_nan: bool = setting(
        False,
        "with our library: a commit refuses numbers that are not finite, and says where they came from",
        environs=("FLAGS_check_nan_inf",),
        scope=Scope.WORKER,
    )
    checkpoint_dir: str = setting(
        "",
        "what workers find in ELASTIC_CHECKPOINT_DIR; storage that every node reads",
        readers.path("a folder"),
        "DIR",
        shown="checkpoints/<job_id>",
        scope=Scope.WORKER,
    )
    resume_from: str = setting(
        "",
        "with our library: start from this checkpoint, a folder or a file, when the job has none of its own",
        readers.path("a file or of a folder"),
        "PATH",
        shown="none",
        scope=Scope.WORKER,
    )
    restore_step: int | None = setting(
        None,
        "with our library: go back to the checkpoint of this step, once; newer ones are set aside",
        readers.count(0, readers.STEP_MAX),
        "N",
        shown="the newest",
        scope=Scope.WORKER,
    )
    allow_rollback: bool = setting(
        False,
        "with our library: continue from an older checkpoint, or from the beginning, when the newest one of the job "
        "cannot be read",
        scope=Scope.WORKER,
    )
    save_limit_s: float = setting(
        120.0,
        "so long a planned stop lets a script with our library finish the common step and save; --grace comes after it",
        duration(0),
        METAVAR,
    )
    memory_limit_bytes: int | None = setting(
        None,
        "with our library: the most memory of a node that copies of the state may take, with a unit: 8GB or 8GiB",
        readers.size,
        "SIZE",
        shown="half of what is available",
    )


@dataclass(frozen=True, kw_only=True)
class WarmSettings(Settings, group=WORKERS):
    """How workers are started."""

    preload: tuple[str, ...] = setting(
        (),
        "modules that are loaded once on each node, beside torch, before workers are forked: pandas,my.model",
        readers.modules,
        "MODULE,...",
        shown="none",
    )
    no_warm: bool = setting(
        False, "start each worker as a process of its own from the first import on, some seconds slower"
    )
    no_learn: bool = setting(
        False,
        "load only torch and the modules of --preload before workers are forked, and not what their script has "
        "imported at an earlier start",
    )
    no_torch_patch: bool = setting(
        False,
        "leave torch.distributed.init_process_group of warm workers as it is: the agent does not see when the process "
        "group of a script without our library is formed, and torch does not wait until rank 0 listens",
        scope=Scope.WORKER,
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings(Settings, group=LOGS):
    """Where output goes: logs, the console, and what monitors read."""

    log_dir: str = setting(
        "log/", "the folder for workerlog.<rank> and endpoints.log", readers.path("a folder"), "DIR", group=BASE
    )
    log_overwrite: bool = setting(
        False, "start the logs empty when the agent starts, instead of appending to them", scope=Scope.PARENT
    )
    log_bytes_max: int | None = setting(
        readers.LOG_BYTES_MAX,
        "the most that the log of one worker takes on disk; the first lines of a start and the newest are kept; "
        "0 turns this off",
        readers.log_size,
        "SIZE",
        shown="1GB",
        name="log_max_bytes",
    )
    log_rotate: int = setting(
        1,
        "so many older files of the log of one worker are kept: workerlog.<rank>.1 is the newest of them; all "
        "share --log_max_bytes",
        readers.count(1, readers.LOG_ROTATE_MAX),
        "K",
    )
    log_format: str = setting(
        "text",
        "what the console and launcher.log have: text, or json (one object on each line, for programs)",
        readers.choice("text", "json"),
        "FORMAT",
    )
    console: str = setting(
        "rank0",
        "whose output is shown here: rank0 (on the node that has it), local0 (this node's first), all, none",
        readers.choice("rank0", "local0", "all", "none"),
        "WHICH",
    )
    metrics_at: tuple[str, int] | None = setting(
        None,
        "answer /metrics (Prometheus), /healthz and /readyz there, on loopback unless an address is named; with "
        "--local_nodes each further node takes the next port; 0 turns this off",
        readers.metrics_port,
        "[ADDRESS:]PORT",
        shown="off",
        name="metrics_port",
        scope=Scope.PARENT | Scope.WORKER,
    )
    no_live: bool = setting(False, "no status below the output on a terminal")
    verbose: bool = setting(False, "say more of what the agent does")
    quiet: bool = setting(False, "say only what is wrong")
