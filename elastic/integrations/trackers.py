"""Continues one W&B, MLflow or TensorBoard run in all generations of a job, without repeated steps.

A script that calls W&B or MLflow directly::

    state.restore()
    tracked = trackers.prepare(state.step)
    if ctx.rank == 0:
        wandb.init(project="digits")
    while state.step < steps:
        ...
        step = state.step + 1
        if values := tracked.new_to_wandb({"loss": loss.item()}, step):
            wandb.log(values, step=step)
        state.commit(every=50)                # may end the process, so log the step before

Pass the loggers of Hugging Face's Trainer, Lightning and Accelerate to `TrackedRun.attach` instead.

Only rank 0 uses a tracker. On the other ranks these functions do nothing.

Each tracker continues its run in another way:

- **W&B** accepts any ID: `WANDB_RUN_ID` and `WANDB_RESUME` are set. Logged values cannot be replaced, and an offline
  run cannot be queried, so a file has the last step of each name, and repeated steps are dropped.
- **MLflow** assigns IDs: every run that this process creates has the tag `elastic.run`, by which later generations find
  it. Steps that the tracking server already has are dropped.
- **TensorBoard** reads all files of a directory as one run: the directory is the same. A marker in the new file makes
  it drop the repeated steps of the older files.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from elastic import environment
from elastic.integrations.run_identity import RunIdentity, recorded_id, safe
from elastic.integrations.step_guard import StepGuard, file_guard
from elastic.integrations.tensorboard_files import has_events, mark_resumed

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from torch.utils.tensorboard import SummaryWriter

FOLDER: Final = "trackers"
"""The directory in the checkpoint directory of the job with the ID of the run and the steps logged to W&B."""
TAG: Final = "elastic.run"
"""The tag of an MLflow run with the ID of the job's run."""
EXPERIMENTS_MAX: Final = 1000
"""The number of experiments of an MLflow server that are searched for the run: one page of its reply."""
WANDB_FLUSH_S: Final = 1.0
"""The interval at which W&B writes its file (15 s by default). A killed worker loses values since the last write."""


__all__ = ["TrackedRun", "follow", "prepare"]


def prepare(step: int | None = None, *, folder: str | os.PathLike[str] | None = None) -> TrackedRun:
    """Make the trackers that this process starts later continue the run of earlier generations.

    Call it on every rank, before `wandb.init`, `mlflow.start_run`, and the creation of a framework's loggers. On rank 0
    it sets `WANDB_RUN_ID`, `WANDB_RESUME`, `MLFLOW_RUN_ID`, `TENSORBOARD_LOGGING_DIR` and similar variables, unless the
    user has set them. It queries MLflow if MLflow is imported or `MLFLOW_TRACKING_URI` is set.

    Args:
        step: The step of the restored state; later steps will be logged again. If it is not known yet, call
            `TrackedRun.resumed` later.
        folder: The checkpoint directory of the job, which all nodes share. Default: ELASTIC_CHECKPOINT_DIR, or
            `checkpoints`.

    Returns:
        The run, whose methods do nothing on ranks other than 0.

    Raises:
        elastic.errors.ConfigError: A variable of the launcher is wrong.
        mlflow.exceptions.MlflowException: The query to the tracking server failed.
    """
    place = environment.read(os.environ)
    if place.rank != 0:
        return TrackedRun("", Path(), rank=place.rank)
    shared = Path(folder or place.checkpoint_dir or "checkpoints").absolute()
    run = TrackedRun(recorded_id(RunIdentity.of(os.environ), shared / FOLDER), shared / FOLDER)
    set_defaults(os.environ, run.id, run.tensorboard_dir)
    run.wandb_guard = file_guard(run.folder / f"wandb-{safe(os.environ['WANDB_RUN_ID'])}.json")
    if "mlflow" in sys.modules or os.environ.get("MLFLOW_TRACKING_URI"):
        run.find_mlflow_run()
    if step is not None:
        run.resumed(step)
    return run


def follow(loggers: Iterable[object], step: int, *, folder: str | os.PathLike[str] | None = None) -> TrackedRun | None:
    """Call `prepare` and `TrackedRun.attach` if a logger of a framework is supported.

    Args:
        loggers: The loggers or callbacks of a framework.
        step: The step of the restored state.
        folder: As in `prepare`.

    Returns:
        The run; None if no logger is supported.
    """
    given = list(loggers)
    if not any(_adapter(logger) for logger in given):
        return None
    run = prepare(step, folder=folder)
    run.attach(given)
    return run


def set_defaults(environ: MutableMapping[str, str], run_id: str, tensorboard_dir: str) -> None:
    """Set the variables with which trackers continue the run, unless the user has set them."""
    defaults = {
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": str(WANDB_FLUSH_S),
        "TENSORBOARD_LOGGING_DIR": tensorboard_dir,
    }
    for name, text in defaults.items():
        if not environ.get(name):
            environ[name] = text
    given = environ.get("MLFLOW_RUN_CONTEXT")  # MLflow tags each run that this process creates with these.
    environ["MLFLOW_RUN_CONTEXT"] = json.dumps({TAG: run_id} | (json.loads(given) if given else {}))


