"""One call of `Trainer.train`: where it resumes, what it saves after each step, and how losses are weighted."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist
from transformers.trainer_utils import TrainOutput, get_last_checkpoint

from elastic.errors import ConfigError
from elastic.integrations.checkpoint_folder import CheckpointFolder, FrameworkCheckpoint
from elastic.integrations.late_part import LatePart
from elastic.integrations.planned_batches import PlannedBatches
from elastic.integrations.trained_weights import TrainedWeights, has_adapters
from elastic.integrations.transformers.trainer_state import (
    STATE_FILE,
    TrainerSnapshots,
    put_callback_states,
    trainer_state,
)
from elastic.script.error_report import reporting_config_errors
from elastic.train import report
from elastic.train.process_group.topology import Topology, current_topology
from elastic.train.state import State, set_step

SNAPSHOT: Final = "elastic_trainer.json"
"""The file in a `checkpoint-*` directory with the state that `trainer_state.json` lacks."""


class TrainingRun:
    """Resumes a `Trainer`, and commits each of its steps.

    Args:
        trainer: The `Trainer`, before training.
        total: The number of samples of a step over all ranks; None: the number in the first generation.
        order: `order(epoch)` returns the indices of an epoch; None: the Trainer's own strategy.
        memory_every: Save a checkpoint to the memory of the nodes at each multiple of this number of steps.
        keep_frozen: Save the frozen weights of a model with adapters too.

    Raises:
        ConfigError: The checkpoint was saved with other data.
        CheckpointError: No rank can read a step as new as the newest committed one.
    """

    def __init__(
        self,
        trainer: Any,
        total: int | None,
        order: Callable[[int], Sequence[Any]] | None,
        memory_every: int | None,
        *,
        keep_frozen: bool,
    ) -> None:
        self.trainer = trainer
        self.batches: PlannedBatches | None = None
        self._total = total
        self._order = order
        self._memory_every = memory_every
        self._keep_frozen = keep_frozen
        self._trained_weights: TrainedWeights | None = None
        """The weights to save of a model with adapters; None for any other model."""
        self._accumulation = trainer.args.gradient_accumulation_steps
        self._parts = {"model": LatePart(), "optimizer": LatePart(), "scheduler": LatePart()}
        self._state = State(**self._parts, trainer="")
        self._snapshots = TrainerSnapshots()
        self._memory_folder: tempfile.TemporaryDirectory[str] | None = None
        self._document: dict[str, Any] | None = None
        self._weights: list[tuple[float, int]] = []
        self._loss: torch.Tensor | None = None
        """The weighted loss of this rank's samples in the newest step."""
        self._first = True
        """Whether the next loss is the first of a step."""
        self._data: dict[str, Any] = {}
        self._begun = 0.0
        self._trained_s = 0.0
        """Seconds of training in earlier processes."""
        self._place: Topology
        self._checkpoints: CheckpointFolder

    @property
    def step(self) -> int:
        """The number of committed steps."""
        return self._state.step

    # Resuming.

    def resume(self, given: str | bool | None) -> str | bool | None:
        """Find the newest state of this job. A collective.

        Args:
            given: The script's `resume_from_checkpoint`, which is used if the job has not saved a state.

        Returns:
            The `resume_from_checkpoint` for the Trainer.
        """
        restored = self._state.restore()
        self._place = current_topology()
        self._checkpoints = CheckpointFolder(self.trainer.args.output_dir, self._place, setting="output_dir")
        saved = self._checkpoints.newest()
        document = json.loads(self._state.trainer) if restored and self._state.trainer else None
        if saved is not None and (document is None or saved.step > document["state"]["global_step"]):
            return self._from_folder(saved)
        if document is None:
            return self._from_given(given)
        self._take(document)
        if document["finished"]:
            return None
        self._memory_folder = tempfile.TemporaryDirectory(prefix="elastic-trainer-")
        trainer_state(self.trainer, document).save_to_json(str(Path(self._memory_folder.name, STATE_FILE)))
        return self._memory_folder.name

    def _from_folder(self, saved: FrameworkCheckpoint) -> str:
        for part in self._parts.values():
            part.forget()
        set_step(self._state, saved.step)
        self._take(json.loads((saved.folder / SNAPSHOT).read_text(encoding="utf-8")))
        if self._place.rank == 0:
            report.log_to_agent(f"resumed at step {saved.step} from {saved.folder}")
        return str(saved.folder)

    def _from_given(self, given: str | bool | None) -> str | bool | None:
        folder = get_last_checkpoint(self.trainer.args.output_dir) if given is True else given
        if not folder:
            return given  # If there has to be one, the Trainer reports that it is missing.
        snapshot = Path(str(folder), SNAPSHOT)
        if not snapshot.is_file():
            with reporting_config_errors():
                raise ConfigError(
                    f"ElasticTrainer: {folder} was not saved by an ElasticTrainer, so the samples of its steps are not "
                    "known; load its weights with from_pretrained, and train without resume_from_checkpoint"
                )
        document = json.loads(snapshot.read_text(encoding="utf-8"))
        set_step(self._state, document["state"]["global_step"])
        self._take(document)
        return str(folder)

    def _take(self, document: dict[str, Any]) -> None:
        self._document = document
        put_callback_states(self.trainer, document["callbacks"])

    def finished(self) -> TrainOutput | None:
        """Restore a training that an earlier process finished, and return its output; None if it is unfinished."""
        document = self._document
        if document is None or not document["finished"]:
            return None
        self._bind_model(self.trainer.model)
        self.trainer.state = trainer_state(self.trainer, document)
        metrics = dict(document["log_history"][-1]) if document["log_history"] else {}
        metrics.pop("step", None)
        return TrainOutput(document["state"]["global_step"], metrics.get("train_loss", 0.0), metrics)

    def load_model(self, folder: str, model: Any) -> bool:
        """Load the weights from memory if `folder` represents the state in memory."""
        if self._memory_folder is None or folder != self._memory_folder.name:
            return False
        with reporting_config_errors():
            self._bind_model(model)
        return True

    def _bind_model(self, model: Any) -> None:
        if not has_adapters(model):
            self._parts["model"].bind(model)
            return
        if self._trained_weights is None:
            self._trained_weights = TrainedWeights(model, keep_frozen=self._keep_frozen)
        self._parts["model"].bind(self._trained_weights)

    def begun(self, optimizer: Any, scheduler: Any) -> None:
        """Load the rest of the restored state, after the Trainer has created optimizer and scheduler."""
        trainer = self.trainer
        self._bind_model(trainer.model)
        for name, thing in (("optimizer", optimizer), ("scheduler", scheduler)):
            self._parts[name].bind(thing)
        if self._memory_folder is not None:
            self._memory_folder.cleanup()
            self._memory_folder = None
        if self._document is not None:
            self._require_same_frozen(self._document.get("frozen", ""))
            log = self._document["log"]
            trainer._tr_loss += log["loss"]
            trainer._total_loss_scalar = log["loss_before"]
            trainer._globalstep_last_logged = log["since_step"]
            trainer._initial_global_step = log["first_step"]
            trainer.state.total_flos = log["flos"]
            self._trained_s = log["trained_s"]
        self._begun = time.monotonic()
        trainer.state.train_batch_size = trainer.args.train_batch_size

    def _require_same_frozen(self, saved: str) -> None:
        if saved and self._trained_weights is not None and self._trained_weights.frozen_digest() not in ("", saved):
            with reporting_config_errors():
                raise ConfigError(
                    "ElasticTrainer: the frozen weights of the model differ from those of the checkpoint, which has "
                    "only the trained ones; load them from a file in each process (from_pretrained), or start another "
                    "job with ElasticTrainer(keep_frozen=True)"
                )

    # Data.

    def plan(self, dataset_length: int, batch_size: int, *, shuffle: bool, drop_last: bool) -> PlannedBatches:
        """Plan which samples each step takes, and let the Trainer accumulate as many batches as a step needs."""
        trainer, place = self.trainer, self._place
        seed = trainer.args.seed if trainer.args.data_seed is None else trainer.args.data_seed
        data = {"length": dataset_length, "seed": seed if shuffle else None, "drop_last": drop_last}
        if self._document is not None:
            self._require_same(self._document["data"], data)
        total = self._total or (self._document or {}).get("data", {}).get("total")
        if total is None:
            total = batch_size * self._accumulation * place.world_size
            if place.rank == 0:
                source = f"{batch_size} x {self._accumulation} x {place.world_size} workers"
                report.log_to_agent(
                    f"each step takes {total} samples at any world size (computed as {source}); to fix this in the "
                    f"script, pass global_batch={total}"
                )
        self._data = {**data, "total": total}
        self.batches = PlannedBatches(
            dataset_length,
            total,
            batch_size,
            rank=place.rank,
            world=place.world_size,
            seed=data["seed"],
            order=self._order,
            drop_last=drop_last,
        )
        trainer.args.gradient_accumulation_steps = self.batches.per_step
        return self.batches

    def _require_same(self, saved: dict[str, Any], data: dict[str, Any]) -> None:
        if self._total is not None:
            data = {**data, "total": self._total}
        names = {
            "length": "use the same dataset",
            "seed": "set the same seed, data_seed and train_sampling_strategy in TrainingArguments",
            "drop_last": "set the same dataloader_drop_last in TrainingArguments",
            "total": "set the same global_batch",
        }
        for name, value in data.items():
            if value != saved[name]:
                raise ConfigError(
                    f"ElasticTrainer: the checkpoint was made with {name} {saved[name]}, but this run has {value}, so "
                    f"its steps would take other samples; {names[name]}, or use another output_dir and job ID"
                )

    def begin_epoch(self) -> None:
        """Let the next loop over the data cover what remains of the Trainer's current epoch."""
        assert self.batches is not None
        self.batches.begin(*divmod(self.trainer.state.global_step, self.batches.steps))

    @property
    def epochs_done(self) -> float:
        """The number of epochs trained so far, with the fraction of the current one."""
        assert self.batches is not None
        return float(self.trainer.state.global_step / self.batches.steps)

    # Losses.

    def begin_step(self, items: Callable[[Any], int | None], taken: Sequence[Any]) -> None:
        """Weight the micro-batches of the next step, so that their gradients add up to that of the whole step.

        Args:
            items: Returns the number of items over which the loss of a batch is the mean; None for its samples.
            taken: The batches that this rank has taken for the step.
        """
        assert self.batches is not None
        micros = self.batches.micro_batches(self.trainer.state.global_step % self.batches.steps)
        if len(micros) != len(taken):
            raise ConfigError(
                f"ElasticTrainer: this step has {len(micros)} batches, but the Trainer took {len(taken)}; do not "
                "change gradient_accumulation_steps during training"
            )
        counts = [items(batch) for batch in taken]
        sizes = [len(micro.positions) if count is None else count for count, micro in zip(counts, micros, strict=True)]
        if any(count is None for count in counts):
            weights = [micro.weight for micro in micros]
        else:
            own = [size if micro.size else 0 for size, micro in zip(sizes, micros, strict=True)]
            whole = self._sum([float(sum(own))])[0]
            weights = [size * self._place.world_size / max(whole, 1.0) for size in own]
        self._weights = list(zip(weights, sizes, strict=True))
        self._first = True

    def next_weight(self) -> tuple[float, int]:
        """Return the weight of the mean loss of the next micro-batch, and its number of items."""
        return self._weights.pop(0)

    def add_loss(self, loss: torch.Tensor) -> None:
        """Add the weighted loss of a micro-batch, for the progress display."""
        self._loss = loss if self._first or self._loss is None else self._loss + loss
        self._first = False

    def _sum(self, values: list[float]) -> list[float]:
        """Return the sum of each value over all ranks."""
        if self._place.alone:
            return values
        box = torch.tensor(values, dtype=torch.float64, device="cpu")
        dist.all_reduce(box, group=self._place.group)
        return [float(value) for value in box]

    # Committing.

    def commit(self) -> None:
        """Commit the completed step, unless it is committed already. A planned stop ends the process here."""
        if self.trainer.state.global_step > self._state.step:
            self._commit(finished=False)

    def finish(self) -> None:
        """Commit the last step, and record that training has finished."""
        self._commit(finished=True)
        self._state.finish()

    def _commit(self, *, finished: bool) -> None:
        loss = None
        if self._trained_weights is not None:
            self._trained_weights.note_trained()
        if report.end() is not None:  # No other launcher keeps it in memory or requests a planned stop.
            self._state.trainer, loss = self._snapshot(finished=finished)
        self._state.commit(memory_every=self._memory_every, loss=loss, total=self.trainer.state.max_steps)

    def _snapshot(self, *, finished: bool) -> tuple[str, float]:
        """Return the state of the Trainer as text, and the loss of the step; the same on all ranks. A collective."""
        trainer, world = self.trainer, self._place.world_size
        step_loss = 0.0 if self._loss is None else float(self._loss)
        own = [float(trainer._tr_loss), step_loss, float(trainer.current_flos)]
        pending, loss, flos = self._sum(own)
        log = {
            "loss": pending / world,
            "loss_before": trainer._total_loss_scalar,
            "since_step": trainer._globalstep_last_logged,
            "first_step": getattr(trainer, "_initial_global_step", 0),  # Before 5.19 the mean is over all steps.
            "trained_s": self._trained_s + time.monotonic() - self._begun,
            "flos": trainer.state.total_flos + flos,
        }
        frozen = "" if self._trained_weights is None else self._trained_weights.frozen_digest()
        text = self._snapshots.take(trainer, data=self._data, log=log, finished=finished, frozen=frozen)
        return text, loss / world

    def count_earlier_time(self, logs: dict[str, Any]) -> None:
        """Include the time of earlier processes in the run time and the speed that are logged at the end."""
        own_s = logs["train_runtime"]
        logs["train_runtime"] = round(own_s + self._trained_s, 4)
        for name in ("train_samples_per_second", "train_steps_per_second"):
            if name in logs:
                logs[name] = round(logs[name] * own_s / max(logs["train_runtime"], 1e-4), 3)

    def save_checkpoint(self, save: Callable[[], None]) -> Path:
        """Let the Trainer save its `checkpoint-*` directory, complete or absent; return its path. A collective."""
        trainer = self.trainer
        args, step, name = trainer.args, trainer.state.global_step, f"checkpoint-{trainer.state.global_step}"
        output_dir, push = args.output_dir, args.push_to_hub
        snapshot, _ = self._snapshot(finished=False)
        best = Path(output_dir, f"checkpoint-{trainer.state.best_global_step}")

        def write(staged: Path) -> None:
            args.output_dir, args.push_to_hub = str(staged.parent), False
            try:
                save()
                if trainer.state.best_global_step and (best.exists() or best.name == name):
                    trainer.state.best_model_checkpoint = str(best)
            finally:
                args.output_dir, args.push_to_hub = output_dir, push
            if self._place.rank == 0:
                trainer.state.save_to_json(str(staged / STATE_FILE))
                (staged / SNAPSHOT).write_text(snapshot, encoding="utf-8")

        return self._checkpoints.save(name, step, write)
