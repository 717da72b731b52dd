"""Trains with Accelerate, for `elastic.testing.run`: loops like those of its examples, in float64, without dropout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from accelerate.utils import DataLoaderConfiguration, ProjectConfiguration
from torch.utils.data import DataLoader, TensorDataset

import elastic
from elastic.integrations.accelerate import ElasticAccelerator
from elastic.testing import reached, record

SAMPLES = 53


class Counter:
    """Something of the script's own that is registered for checkpointing."""

    def __init__(self) -> None:
        self.calls = 0

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


def dataset() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, 6, dtype=torch.float64, generator=generator)
    return TensorDataset(torch.arange(SAMPLES), x, x.sin().sum(1, keepdim=True))


def parts(seed: int = 0) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=0.02)


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    """It raises at one step more than it has, so that it tells how often it is stepped."""
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=70)


def weights(model: Any) -> torch.Tensor:
    return torch.nn.utils.parameters_to_vector(model.parameters()).detach()


def train(epochs: int, accumulate: int = 1, **options: Any) -> torch.Tensor:
    """As Accelerate's nlp_example with gradient accumulation: train, then evaluate in each epoch."""
    accelerator = ElasticAccelerator(gradient_accumulation_steps=accumulate, **options)
    model, optimizer = parts()
    scheduler = one_cycle(optimizer)
    loader = DataLoader(dataset(), batch_size=4, shuffle=True)
    test_loader = DataLoader(dataset(), batch_size=5)
    model, optimizer, loader, test_loader, scheduler = accelerator.prepare(
        model, optimizer, loader, test_loader, scheduler
    )
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    for epoch in accelerator.epochs(epochs):
        model.train()
        used: list[int] = []
        for numbers, inputs, targets in loader:
            reached(accelerator.elastic.step)
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            used += accelerator.gather_for_metrics(numbers).tolist()
            if accelerator.sync_gradients:
                counter.calls += 1
                if accelerator.is_main_process:
                    record([epoch, accelerator.elastic.step + 1, used, scheduler.get_last_lr()[0], counter.calls])
                used = []
        model.eval()
        seen = []
        for numbers, inputs, _ in test_loader:
            with torch.no_grad():
                model(inputs)
            seen += accelerator.gather_for_metrics(numbers).tolist()
        assert sorted(seen) == list(range(SAMPLES))
    return weights(accelerator.unwrap_model(model))


def train_without_accumulate(epochs: int, **options: Any) -> torch.Tensor:
    """As a loop that knows nothing of accumulation: it always clips, and reads its data in order, with two workers."""
    accelerator = ElasticAccelerator(**options)
    model, optimizer = parts()
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(dataset(), batch_size=4, num_workers=2, persistent_workers=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    for epoch in accelerator.epochs(epochs):
        used: list[int] = []
        for numbers, inputs, targets in loader:
            reached(accelerator.elastic.step)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
            used += accelerator.gather_for_metrics(numbers).tolist()
            if accelerator.sync_gradients:
                if accelerator.is_main_process:
                    record([epoch, accelerator.elastic.step + 1, used, scheduler.get_last_lr()[0]])
                used = []
    return weights(accelerator.unwrap_model(model))


def train_and_save(epochs: int, project: str, stop: int | None = None) -> torch.Tensor:
    """Save every second step as Accelerate does; go on from the newest of another job, if there is one."""
    accelerator = ElasticAccelerator(
        total_batch_size=12,
        project_config=ProjectConfiguration(project, automatic_checkpoint_naming=True, total_limit=2),
    )
    model, optimizer = parts(seed=accelerator.process_index)
    scheduler = one_cycle(optimizer)
    loader = DataLoader(dataset(), batch_size=4, shuffle=True, generator=torch.Generator().manual_seed(5))
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    counter = Counter()
    accelerator.register_for_checkpointing(counter)
    if (Path(project) / "checkpoints").exists():
        accelerator.load_state()
        record({"loaded": accelerator.elastic.step, "epoch": accelerator.elastic.epoch, "calls": counter.calls})
    for epoch in accelerator.epochs(epochs):
        for _, inputs, targets in accelerator.skip_first_batches(loader, 0):
            reached(accelerator.elastic.step)
            with accelerator.accumulate(model):
                accelerator.backward(torch.nn.functional.mse_loss(model(inputs), targets))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                counter.calls += 1
                if counter.calls % 2 == 0:
                    accelerator.save_state()
                if counter.calls == stop:
                    break
        if counter.calls == stop:
            break
        record({"epoch done": epoch})
    accelerator.end_training()
    return weights(accelerator.unwrap_model(model))


def train_two_models(epochs: int) -> torch.Tensor:
    """As a GAN: two models and optimizers, two gradients of each batch, an order of its own, and split batches."""
    accelerator = ElasticAccelerator(dataloader_config=DataLoaderConfiguration(split_batches=True))
    (generator, of_generator), (critic, of_critic) = parts(1), parts(2)
    sampler = elastic.ElasticSampler(dataset(), order=lambda epoch: list(range(epoch, SAMPLES))[::-1])
    loader = DataLoader(dataset(), batch_size=6, sampler=sampler, drop_last=True)
    test_loader = DataLoader(dataset(), batch_size=9)  # No other world than one of 3 can split it evenly.
    generator, critic, of_generator, of_critic, loader, test_loader = accelerator.prepare(
        generator, critic, of_generator, of_critic, loader, test_loader
    )
    scheduler = torch.optim.lr_scheduler.ExponentialLR(of_generator.optimizer, 0.9)
    accelerator.register_for_checkpointing(scheduler)
    for epoch in accelerator.epochs(epochs):
        for numbers, inputs, _ in loader:
            reached(accelerator.elastic.step)
            with accelerator.accumulate(generator, critic):
                fake = torch.cat([generator(inputs), inputs[:, 1:]], 1)
                accelerator.backward((critic(inputs) - 1).square().mean() + critic(fake.detach()).square().mean())
                of_critic.step()
                of_critic.zero_grad()
                accelerator.backward((critic(fake) - 1).square().mean())
                of_generator.step()
                of_generator.zero_grad()
                of_critic.zero_grad()
            if accelerator.sync_gradients:
                scheduler.step()
            used = accelerator.gather_for_metrics(numbers.tolist())
            if accelerator.is_main_process:
                record([epoch, accelerator.elastic.step + 1, used, scheduler.get_last_lr()[0]])
        seen = [number for numbers, *_ in test_loader for number in accelerator.gather_for_metrics(numbers).tolist()]
        assert sorted(seen) == list(range(SAMPLES))
    return torch.cat([weights(accelerator.unwrap_model(model)) for model in (generator, critic)])
