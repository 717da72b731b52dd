"""A script of a parameter-server job that does what its standard input says, one line at a time.

The model is one number per parameter, and every gradient is 1 (or what the command says), so that the values count the
pushes: after n of them they are minus n times the learning rate.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable

import torch

import elastic
from elastic.train import ps

LR = 1.0


class Counters(torch.nn.Module):
    """Two dense parameters, one for each of two servers, and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.second = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        self.rows = ps.Embedding(10, 2, dtype=torch.float64, std=0.0)


def step(worker: ps.Worker, model: Counters, count: int) -> str:
    """Push ones, count times; row 3 and row 4 of the table get them, too."""
    for _ in range(count):
        (model.first.sum() + model.second.sum() + model.rows(torch.tensor([3, 4])).sum()).backward()
        worker.step()
    return shown(worker, model)


def shown(worker: ps.Worker, model: Counters) -> str:
    """The values that the servers have: first, second, row 3, row 4."""
    worker.pull()
    with torch.no_grad():
        rows = model.rows(torch.tensor([3, 4]))
        values = (model.first.detach()[0], model.second.detach()[0], rows[0, 0], rows[1, 0])
    return " ".join(f"{float(value) + 0.0:g}" for value in values)


class Numbers(torch.utils.data.Dataset[int]):
    """The numbers below 8."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return index


def load(times: int) -> int:
    """Read a dataset with forked processes, again and again."""
    total = 0
    for _ in range(times):
        loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
        total += sum(int(batch.sum()) for batch in loader)
    return total


def work(worker: ps.Worker, model: Counters) -> None:
    """Obey until the input ends."""
    answers: dict[str, Callable[[str], object]] = {
        "step": lambda text: step(worker, model, int(text)),
        "value": lambda _: shown(worker, model),
        "save": worker.save,
        "load": lambda text: load(int(text)),
        "close": lambda _: worker.close(),
        "fail": lambda _: (_ for _ in ()).throw(ValueError("told to fail")),
        "kill": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    }
    for line in sys.stdin:
        command, _, rest = line.strip().partition(" ")
        print(command, answers[command](rest) or "done", flush=True)


def main() -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stdout)
    logging.getLogger("elastic").setLevel(logging.DEBUG)
    env = elastic.env()
    lost_after_s = float(os.environ.get("LOST_AFTER_S", "60"))
    if env.role == "server":
        names = os.environ.get("NAMES", "")
        ps.Server(
            load_from=os.environ.get("LOAD_FROM"),
            names=names.split(",") if names else None,
            lost_after_s=lost_after_s,
            snapshot_every_s=float(os.environ.get("SNAPSHOT_EVERY_S", "0")),
        ).run()
        return
    model = Counters()
    worker = ps.Worker(model, lr=LR, mode=os.environ.get("MODE", "async"))
    print("ready", flush=True)
    work(worker, model)


if __name__ == "__main__":
    main()
