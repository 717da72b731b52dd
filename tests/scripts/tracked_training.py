"""Twelve steps of training that log to W&B, MLflow and TensorBoard, once for each way to write them.

Each function is what a replica runs. It logs each step, saves at steps 4 and 8, and leaves it to the world's schedule
to end it in between.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

import elastic
from elastic.integrations import trackers
from elastic.testing import reached, record
from tests.support.tracker_files import await_wandb

STEPS: Final = 12
SAVE_EVERY: Final = 4
KILLED_AT: Final = (7, 10)


def script(folder: str) -> None:
    """With our library, and the trackers' own calls."""
    import mlflow
    import wandb

    ctx = elastic.init()
    model = torch.nn.Linear(2, 1)
    state = elastic.State(model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    state.restore()
    tracked = trackers.prepare(state.step)
    record(state.step)
    if ctx.rank == 0:
        wandb.init(project="digits")
        mlflow.start_run()
    writer = tracked.summary_writer()
    while state.step < STEPS:
        step, values = state.step + 1, {"loss": 1 / (state.step + 1)}
        if new := tracked.new_to_wandb(values, step):
            wandb.log(new, step=step)
        if new := tracked.new_to_mlflow(values, step):
            mlflow.log_metrics(new, step=step)
        if writer is not None:
            writer.add_scalar("loss", values["loss"], step)
            writer.flush()
        state.commit(every=SAVE_EVERY)
        _pause(folder, step, "_step")
    state.finish()


def transformers(folder: str) -> None:
    """Hugging Face's Trainer with `report_to`."""
    from transformers import Trainer
    from transformers.trainer_utils import get_last_checkpoint

    output = f"{folder}/output"
    last = get_last_checkpoint(output) if os.path.isdir(output) else None
    step = int(last.rpartition("-")[2]) if last else 0
    trainer = _trainer(folder, Trainer)
    trackers.prepare(step).attach(trainer.callback_handler.callbacks)
    trainer.train(resume_from_checkpoint=last)


def elastic_trainer(folder: str) -> None:
    """The same with ours, which keeps steps in memory, and continues the trackers' runs without further calls."""
    from elastic.integrations.transformers import ElasticTrainer

    _trainer(folder, partial(ElasticTrainer, memory_every=SAVE_EVERY)).train()


def _trainer(folder: str, make: Callable[..., Any]) -> Any:
    from transformers import TrainerCallback, TrainingArguments

    class Pause(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            record(state.global_step)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            _pause(folder, state.global_step, "train/global_step")

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
            predicted = self.layer(x)
            return {"loss": torch.nn.functional.mse_loss(predicted, labels), "logits": predicted}

    args = TrainingArguments(
        output_dir=f"{folder}/output",
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=3,
        use_cpu=True,
        ddp_backend="gloo",
        disable_tqdm=True,
        report_to=["wandb", "mlflow", "tensorboard"],
    )
    data = [{"x": torch.ones(2), "labels": torch.zeros(1)}] * 64
    return make(model=Model(), args=args, train_dataset=data, eval_dataset=data[:8], callbacks=[Pause()])


def lightning(folder: str) -> None:
    """Lightning with its own loggers."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint

    saving = ModelCheckpoint(f"{folder}/saved", every_n_train_steps=SAVE_EVERY, save_last=True)
    options = {"num_nodes": int(os.environ["WORLD_SIZE"]), "devices": 1, "strategy": "ddp", "callbacks": [saving]}
    trainer, model, data = _lightning_trainer(folder, pl.Trainer, options)
    last = Path(folder, "saved", "last.ckpt")
    step = torch.load(last, weights_only=False)["global_step"] if last.exists() else 0
    trackers.prepare(step).attach(trainer.loggers)
    trainer.fit(model, data, data, ckpt_path=str(last) if last.exists() else None)


def elastic_lightning(folder: str) -> None:
    """The same with our Trainer, which keeps steps in memory, and continues the runs without further calls."""
    from elastic.integrations.lightning import Trainer

    options = {"memory_every": SAVE_EVERY, "enable_checkpointing": False, "callbacks": []}
    trainer, model, data = _lightning_trainer(folder, Trainer, options)
    trainer.fit(model, data, data)


def _lightning_trainer(folder: str, make: Callable[..., Any], options: dict[str, Any]) -> tuple[Any, Any, Any]:
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback
    from lightning.pytorch.loggers import MLFlowLogger, TensorBoardLogger, WandbLogger

    class Model(pl.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 2})
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
            loss = self.layer(batch).square().mean()
            self.log("loss", loss)
            return loss  # type: ignore[no-any-return]

        def validation_step(self, batch: torch.Tensor, _: int) -> None:
            self.log("val_loss", self.layer(batch).square().mean(), sync_dist=True)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    class Pause(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, *_: Any) -> None:
            record(trainer.global_step)

        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            _pause(folder, trainer.global_step, "trainer/global_step")

    warnings.simplefilter("ignore")
    loggers = [
        WandbLogger(project="digits", save_dir=folder),
        MLFlowLogger("digits", tracking_uri=os.environ["MLFLOW_TRACKING_URI"]),
        TensorBoardLogger(f"{folder}/lightning"),
    ]
    trainer = make(
        accelerator="cpu",
        max_steps=STEPS,
        log_every_n_steps=1,
        val_check_interval=3,
        logger=loggers,
        enable_progress_bar=False,
        enable_model_summary=False,
        **{**options, "callbacks": [*options["callbacks"], Pause()]},
    )
    rows: Any = torch.ones(64, 2)
    data: torch.utils.data.DataLoader[torch.Tensor] = torch.utils.data.DataLoader(rows, batch_size=4)
    return trainer, Model(), data


def accelerate(folder: str) -> None:
    """Accelerate with `log_with`."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with=["wandb", "mlflow", "tensorboard"], project_dir=folder)
    saved = Path(folder, "step")
    step = int(saved.read_text()) if saved.exists() else 0
    record(step)
    tracked = trackers.prepare(step)
    accelerator.init_trackers("digits")
    tracked.attach(accelerator.trackers)
    while step < STEPS:
        step += 1
        accelerator.log({"loss": 1 / step}, step=step)
        accelerator.wait_for_everyone()
        if step % SAVE_EVERY == 0 and accelerator.is_main_process:
            saved.write_text(str(step))
        _pause(folder, step, "_step")
    accelerator.end_training()


def elastic_accelerator(folder: str) -> None:
    """Our Accelerator with `log_with`."""
    from elastic.integrations.accelerate import ElasticAccelerator

    accelerator = ElasticAccelerator(
        log_with=["wandb", "mlflow", "tensorboard"], project_dir=folder, memory_every=SAVE_EVERY, total_batch_size=4
    )
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows: Any = torch.ones(4 * STEPS, 2)
    loader: Any = torch.utils.data.DataLoader(rows, batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.init_trackers("digits")
    accelerator.restore()
    record(accelerator.elastic.step)
    for _ in accelerator.epochs(1):
        for batch in loader:
            loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            if accelerator.sync_gradients:
                step = accelerator.elastic.step + 1
                accelerator.log({"loss": loss.item()}, step=step)
                _pause(folder, step, "_step")
    accelerator.end_training()


def _pause(folder: str, step: int, step_name: str) -> None:
    """Let a world end where it should, when W&B has written what a killed worker would take with it."""
    if step in KILLED_AT and os.environ["RANK"] == "0":
        await_wandb(Path(folder), step - 2, step_name)
    reached(step)
