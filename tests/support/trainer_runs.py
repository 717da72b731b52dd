"""Trainings with Hugging Face's Trainer in float64, for `elastic.testing.run`."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import Dataset

from elastic.testing import reached, record

SAMPLES = 50
CLASSES = 4


class Points(Dataset[dict[str, torch.Tensor]]):
    """Points of a plane with a class each; each sample knows its index."""

    def __init__(self, samples: int = SAMPLES) -> None:
        made = torch.Generator().manual_seed(7)
        self._x = torch.randn(samples, 6, generator=made, dtype=torch.float64)
        self._y = torch.randint(CLASSES, (samples,), generator=made)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": self._x[index], "labels": self._y[index], "index": torch.tensor(index)}


class Tokens(Points):
    """Sequences of different lengths: what is beyond the end of one has the label -100."""

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        labels = torch.randint(CLASSES, (5,), generator=made)
        labels[1 + index % 5 :] = -100
        x = torch.randn(5, 6, generator=made, dtype=torch.float64)
        return {"x": x, "labels": labels, "index": torch.tensor(index)}


class Classifier(torch.nn.Module):
    """A small network that remembers which samples it was trained with."""

    def __init__(self, seed: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, CLASSES)).double()
        self.used: list[int] = []

    def forward(
        self, x: torch.Tensor, index: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """Without labels, which the Trainer keeps back for a `compute_loss_func`, there is no loss."""
        logits = self.layers(x)
        if self.training:
            self.used += index.tolist()
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten()), "logits": logits}


class NextLabels(Classifier):
    """As the causal language models of the framework: the first label of a sequence is no target."""

    loss_type = "ForCausalLM"

    def forward(
        self, x: torch.Tensor, index: torch.Tensor, labels: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        return super().forward(x[:, :-1], index, None if labels is None else labels[:, 1:])


def with_adapters(base: str) -> Any:
    """A network whose weights are frozen, with LoRA beside them. `base` "random" is another one in each process."""
    from peft import LoraConfig, get_peft_model

    frozen = Classifier(os.getpid() if base == "random" else 3)
    torch.manual_seed(4)
    return get_peft_model(frozen, LoraConfig(r=2, target_modules=["layers.0", "layers.2"]))


def summed(outputs: Any, labels: torch.Tensor, num_items_in_batch: torch.Tensor) -> torch.Tensor:
    """A `compute_loss_func` as the framework's documentation has it."""
    return torch.nn.functional.cross_entropy(outputs["logits"], labels, reduction="sum") / num_items_in_batch


def own_trainer() -> type:
    """A Trainer of a user's own, with a loss of its own, made elastic by the mixin."""
    from transformers import Trainer

    from elastic.integrations.transformers import ElasticTrainerMixin

    class Own(Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
            outputs = model(**inputs)
            loss = torch.nn.functional.cross_entropy(outputs["logits"], inputs["labels"])
            return (loss, outputs) if return_outputs else loss

    class OwnElastic(ElasticTrainerMixin, Own):
        pass

    return OwnElastic


def train(output_dir: str, options: dict[str, Any]) -> dict[str, Any]:
    """Train, record the samples of each step that is complete, and return what is left at the end.

    `options`: `tokens` ("next" for a loss of the next labels), `global_batch`, `patience`, `loss` ("func" or "own"),
    `adapters` ("same" or "random"), `keep_frozen`, and arguments of `TrainingArguments`.
    """
    from transformers import TrainerCallback, TrainingArguments
    from transformers.trainer_callback import EarlyStoppingCallback

    from elastic.integrations.transformers import ElasticTrainer

    torch.set_num_threads(1)
    options = dict(options)
    tokens, global_batch = options.pop("tokens", False), options.pop("global_batch", None)
    patience, loss = options.pop("patience", None), options.pop("loss", "")
    adapters, keep_frozen = options.pop("adapters", ""), options.pop("keep_frozen", False)
    model: Any = with_adapters(adapters) if adapters else NextLabels() if tokens == "next" else Classifier()

    class Steps(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            batches = trainer._elastic.batches
            own = [micro.size for micro in batches.micro_batches((state.global_step - 1) % batches.steps)]
            sizes = [max(size, 1) for size in own]
            at, used = 0, []
            for size, counted in zip(sizes, own, strict=True):
                used += model.used[at : at + counted]
                at += size
            assert at == len(model.used)
            model.used.clear()
            first_weight = float(next(model.parameters()).detach().flatten()[0])
            record([state.global_step, args.world_size, used, *([first_weight] if adapters else [])])
            reached(state.global_step)

    arguments = TrainingArguments(
        output_dir,
        **{
            "per_device_train_batch_size": 3,
            "num_train_epochs": 2,
            "learning_rate": 0.01,
            "warmup_steps": 3,
            "logging_steps": 3,
            "save_strategy": "no",
            "eval_strategy": "no",
            "disable_tqdm": True,
            "report_to": [],
            "use_cpu": True,
            "dataloader_pin_memory": False,
            "seed": 5,
            **options,
        },
    )
    callbacks: list[Any] = [Steps()]
    if patience is not None:
        callbacks.append(EarlyStoppingCallback(early_stopping_patience=patience))
    data = Tokens if tokens else Points
    trainer: Any = (own_trainer() if loss == "own" else ElasticTrainer)(
        global_batch=global_batch,
        keep_frozen=keep_frozen,
        model=model,
        args=arguments,
        train_dataset=data(),
        eval_dataset=data(20),
        callbacks=callbacks,
        **({"compute_loss_func": summed} if loss == "func" else {}),
    )
    output = trainer.train()
    return {
        "weights": torch.nn.utils.parameters_to_vector(model.parameters()).detach(),
        "step": output.global_step,
        "logs": [
            {name: entry[name] for name in ("loss", "learning_rate", "eval_loss", "step", "epoch") if name in entry}
            for entry in trainer.state.log_history
        ],
        "best": [trainer.state.best_metric, trainer.state.best_global_step],
    }
