"""What the replicas of a fuzzed run do: train, write down what they did, and be killed where the plan says."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import elastic
from elastic.testing import reached
from tests.fuzz.training.plan import AFTER_RETURN, RAISE, Plan, Strike

Sample = tuple[int, torch.Tensor, torch.Tensor]


class Samples(torch.utils.data.Dataset[Sample]):
    """Numbers from a fixed seed, each with its index."""

    def __init__(self, length: int) -> None:
        """Make them all."""
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(length, 3, dtype=torch.float64, generator=generator)
        self.y = torch.randn(length, 2, dtype=torch.float64, generator=generator)

    def __len__(self) -> int:
        """How many."""
        return len(self.x)

    def __getitem__(self, index: int) -> Sample:
        """One of them."""
        return index, self.x[index], self.y[index]


class Net(torch.nn.Module):
    """Three layers, of which the last one is left out where the caller says so."""

    def __init__(self, ballast: int) -> None:
        """The same numbers everywhere."""
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second, self.late = torch.nn.Linear(3, 4), torch.nn.Linear(4, 2), torch.nn.Linear(2, 2)
        self.double()
        self.register_buffer("ballast", torch.zeros(ballast))

    def forward(self, x: torch.Tensor, late: bool) -> torch.Tensor:
        """Shape (n, 3) in, (n, 2) out."""
        y: torch.Tensor = self.second(torch.tanh(self.first(x)))
        return self.late(y) if late else y


class Diary:
    """What a replica writes down, line by line: it is on file when the call returns."""

    def __init__(self, folder: str) -> None:
        """Open this replica's own file."""
        name = f"g{int(os.environ['ELASTIC_GENERATION']):03}.r{int(os.environ['RANK']):03}"
        self._handle = os.open(Path(folder) / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def write(self, *what: Any) -> None:
        """One line."""
        os.write(self._handle, json.dumps(what).encode() + b"\n")


def die(after_us: int) -> None:
    """Have the kernel end this process, at once or a little later, whatever it does then; or raise."""
    if after_us == RAISE:
        raise RuntimeError("the plan lets this replica fail here")
    if after_us <= 0:
        os.kill(os.getpid(), signal.SIGKILL)
    signal.setitimer(signal.ITIMER_REAL, after_us / 1e6)


def arm(strike: Strike) -> None:
    """Let a call of the place end this process."""
    name, _, path = strike.place.partition(":")
    owner: Any = importlib.import_module(name)
    *outer, last = path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    inner, calls = getattr(owner, last), iter(range(1, 1 << 30))

    @functools.wraps(inner)
    def outer_call(*args: Any, **kwargs: Any) -> Any:
        due = next(calls) == strike.nth
        if due and strike.after_us != AFTER_RETURN:
            die(strike.after_us)
        result = inner(*args, **kwargs)
        if due:
            die(strike.after_us)
        return result

    setattr(owner, last, outer_call)


def train(plan: Plan, folder: str) -> list[float] | None:
    """Train to the end; all parameters."""
    diary = Diary(folder)
    rank = int(os.environ["RANK"])
    strikes = plan.strikes[int(os.environ["ELASTIC_GENERATION"]) - 1]
    strike = next((one for one in strikes if one.rank == rank), None)
    if strike is not None and strike.place:
        arm(strike)
    try:
        found = _train(plan, folder, diary, strike)
    except SystemExit:
        diary.write("left")
        raise
    if strike is not None and strike.at < 1 << 30:
        die(0)
    return found


def _train(plan: Plan, folder: str, diary: Diary, strike: Strike | None) -> list[float]:
    wish = plan.training
    if wish.mode != "none":
        elastic.init()
    model: Any = Net(wish.ballast)
    inner: Any = model
    if wish.mode == "ddp":
        model = DistributedDataParallel(inner, broadcast_buffers=False, find_unused_parameters=wish.late > 0)
    elif wish.mode == "fsdp":
        from torch.distributed.fsdp import fully_shard

        fully_shard(model)
    optimizer: torch.optim.Optimizer = (
        torch.optim.Adam(model.parameters(), lr=0.01, eps=1e-3)
        if wish.adam
        else torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.9)
    if wish.total is not None:
        batch = elastic.GlobalBatch(total=wish.total, max_per_rank=wish.most)
    else:
        batch = elastic.GlobalBatch(per_rank=wish.per_rank)
    source, loader = _loader(plan, batch)
    state = elastic.State(model=model, optimizer=optimizer, scheduler=scheduler, source=source, taken=0)
    resumed = state.restore(keep=wish.keep, memory_copies=wish.copies)
    torn = sorted(set(inner.ballast.tolist()) - {float(state.step)})
    if torn:
        diary.write("torn", state.step, torn)
    other = _beside(plan, folder)
    if other is not None:
        if torn := sorted(set(other.numbers.tolist()) - {float(other.step)}):
            diary.write("torn", other.step, torn)
        diary.write("beside", other.step - state.step)
    diary.write("start", state.step, state.epoch, resumed, os.environ.get("ELASTIC_SAVED", ""))
    for epoch in elastic.epochs(state, wish.epochs):
        for ids, x, y in loader:
            step = state.step + 1
            if strike is not None and step >= strike.at:
                die(strike.after_us)
            diary.write("take", epoch, step, ids[: source.samples].tolist())
            with batch.accumulate(model) if wish.most is not None else nullcontext():
                torch.autograd.backward(batch.scale_loss(mse_loss(model(x, step >= wish.late), y)))
            if not source.is_last_micro_batch:
                continue
            if wish.mode == "manual":
                for one in (one for one in inner.parameters() if one.grad is not None):
                    dist.all_reduce(one.grad)
                    one.grad /= dist.get_world_size()
            optimizer.step()
            optimizer.zero_grad()
            inner.ballast.fill_(step)
            state.taken += 1
            if other is not None:
                other.numbers = torch.full((wish.ballast,), other.step + 1.0)
                other.commit(every=wish.beside, memory_every=wish.memory_every)
            state.commit(every=wish.every, memory_every=wish.memory_every)
            diary.write("kept", state.step)
            if wish.exact:
                reached(state.step)
        scheduler.step()
    assert state.taken == state.step
    diary.write("end", state.step)
    return [number for one in model.parameters() for number in _whole(one).flatten().tolist()]


def _beside(plan: Plan, folder: str) -> Any:
    """A second state in a folder of its own, None if the plan has none."""
    if not plan.training.beside:
        return None
    other = elastic.State(numbers=torch.zeros(plan.training.ballast))
    other.restore(folder=Path(folder).with_name("beside"), keep=plan.training.keep)
    return other


def _whole(parameter: Any) -> torch.Tensor:
    found: torch.Tensor = parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter
    return found.detach()


def _loader(plan: Plan, batch: Any) -> tuple[Any, Any]:
    wish = plan.training
    dataset = Samples(wish.samples)
    rank, world = (0, 1) if wish.mode == "solo" else (None, None)
    if wish.stream:

        def samples(epoch: int) -> Iterator[Sample]:
            order = torch.randperm(len(dataset), generator=torch.Generator().manual_seed(epoch))
            return (dataset[index] for index in order.tolist())

        stream = elastic.ElasticStream(samples, batch=batch, num_workers=wish.workers, rank=rank, world=world)
        return stream, stream
    sampler = elastic.ElasticSampler(dataset, seed=2, batch=batch, rank=rank, world=world)
    loader_class: type[DataLoader[Sample]] = elastic.DataLoader if plan.seed % 2 else DataLoader
    return sampler, loader_class(dataset, sampler=sampler, batch_size=batch.size, num_workers=wish.workers)
