"""Training scripts with Accelerate whose numbers would be wrong in another world, and the line that each gets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, FullyShardedDataParallelPlugin, GradientAccumulationPlugin
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler, WeightedRandomSampler

import elastic
from elastic.errors import ConfigError
from elastic.integrations.accelerate import ElasticAccelerator
from tests.scripts.accelerate_training import dataset, one_cycle, parts

DATA = dataset()


class Stream(IterableDataset[torch.Tensor]):
    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter([torch.zeros(6)])


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        return super().__iter__()


def shuffled(**options: Any) -> DataLoader[Any]:
    return DataLoader(DATA, **{"batch_size": 4, "shuffle": True, **options})


def prepare(*loaders: DataLoader[Any], **options: Any) -> Callable[[], None]:
    """Refused when it is prepared."""

    def script() -> None:
        model, optimizer = parts()
        ElasticAccelerator(**options).prepare(model, optimizer, *loaders)

    return script


def loop(body: Callable[[Any, Any, Any, Any], None], *, epochs: bool = True, **options: Any) -> Callable[[], None]:
    """Refused in the loop, whose body gets the accelerator, the model, the optimizer and the loss."""

    def script() -> None:
        accelerator = ElasticAccelerator(total_batch_size=8, memory_every=None, **options)
        model, optimizer, loader = accelerator.prepare(*parts(), shuffled())
        for _ in accelerator.epochs(1) if epochs else range(1):
            for _, inputs, targets in loader:
                body(accelerator, model, optimizer, torch.nn.functional.mse_loss(model(inputs), targets))

    return script


def backward(accelerator: Any, model: Any, optimizer: Any, loss: Any) -> None:
    accelerator.backward(loss)


def plain_backward(accelerator: Any, model: Any, optimizer: Any, loss: Any) -> None:
    loss.backward()
    optimizer.step()


def step_early(accelerator: Any, model: Any, optimizer: Any, loss: Any) -> None:
    accelerator.backward(loss)
    optimizer.optimizer.step()


def unprepared_scheduler(accelerator: Any, model: Any, optimizer: Any, loss: Any) -> None:
    torch.optim.lr_scheduler.StepLR(optimizer.optimizer, 1)
    accelerator.backward(loss)
    optimizer.step()


def scheduler_alone() -> None:
    accelerator = ElasticAccelerator(total_batch_size=8, step_scheduler_with_optimizer=False, memory_every=None)
    model, optimizer = parts()
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, one_cycle(optimizer), shuffled())
    for _ in accelerator.epochs(1):
        for _, inputs, _ in loader:
            accelerator.backward(model(inputs).mean())
            scheduler.step()


def evaluation_loader() -> None:
    accelerator = ElasticAccelerator(total_batch_size=8, memory_every=None)
    model, _, _, unshuffled = accelerator.prepare(*parts(), shuffled(), DataLoader(DATA, batch_size=4))
    for _ in accelerator.epochs(1):
        for _, inputs, _ in unshuffled:
            accelerator.backward(model(inputs).mean())


def local_sgd() -> None:
    accelerator = ElasticAccelerator(memory_every=None)
    model, _, loader = accelerator.prepare(*parts(), shuffled())
    for _ in accelerator.epochs(1):
        with LocalSGD(accelerator=accelerator, model=model, local_sgd_steps=2, enabled=True):
            for _, inputs, _ in loader:
                accelerator.backward(model(inputs).mean())


def registered_late() -> None:
    accelerator = ElasticAccelerator(memory_every=None)
    accelerator.prepare(*parts(), shuffled())
    accelerator.restore()
    accelerator.register_for_checkpointing(parts()[0])


def length_too_early() -> None:
    len(ElasticAccelerator().prepare(*parts(), shuffled())[2])


def skip() -> None:
    accelerator = ElasticAccelerator()
    accelerator.skip_first_batches(accelerator.prepare(*parts(), shuffled())[2], 3)


def no_optimizer() -> None:
    accelerator = ElasticAccelerator()
    accelerator.prepare(parts()[0], shuffled())
    accelerator.restore()


def unprepared_model() -> None:
    accelerator = ElasticAccelerator()
    accelerator.prepare(parts()[0], parts()[1], shuffled())
    accelerator.restore()


def no_loader() -> None:
    accelerator = ElasticAccelerator()
    accelerator.prepare(*parts())
    accelerator.restore()


def free_memory() -> None:
    accelerator = ElasticAccelerator(memory_every=None)
    model, optimizer, loader = accelerator.prepare(*parts(), shuffled())
    for _ in accelerator.epochs(1):
        for _, inputs, _ in loader:
            accelerator.backward(model(inputs).mean())
            optimizer.step()
            optimizer.zero_grad()
    accelerator.free_memory()


SCRIPTS: dict[str, Callable[[], None]] = {
    "iterable": prepare(DataLoader(Stream(), batch_size=4)),
    "dispatch": prepare(shuffled(), dataloader_config=DataLoaderConfiguration(dispatch_batches=True)),
    "weighted": prepare(DataLoader(DATA, batch_size=4, sampler=WeightedRandomSampler([1.0] * len(DATA), len(DATA)))),
    "replacement": prepare(
        DataLoader(DATA, batch_size=4, sampler=torch.utils.data.RandomSampler(DATA, replacement=True))
    ),
    "batch sampler": prepare(DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False))),
    "no batches": prepare(DataLoader(DATA, batch_size=None, shuffle=True)),
    "own loader": prepare(OwnLoader(DATA, batch_size=4, shuffle=True)),
    "own global batch": prepare(
        DataLoader(DATA, batch_size=4, sampler=elastic.ElasticSampler(DATA, batch=elastic.GlobalBatch(total=4)))
    ),
    "two shuffle": prepare(shuffled(), shuffled()),
    "sync with dataloader": prepare(
        shuffled(), gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=2, sync_with_dataloader=False)
    ),
    "FSDP": prepare(shuffled(), fsdp_plugin=FullyShardedDataParallelPlugin()),
    "total": prepare(shuffled(), total_batch_size=0),
    "outside of epochs": loop(backward, epochs=False),
    "no backward": loop(plain_backward),
    "by hand": loop(backward),
    "step early": loop(step_early),
    "scheduler": loop(unprepared_scheduler),
    "scheduler alone": scheduler_alone,
    "evaluation loader": evaluation_loader,
    "LocalSGD": local_sgd,
    "registered late": registered_late,
    "length": length_too_early,
    "skip": skip,
    "no optimizer": no_optimizer,
    "unprepared model": unprepared_model,
    "no loader": no_loader,
    "free_memory": free_memory,
}


def refusals() -> dict[str, str]:
    """The line that each script gets, "" if none."""
    return {name: refusal(script) for name, script in SCRIPTS.items()}


def refusal(script: Callable[[], None]) -> str:
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    try:
        script()
    except ConfigError as error:
        return str(error)
    return ""


def accelerator_first() -> str:
    """An Accelerator without the process group was made before, and counts one process."""
    Accelerator()
    try:
        ElasticAccelerator()
    except (ConfigError, ValueError) as error:
        return str(error)
    return ""
