"""The settings of workers: when they have failed, their checkpoints, how they start, and where output goes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from launcher.config import readers
from launcher.config.durations import METAVAR, duration, duration_text
from launcher.config.setting import BASE, LOGS, WORKERS, Scope, Settings, setting

FAILURE_STOP_TIMEOUT_S: Final = 2.0
"""`--failure-stop-timeout`, unless `--stop-timeout` is less."""


@dataclass(frozen=True, kw_only=True)
class SupervisionSettings(Settings, group=WORKERS):
    """When workers have failed, how they are stopped, and what follows."""

    restarts_max: int = setting(
        3,
        "restarts after failures, for the whole job; nodes that fail or join do not count; the count starts again at "
        "0 after a generation whose workers ran for 1h; ten failures in a row without progress end the job anyway; "
        "torchrun's default is 0",
        readers.count(0, readers.RESTARTS_MAX),
        "N",
        name="max_restarts",
        scope=Scope.JOB,
    )
    host_cooldown_s: float = setting(
        60.0,
        "quarantine a host for this long if only its workers fail, twice in a row and without progress; the time "
        "doubles with each quarantine, up to 30m; 0 turns this off",
        duration(0),
        METAVAR,
        scope=Scope.JOB,
    )
    stop_timeout_s: float = setting(
        15.0,
        "the time from SIGTERM to SIGKILL when workers are stopped for a planned restart",
        duration(0),
        METAVAR,
        old_name="grace",
    )
    failure_stop_timeout_s: float = setting(
        FAILURE_STOP_TIMEOUT_S,
        "the same after a failure, when no useful state can be saved",
        duration(0),
        METAVAR,
        shown=f"{duration_text(FAILURE_STOP_TIMEOUT_S)}, or --stop-timeout if that is less",
        old_name="loss_grace",
    )
    fatal_exit_codes: tuple[int, ...] = setting(
        (),
        "a worker that exits with one of these codes fails the job without a restart",
        readers.exit_codes,
        "CODE,...",
        shown="none",
        scope=Scope.JOB,
    )
    retry_startup_errors: bool = setting(
        False,
        "also restart a script that cannot start: one that ends with a syntax error, a failed import or a usage error "
        "(exit code 2) in the first generation, before it has a process group; by default the job fails at once",
    )
    hang_timeout_s: float = setting(
        1800.0,
        "a worker that has reported a step and then no further one for this long has failed; its stack traces are "
        "written to its log; 0 turns this off",
        duration(0),
        METAVAR,
    )
    partition_timeout_s: float = setting(
        30.0,
        "when workers are stalled for this long while another machine is unreachable, the job continues without the "
        "unreachable machine; 0 turns this off",
        duration(0),
        METAVAR,
        old_name="reach_timeout",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings(Settings, group=WORKERS):
    """What `elastic.train` in the workers, and a planned stop, do with the state of the training."""

    check_nan: bool = setting(
        False,
        "with the elastic library: a commit fails if the state has NaN or Inf values, and names them",
        environs=("FLAGS_check_nan_inf",),
        scope=Scope.WORKER,
    )
    checkpoint_dir: str = setting(
        "",
        "the directory of checkpoints, on storage that every node reads; workers find it in ELASTIC_CHECKPOINT_DIR",
        readers.path("a directory"),
        "DIR",
        shown="checkpoints/<job_id>",
        scope=Scope.WORKER,
    )
    resume_from: str = setting(
        "",
        "with the elastic library: start from this checkpoint, a directory or a file, if the job has none yet",
        readers.path("a file or a directory"),
        "PATH",
        shown="none",
        scope=Scope.WORKER,
    )
    restore_step: int | None = setting(
        None,
        "with the elastic library: roll back to the checkpoint of this step, once; newer ones are set aside",
        readers.count(0, readers.STEP_MAX),
        "N",
        shown="the newest checkpoint",
        scope=Scope.WORKER,
    )
    allow_rollback: bool = setting(
        False,
        "with the elastic library: continue from an older checkpoint, or from the beginning, if the newest one of the "
        "job cannot be read",
        scope=Scope.WORKER,
    )
    save_timeout_s: float = setting(
        120.0,
        "the time that a planned stop gives a script with the elastic library to finish the agreed step and save",
        duration(0),
        METAVAR,
        old_name="save_limit",
    )
    memory_limit_bytes: int | None = setting(
        None,
        "with the elastic library: the most memory of a node for in-memory checkpoints, with a unit: 8GB or 8GiB",
        readers.size,
        "SIZE",
        shown="half of the available memory",
    )


@dataclass(frozen=True, kw_only=True)
class WarmSettings(Settings, group=WORKERS):
    """How workers are started."""

    preload: tuple[str, ...] = setting(
        (),
        "modules that are imported once on each node, in addition to torch, before workers are forked: pandas,my.model",
        readers.modules,
        "MODULE,...",
        shown="none",
    )
    no_preload: bool = setting(
        False,
        "start each worker as a new python process instead of a fork, which takes some seconds longer",
        old_name="no_warm",
    )
    no_learn: bool = setting(
        False,
        "before workers are forked, import only torch and the modules of --preload, and not those that the script has "
        "imported at an earlier start",
    )
    no_torch_patch: bool = setting(
        False,
        "do not wrap torch.distributed.init_process_group in preloaded workers: the agent then cannot see when the "
        "process group of a script without the elastic library is ready, and torch does not wait until rank 0 listens",
        scope=Scope.WORKER,
    )


@dataclass(frozen=True, kw_only=True)
class LogSettings(Settings, group=LOGS):
    """Where output goes: logs, the terminal, and metrics."""

    log_dir: str = setting(
        "log/",
        "the directory for workerlog.<rank> and endpoints.log",
        readers.path("a directory"),
        "DIR",
        group=BASE,
    )
    log_overwrite: bool = setting(
        False, "truncate the logs when the agent starts, instead of appending to them", scope=Scope.PARENT
    )
    log_bytes_max: int | None = setting(
        readers.LOG_BYTES_MAX,
        "the most disk space for the log of one worker, which keeps the first lines of each start and the newest "
        "lines; 0 turns this off",
        readers.log_size,
        "SIZE",
        shown="1GB",
        name="log_max_bytes",
    )
    log_rotate: int = setting(
        1,
        "the number of rotated files to keep for each worker: workerlog.<rank>.1 is the newest of them; they share "
        "--log-max-bytes with the current one",
        readers.count(1, readers.LOG_ROTATE_MAX),
        "K",
    )
    log_format: str = setting(
        "text",
        "the format of the terminal output and of launcher.log: text, or json (one object on each line)",
        readers.choice("text", "json"),
        "FORMAT",
    )
    console: str = setting(
        "rank0",
        "the workers whose output this terminal shows: rank0 (on the node that has it), local0 (this node's first), "
        "all, none",
        readers.choice("rank0", "local0", "all", "none"),
        "WHICH",
    )
    metrics_at: tuple[str, int] | None = setting(
        None,
        "serve /metrics (Prometheus), /healthz and /readyz at this port, on loopback unless an address is given; with "
        "--local-nodes each further node takes the next port; 0 turns this off",
        readers.metrics_port,
        "[ADDRESS:]PORT",
        shown="off",
        name="metrics_port",
        scope=Scope.PARENT | Scope.WORKER,
    )
    no_live: bool = setting(False, "do not show the progress display below the output on a terminal")
    verbose: bool = setting(False, "print more about what the agent does", short="v")
    quiet: bool = setting(False, "print only warnings and errors", short="q")
