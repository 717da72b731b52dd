"""Keeps one W&B, MLflow or TensorBoard run over all generations of a job, in which no step appears twice.

A script that logs to W&B and MLflow by its own calls::

    state.restore()
    tracked = trackers.prepare(state.step)
    if ctx.rank == 0:
        wandb.init(project="digits")
    while state.step < steps:
        ...
        step = state.step + 1
        if values := tracked.new_to_wandb({"loss": loss.item()}, step):
            wandb.log(values, step=step)
        state.commit(every=50)                # may end the process, so the step is logged before

The loggers of Hugging Face's Trainer, Lightning and Accelerate are given to `TrackedRun.attach` instead.

Rank 0 alone speaks with a tracker. On the other ranks everything here does nothing.

Each tracker continues in its own way:

- **W&B** takes any ID: `WANDB_RUN_ID` and `WANDB_RESUME` are set. What was logged once cannot be replaced, and an
  offline run cannot be asked, so the last step of each name is kept in a file, and repeated steps are dropped.
- **MLflow** chooses IDs itself: every run that this process creates has the tag `elastic.run`, and later generations
  find it by that. Repeated steps are dropped, by what the tracking server says it has.
- **TensorBoard** reads all files of a folder as one run: the folder is the same. A mark in the new file makes it
  forget what the older ones have of the steps that come again.
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
"""Below the job's folder for checkpoints: which run it is, and what was logged to W&B."""
TAG: Final = "elastic.run"
"""The tag of an MLflow run with the ID of the job's run."""
EXPERIMENTS_MAX: Final = 1000
"""Experiments of an MLflow server in which the run is looked for: one page of its answer."""
WANDB_FLUSH_S: Final = 1.0
"""W&B writes its file this often (15 s by default). What it has not written is lost with a killed worker."""


__all__ = ["TrackedRun", "follow", "prepare"]


def prepare(step: int | None = None, *, folder: str | os.PathLike[str] | None = None) -> TrackedRun:
    """Make the trackers that this process starts from now on continue the run of the earlier generations.

    Call it on every rank, before `wandb.init`, `mlflow.start_run` and the loggers of a framework are made. On rank 0
    it sets `WANDB_RUN_ID`, `WANDB_RESUME`, `MLFLOW_RUN_ID`, `TENSORBOARD_LOGGING_DIR` and their like, and only what
    the user has not set. MLflow is asked for its run if it is imported or `MLFLOW_TRACKING_URI` is set.

    Args:
        step: The step of the restored state; values of later steps are going to be logged again. Where it is not known
            yet, call `TrackedRun.resumed` later.
        folder: The job's folder for checkpoints; ELASTIC_CHECKPOINT_DIR, or `checkpoints`. All nodes share it.

    Raises:
        elastic.errors.ConfigError: A variable of the launcher is wrong.
        mlflow.exceptions.MlflowException: The tracking server cannot be asked.
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
    """Call `prepare` and `TrackedRun.attach`, if one of a framework's loggers is known here; None if none is."""
    given = list(loggers)
    if not any(_adapter(logger) for logger in given):
        return None
    run = prepare(step, folder=folder)
    run.attach(given)
    return run


def set_defaults(environ: MutableMapping[str, str], run_id: str, tensorboard_dir: str) -> None:
    """Set what makes trackers continue the run, where the user has set nothing."""
    defaults = {
        "WANDB_RUN_ID": run_id,
        "WANDB_RESUME": "allow",
        "WANDB__TRANSACTION_LOG_FLUSH_INTERVAL": str(WANDB_FLUSH_S),
        "TENSORBOARD_LOGGING_DIR": tensorboard_dir,
    }
    for name, text in defaults.items():
        if not environ.get(name):
            environ[name] = text
    given = environ.get("MLFLOW_RUN_CONTEXT")  # MLflow makes tags of it, for each run that this process creates.
    environ["MLFLOW_RUN_CONTEXT"] = json.dumps({TAG: run_id} | (json.loads(given) if given else {}))


@dataclass(slots=True)
class TrackedRun:
    """The run of the job, as trackers know it. On ranks other than 0 its methods do nothing.

    Attributes:
        id: The run's ID, the same in all generations; "" on other ranks.
        folder: Where its records are.
        rank: The rank of this process.
        step: The step that this generation resumed at, once it is known.
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
        """A folder for TensorBoard's files that is the same in all generations."""
        return str(self.folder.parent / "tensorboard" / self.id)

    def resumed(self, step: int) -> None:
        """Say the step of the restored state, before the first value is logged, if `prepare` did not receive it."""
        self.step = step
        for mark in self._marks:
            mark(step)

    def new_to_wandb(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return the values that W&B has not received from an earlier generation; none on other ranks."""
        return {} if self.rank else self.wandb_guard.new(values, step)

    def new_to_mlflow(self, values: Mapping[str, Any], step: int) -> dict[str, Any]:
        """Return the values that the active MLflow run does not have; none on other ranks, or if no run is active."""
        guard = None if self.rank else self._active_mlflow_guard()
        return {} if guard is None else guard.new(values, step)

    def summary_writer(self, log_dir: str | os.PathLike[str] | None = None) -> SummaryWriter | None:
        """Open TensorBoard's writer; log to it once the step is known. None on other ranks.

        Args:
            log_dir: A folder that is the same in all generations; `tensorboard_dir` by default.
        """
        if self.rank:
            return None
        from torch.utils.tensorboard import SummaryWriter

        writer: SummaryWriter = SummaryWriter(log_dir=os.fspath(log_dir or self.tensorboard_dir))
        self._mark_later(lambda step: mark_resumed(writer, step + 1))
        return writer

    def find_mlflow_run(self, client: MlflowClient | None = None, experiment: str | None = None) -> str | None:
        """Find the job's run on the tracking server, and set `MLFLOW_RUN_ID`, unless the user has set it.

        Args:
            client: Another server than that of `MLFLOW_TRACKING_URI`; then no variable is set.
            experiment: The only experiment to look in; by default that of `MLFLOW_EXPERIMENT_NAME`, or all.

        Returns:
            The ID that MLflow gave the run; None if no generation has started it yet.
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
        """Make a framework's loggers continue the run and drop the steps that it has.

        Others are left alone, so that all loggers or callbacks of a trainer may be passed. They are: W&B's, MLflow's
        and TensorBoard's `TrainerCallback` of transformers, before `Trainer.train`; `Logger` of Lightning, before
        `Trainer.fit`; trackers of Accelerate, after `Accelerator.init_trackers`.
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
        guard = run._active_mlflow_guard()
        return dict(logs) if guard is None else guard.new(logs, step, name_in_mlflow)

    run.find_mlflow_run()
    callback.on_log = _filtered_on_log(callback.on_log, new)


def _find_by_tag(client: MlflowClient, run_id: str, experiment: str | None) -> str | None:
    """The oldest run with our tag: a later one may be nested in it."""
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
        logger.experiment.flush()  # What is not written is lost with a killed worker, and a step in memory comes once.

    logger.log_metrics = flushed
    # Its first step is 0: the values of step n are those of the batch after n steps.
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
"""What makes each logger continue, by the name of its class."""


def _adapter(logger: object) -> Callable[[TrackedRun, Any], None] | None:
    names = (cls.__name__ for cls in type(logger).__mro__)
    return next((ADAPTERS[name] for name in names if name in ADAPTERS), None)
