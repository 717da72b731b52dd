"""Functions for `elastic.testing.run` that train with Lightning's real Trainer, as its users write scripts."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities import CombinedLoader
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from elastic.integrations.lightning import Trainer
from elastic.testing import reached, record

SAMPLES = 50
QUIET: dict[str, Any] = {
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "accelerator": "cpu",
}


def data(samples: int = SAMPLES) -> TensorDataset:
    """Each sample with its number, so that a test can count them."""
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(1))
    return TensorDataset(torch.arange(samples), x, x.sum(1, keepdim=True).square())


class Net(lightning.LightningModule):
    """A small network in float64."""

    def __init__(self, scheduler: str = "") -> None:
        super().__init__()
        self.scheduler = scheduler
        self.largest = 0
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor | None:
        _, x, y = batch
        self.largest = max(self.largest, len(x))
        loss = mse_loss(self.net(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        _, x, y = batch
        self.log("val_loss", mse_loss(self.net(x), y))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        schedule: Any
        if self.scheduler == "step":
            schedule = torch.optim.lr_scheduler.OneCycleLR(
                optimizer, max_lr=0.05, total_steps=int(self.trainer.estimated_stepping_batches) + 1
            )
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
        if self.scheduler == "epoch":
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]
        if self.scheduler == "plateau":
            schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.5)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "monitor": "val_loss"}}
        return optimizer


class ManualNet(Net):
    """Two optimizers, and a step of the second one at every other batch."""

    def __init__(self, scheduler: str = "") -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        _, x, y = batch
        weight, bias = self.optimizers()
        loss = mse_loss(self.net(x), y)
        weight.zero_grad()
        self.manual_backward(loss)
        weight.step()
        if batch_idx % 2:
            bias.step()
            bias.zero_grad()

    def configure_optimizers(self) -> Any:
        weights = [p for p in self.parameters() if p.dim() > 1]
        return torch.optim.SGD(weights, lr=0.05), torch.optim.Adam([p for p in self.parameters() if p.dim() == 1])


class DropoutNet(Net):
    """Draws random numbers in each step."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        _, x, y = batch
        return mse_loss(self.net(torch.nn.functional.dropout(x, 0.3)), y)


class TwoSets(Net):
    """Each batch is a dict of two loaders' batches."""

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (_, x, y), (_, x2, y2) = batch["a"], batch["b"]
        return mse_loss(self.net(x), y) + mse_loss(self.net(x2), y2) / 2


class EvaluatedNet(Net):
    """Records which samples each rank evaluates at which step."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("val_loss", batch)

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.evaluate("test_loss", batch)

    def evaluate(self, name: str, batch: Any) -> None:
        numbers, x, y = batch
        self.log(name, mse_loss(self.net(x), y), sync_dist=True)
        if not self.trainer.sanity_checking:
            record([name, self.trainer.global_step, numbers.tolist()])

    def on_validation_end(self) -> None:
        if self.trainer.is_global_zero and not self.trainer.sanity_checking:
            record(["metric", self.trainer.global_step, float(self.trainer.callback_metrics["val_loss"])])


class Recorder(lightning.Callback):
    """Records which samples each step had in which generation, and lets the test end a world there."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loader = trainer.train_dataloader["a"] if isinstance(batch, dict) else trainer.train_dataloader
        numbers = batch["a"][0] if isinstance(batch, dict) else batch[0]
        complete = (batch_idx + 1) % trainer.accumulate_grad_batches == 0 or trainer.is_last_batch
        step = trainer.global_step + (not complete)
        if loader.order.samples:
            record([trainer.current_epoch, step, int(os.environ["ELASTIC_GENERATION"]), numbers.tolist()])
        if complete:
            reached(step)


class Counted(lightning.Callback):
    """Lists the epoch and the number of each batch."""

    def __init__(self) -> None:
        self.batches: list[tuple[int, int]] = []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.batches.append((trainer.current_epoch, batch_idx))


class Sets(lightning.LightningDataModule):
    """The same data from a data module, which counts how often it was restored."""

    def __init__(self, batch_size: int, shuffle: bool) -> None:
        super().__init__()
        self.batch_size, self.shuffle = batch_size, shuffle
        self.restored = 0

    def setup(self, stage: str) -> None:
        self.training, self.validation = data(), data(11)

    def train_dataloader(self) -> Any:
        return DataLoader(self.training, batch_size=self.batch_size, shuffle=self.shuffle)

    def val_dataloader(self) -> Any:
        return DataLoader(self.validation, batch_size=5)

    def state_dict(self) -> dict[str, Any]:
        return {"restored": self.restored}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.restored = state_dict["restored"] + 1