@dataclass(slots=True)
class TrackedRun:
    """The run of the job for the trackers. On ranks other than 0 its methods do nothing.

    Attributes:
        id: The ID of the run, the same in all generations; "" on other ranks.
        folder: The directory of its records.
        rank: The rank of this process.
        step: The step at which this generation resumed, once known.
    """

    id: str
    folder: Path
    rank: int = 0
    step: int | None = None
    wandb_guard: StepGuard = field(default_factory=lambda: StepGuard(dict), repr=False)
    _mlflow_guards: dict[str, StepGuard] = field(default_factory=dict, repr=False)
    _marks: list[Callable[[int], None]] = field(default_factory=list, repr=False)

    @property
    def tensorboard_dir(self) -> str:
        """A directory for the files of TensorBoard, the same in all generations."""
        return str(self.folder.parent / "tensorboard" / self.id)

    def resumed(self, step: int) -> None:
        """Set the step of the restored state before the first value is logged, unless it was passed to `prepare`.

        Args:
            step: The step of the restored state.
        """
        self.step = step
        for mark in self._marks:
            mark(step)

    def new_to_wandb(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return the values that W&B has not received from an earlier generation.

        Args:
            values: The values by name.
            step: Their step.

        Returns:
            The new values; {} on other ranks.
        """
        return {} if self.rank else self.wandb_guard.new(values, step)

    def new_to_mlflow(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return the values that the active MLflow run does not have.

        Args:
            values: The values by name.
            step: Their step.

        Returns:
            The new values; {} on other ranks, or if no run is active.
        """
        guard = None if self.rank else self._active_mlflow_guard()
        return {} if guard is None else guard.new(values, step)

    def summary_writer(self, log_dir: str | os.PathLike[str] | None = None) -> SummaryWriter | None:
        """Open a writer of TensorBoard; log to it once the step is known.

        Args:
            log_dir: A directory that is the same in all generations; `tensorboard_dir` by default.

        Returns:
            The writer; None on other ranks.
        """
        if self.rank:
            return None
        from torch.utils.tensorboard import SummaryWriter

        writer: SummaryWriter = SummaryWriter(log_dir=os.fspath(log_dir or self.tensorboard_dir))
        self._mark_later(lambda step: mark_resumed(writer, step + 1))
        return writer

    def find_mlflow_run(self, client: MlflowClient | None = None, experiment: str | None = None) -> str | None:
        """Find the run of the job on the tracking server, and set `MLFLOW_RUN_ID`, unless the user has set it.

        Args:
            client: A client of another server than `MLFLOW_TRACKING_URI`; then no variable is set.
            experiment: The only experiment to search; by default that of `MLFLOW_EXPERIMENT_NAME`, or all.

        Returns:
            The ID of the run in MLflow; None if no generation has started it yet.
        """
        if self.rank:
            return None
        given = os.environ.get("MLFLOW_RUN_ID")
        if given and client is None:
            return given
        from mlflow import MlflowClient

        run_id = _find_by_tag(client or MlflowClient(), self.id, experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME"))
        if run_id is not None and client is None:
            os.environ["MLFLOW_RUN_ID"] = run_id
        return run_id

    def attach(self, loggers: Iterable[object]) -> None:
        """Make the loggers of a framework continue the run, and drop the steps that it has.

        Args:
            loggers: All loggers or callbacks of a trainer; unsupported ones are ignored. Supported are those for W&B,
                MLflow and TensorBoard: each `TrainerCallback` of transformers, before `Trainer.train`; each `Logger` of
                Lightning, before `Trainer.fit`; trackers of Accelerate, after `Accelerator.init_trackers`.
        """
        if self.rank:
            return
        for logger in loggers:
            if (adapter := _adapter(logger)) is not None:
                adapter(self, logger)

    def mlflow_guard(self, run_id: str, client: MlflowClient | None = None) -> StepGuard:
        """Guard a run by what the tracking server has of it when the first value is logged."""

        def logged() -> dict[str, int]:
            from mlflow import MlflowClient

            data = (client or MlflowClient()).get_run(run_id).data.to_proto()
            return {metric.key: metric.step for metric in data.metrics}

        return self._mlflow_guards.setdefault(run_id, StepGuard(logged))

    def _active_mlflow_guard(self) -> StepGuard | None:
        import mlflow

        active = mlflow.active_run()
        return None if active is None else self.mlflow_guard(active.info.run_id)

    def _mark_later(self, mark: Callable[[int], None]) -> None:
        self._marks.append(mark)
        if self.step is not None:
            mark(self.step)


# transformers


def _wandb_callback(run: TrackedRun, callback: Any) -> None:
    callback.on_log = _filtered_on_log(callback.on_log, run.wandb_guard.new)


def _mlflow_callback(run: TrackedRun, callback: Any) -> None:
    def new(logs: Mapping[str, Any], step: int) -> dict[str, Any]:
        # A killed worker loses values that MLflow queues, and steps before the restored one are not repeated.
        callback._async_log = False
        guard = run._active_mlflow_guard()
        return dict(logs) if guard is None else guard.new(logs, step, name_in_mlflow)

    run.find_mlflow_run()
    callback.on_log = _filtered_on_log(callback.on_log, new)


def _find_by_tag(client: MlflowClient, run_id: str, experiment: str | None) -> str | None:
    """Return the oldest run with the tag; a later one may be nested in it."""
    if experiment:
        named = client.get_experiment_by_name(experiment)
        experiments = [] if named is None else [named]
    else:
        experiments = client.search_experiments(max_results=EXPERIMENTS_MAX)
    if not experiments:
        return None
    runs = client.search_runs(
        [each.experiment_id for each in experiments],
        filter_string=f"tags.`{TAG}` = '{run_id}'",
        order_by=["attributes.start_time ASC"],
        max_results=1,
    )
    return str(runs[0].info.run_id) if runs else None


def name_in_mlflow(key: str) -> str:
    """Return the name under which transformers logs a value: it writes "_" for what MLflow does not take."""
    return re.sub(r"[^\w\-. :/]", "_", key, flags=re.ASCII)


def _filtered_on_log(on_log: Callable[..., Any], new: Callable[[Mapping[str, Any], int], dict[str, Any]]) -> Any:
    def filtered(args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **more: Any) -> Any:
        values = new(logs or {}, state.global_step)
        return on_log(args, state, control, logs=values, **more) if values else None

    return filtered


def _tensorboard_callback(run: TrackedRun, callback: Any) -> None:
    if callback.logging_dir is None:
        callback.logging_dir = os.environ["TENSORBOARD_LOGGING_DIR"]

    def mark(step: int) -> None:
        if callback.tb_writer is None:
            callback.tb_writer = callback._SummaryWriter(log_dir=callback.logging_dir)
        mark_resumed(callback.tb_writer, step + 1)

    run._mark_later(mark)


# Lightning


def _wandb_logger(run: TrackedRun, logger: Any) -> None:
    log_metrics = logger.log_metrics

    def filtered(metrics: Mapping[str, Any], step: int | None = None) -> None:
        if values := run.wandb_guard.new(metrics, step):
            log_metrics(values, step)

    logger.log_metrics = filtered


def _mlflow_logger(run: TrackedRun, logger: Any) -> None:
    client = logger._mlflow_client  # The property `experiment` is the same, but it creates the run.
    if logger._run_id is None:  # The logger does not read MLFLOW_RUN_ID.
        logger._run_id = run.find_mlflow_run(client, logger._experiment_name)
    log_batch = client.log_batch

    def filtered(run_id: str, metrics: Iterable[Any] = (), *args: Any, **more: Any) -> Any:
        guard, given = run.mlflow_guard(run_id, client), list(metrics)
        new = [metric for metric in given if guard.is_new(metric.key, metric.step)]
        return log_batch(run_id, new, *args, **more) if new or not given else None

    client.log_batch = filtered


def _tensorboard_logger(run: TrackedRun, logger: Any) -> None:
    if logger._version is None:
        logger._version = run.id
    if has_events(logger.log_dir):
        logger._default_hp_metric = False  # It is logged at step 0 with each start.
    log_metrics = logger.log_metrics

    def flushed(metrics: Mapping[str, Any], step: int | None = None) -> None:
        log_metrics(metrics, step)
        # A killed worker loses values that are not written, and a step restored from memory is not repeated.
        logger.experiment.flush()

    logger.log_metrics = flushed
    # Its steps begin at 0: the values of step n are those of the batch after n steps.
    run._mark_later(lambda step: mark_resumed(logger.experiment, step))


# Accelerate


def _wandb_tracker(run: TrackedRun, tracker: Any) -> None:
    tracker.log = _filtered_log(tracker.log, lambda: run.wandb_guard)


def _mlflow_tracker(run: TrackedRun, tracker: Any) -> None:
    tracker.log = _filtered_log(tracker.log, lambda: run.mlflow_guard(tracker.active_run.info.run_id))


def _filtered_log(log: Callable[..., Any], guard: Callable[[], StepGuard]) -> Callable[..., None]:
    def filtered(values: Mapping[str, Any], step: int | None = None, **more: Any) -> None:
        if new := guard().new(values, step):
            log(new, step=step, **more)

    return filtered


def _tensorboard_tracker(run: TrackedRun, tracker: Any) -> None:
    run._mark_later(lambda step: mark_resumed(tracker.writer, step + 1))


ADAPTERS: Final[Mapping[str, Callable[[TrackedRun, Any], None]]] = {
    "WandbCallback": _wandb_callback,
    "MLflowCallback": _mlflow_callback,
    "TensorBoardCallback": _tensorboard_callback,
    "WandbLogger": _wandb_logger,
    "MLFlowLogger": _mlflow_logger,
    "TensorBoardLogger": _tensorboard_logger,
    "WandBTracker": _wandb_tracker,
    "MLflowTracker": _mlflow_tracker,
    "TensorBoardTracker": _tensorboard_tracker,
}
"""The function that makes a logger continue its run, by the name of the logger's class."""


def _adapter(logger: object) -> Callable[[TrackedRun, Any], None] | None:
    names = (cls.__name__ for cls in type(logger).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)
