"""Twelve steps of training that log to W&B, MLflow and TensorBoard, once for each way to write them.

Each function is what a replica runs. It logs each step, saves at steps 4 and 8, and leaves it to the world's schedule
to end it in between.
"""

from __future__ import annotations

import os
import warnings
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
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Pause(TrainerCallback):  # type: ignore[misc]
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
    trainer = Trainer(model=Model(), args=args, train_dataset=data, eval_dataset=data[:8], callbacks=[Pause()])
    last = get_last_checkpoint(args.output_dir) if os.path.isdir(args.output_dir) else None
    step = int(last.rpartition("-")[2]) if last else 0
    record(step)
    trackers.prepare(step).attach(trainer.callback_handler.callbacks)
    trainer.train(resume_from_checkpoint=last)


def lightning(folder: str) -> None:
    """Lightning with its own loggers."""
    import lightning.pytorch as pl
    from lightning.pytorch.callbacks import Callback, ModelCheckpoint
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
        def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
            _pause(folder, trainer.global_step, "trainer/global_step")

    warnings.simplefilter("ignore")
    loggers = [
        WandbLogger(project="digits", save_dir=folder),
        MLFlowLogger("digits", tracking_uri=os.environ["MLFLOW_TRACKING_URI"]),
        TensorBoardLogger(f"{folder}/lightning"),
    ]
    saving = ModelCheckpoint(f"{folder}/saved", every_n_train_steps=SAVE_EVERY, save_last=True)
    trainer = pl.Trainer(
        accelerator="cpu",
        num_nodes=int(os.environ["WORLD_SIZE"]),
        devices=1,
        strategy="ddp",
        max_steps=STEPS,
        log_every_n_steps=1,
        val_check_interval=3,
        logger=loggers,
        callbacks=[saving, Pause()],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    last = Path(folder, "saved", "last.ckpt")
    step = torch.load(last, weights_only=False)["global_step"] if last.exists() else 0
    record(step)
    trackers.prepare(step).attach(trainer.loggers)
    rows: Any = torch.ones(64, 2)
    data: torch.utils.data.DataLoader[torch.Tensor] = torch.utils.data.DataLoader(rows, batch_size=4)
    trainer.fit(Model(), data, data, ckpt_path=str(last) if last.exists() else None)


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


def _pause(folder: str, step: int, step_name: str) -> None:
    """Let a world end where it should, when W&B has written what a killed worker would take with it."""
    if step in KILLED_AT and os.environ["RANK"] == "0":
        await_wandb(Path(folder), step - 2, step_name)
    reached(step)