class Reached(lightning.Callback):
    """Lets the test end a world at a step."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        reached(trainer.global_step)


def train(
    epochs: int | None = 2,
    batch_size: int = 4,
    scheduler: str = "",
    accumulate: int = 1,
    shuffle: bool = True,
    elastic_options: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    callbacks: str = "",
    validate: bool = False,
    net: str = "Net",
    drop_last: bool = False,
    data_module: bool = False,
    workers: dict[str, Any] | None = None,
) -> Any:
    """Train, and return the parameters, the global step and the epoch."""
    warnings.filterwarnings("ignore")
    lightning.seed_everything(3, verbose=False)
    torch.set_default_dtype(torch.float64)
    model = {"Net": Net, "ManualNet": ManualNet, "TwoSets": TwoSets, "DropoutNet": DropoutNet}[net](scheduler)
    chosen: list[Any] = [Recorder()]
    if "stop" in callbacks:
        chosen.append(EarlyStopping("val_loss", patience=1, min_delta=0.05))
    checkpoint = None
    if "best" in callbacks:
        checkpoint = ModelCheckpoint(monitor="val_loss", save_top_k=2, every_n_epochs=1)
        chosen.append(checkpoint)
    if "often" in callbacks:
        chosen.append(ModelCheckpoint(every_n_train_steps=2))
    trainer = Trainer(
        max_epochs=epochs,
        accumulate_grad_batches=accumulate,
        callbacks=chosen,
        enable_checkpointing="best" in callbacks or "often" in callbacks,
        precision="64-true",
        **QUIET,
        **(elastic_options or {}),
        **(options or {}),
    )
    val = DataLoader(data(11), batch_size=5) if validate else None
    loader: Any = DataLoader(data(), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last, **(workers or {}))
    if net == "TwoSets":
        second = DataLoader(data(60), batch_size=batch_size, shuffle=shuffle, drop_last=drop_last)
        loader = CombinedLoader({"a": loader, "b": second}, "min_size")
    sets = Sets(batch_size, shuffle) if data_module else None
    if sets:
        trainer.fit(model, datamodule=sets)
    else:
        trainer.fit(model, loader, val)
    return {
        "weights": torch.nn.utils.parameters_to_vector(model.parameters()).detach(),
        "step": trainer.global_step,
        "epoch": trainer.current_epoch,
        "lr": trainer.optimizers[0].param_groups[0]["lr"] if trainer.optimizers else 0.0,
        "largest": model.largest,
        "restored": sets.restored if sets else 0,
        "best": sorted(os.path.basename(path) for path in checkpoint.best_k_models) if checkpoint else [],
    }


def train_by_cli(folder: str) -> Any:
    """Train as `main.py fit --trainer.max_epochs=2 ...` does, and return the parameters."""
    warnings.filterwarnings("ignore")
    torch.set_default_dtype(torch.float64)
    options = {
        "max_epochs": "2",
        "global_batch": "12",
        "accelerator": "cpu",
        "precision": "64-true",
        "share_evaluation": "true",
        "default_root_dir": folder,
        "enable_progress_bar": "false",
        "enable_model_summary": "false",
        "logger": "false",
    }
    words = [f"--trainer.{name}={value}" for name, value in options.items()]
    cli = LightningCLI(
        Net,
        Sets,
        trainer_class=Trainer,
        trainer_defaults={"callbacks": [Recorder()]},
        seed_everything_default=3,
        args=["fit", *words, "--data.batch_size=4", "--data.shuffle=true"],
    )
    return {
        "weights": torch.nn.utils.parameters_to_vector(cli.model.parameters()).detach(),
        "step": cli.trainer.global_step,
    }


def evaluate(**options: Any) -> float:
    """Train with a validation at every other step, test the result, and return the metric of the test."""
    warnings.filterwarnings("ignore")
    lightning.seed_everything(3, verbose=False)
    torch.set_default_dtype(torch.float64)
    model = EvaluatedNet("plateau")
    trainer = Trainer(
        max_epochs=2,
        global_batch=12,
        val_check_interval=2,
        callbacks=[Reached()],
        enable_checkpointing=False,
        precision="64-true",
        **QUIET,
        **options,
    )
    trainer.fit(model, DataLoader(data(), batch_size=4, shuffle=True), DataLoader(data(11), batch_size=5))
    (metrics,) = trainer.test(model, DataLoader(data(7), batch_size=2), verbose=False)
    return float(metrics["test_loss"])


def resumed_from_another_trainer(
    folder: str, batch_size: int, every: dict[str, Any], validate: bool = False
) -> list[tuple[int, int]]:
    """Train an epoch with Lightning's own Trainer, resume from its first file, and return the batches of each epoch."""
    warnings.filterwarnings("ignore")
    val = DataLoader(data(5), batch_size=5) if validate else None
    files = ModelCheckpoint(dirpath=folder, filename="{step}", save_top_k=-1, **every)
    plain = lightning.Trainer(max_epochs=1, devices=1, callbacks=[files], **QUIET)
    plain.fit(Net(), DataLoader(data(), batch_size=batch_size), val)
    first = min(Path(folder).iterdir(), key=lambda path: int(path.stem.partition("=")[2]))
    counted = Counted()
    trainer = Trainer(max_epochs=3, global_batch=12, callbacks=[counted], enable_checkpointing=False, **QUIET)
    trainer.fit(Net(), DataLoader(data(), batch_size=4), val, ckpt_path=first)
    return counted.batches


def refused(what: str) -> None:
    """Ask for what cannot be exact."""
    warnings.filterwarnings("ignore")
    every: dict[str, dict[str, Any]] = {
        "distributed": {"use_distributed_sampler": True},
        "fsdp": {"strategy": "fsdp"},
    }
    trainer = Trainer(max_epochs=1, enable_checkpointing=False, **QUIET, **every.get(what, {}))
    loaders: dict[str, Any] = {
        "iterable": DataLoader(Endless(), batch_size=4),
        "weighted": DataLoader(data(), batch_size=4, sampler=WeightedRandomSampler([1.0] * SAMPLES, SAMPLES)),
        "cycle": {"a": DataLoader(data(), batch_size=4), "b": DataLoader(data(20), batch_size=4)},
    }
    model = TwoSets() if what == "cycle" else Net()
    trainer.fit(model, loaders.get(what, DataLoader(data(), batch_size=10)))
    if what == "twice":
        trainer.fit(model, DataLoader(data(), batch_size=10))


class Endless(IterableDataset[Any]):
    """Data without a place."""

    def __iter__(self) -> Any:
        return iter(data())
