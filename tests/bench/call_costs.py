"""Microseconds of the calls that a training script makes in every step, when nothing is due.

It is processor time, with what the kernel does for the calls, so that a busy machine does not change it.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.utils.data import DataLoader, Dataset

import elastic
from elastic.testing import record, run
from tests.bench.model import Training

CALLS = 20_000
REPEATS = 5
NEVER = 10**9
SIZE_MB = 1.0
"""Of no importance: nothing is copied."""


def calls(number: int) -> None:
    """In a worker: the microseconds of each call, by what it is."""
    torch.set_num_threads(1)
    elastic.init()
    training = Training(SIZE_MB)
    sampler = elastic.ElasticSampler(1000)
    state = elastic.State(model=training.model, optimizer=training.optimizer, sampler=sampler, best=0.0)
    state.restore()
    data: Dataset[int] = list(range(1000))  # type: ignore[assignment]  # It has what a loader asks for.
    loader = iter(DataLoader(data, sampler=sampler, batch_size=8))
    next(loader)
    found = {
        "commit": microseconds(lambda: state.commit(every=NEVER, memory_every=NEVER), number),
        "report": microseconds(lambda: elastic.report(step=1, loss=0.5, accuracy=0.5), number),
    }
    record(found)


def microseconds(call: Callable[[], None], number: int) -> float:
    """The median of a few rounds of many calls."""
    found = []
    for _ in range(REPEATS):
        began = time.thread_time()
        for _ in range(number):
            call()
        found.append((time.thread_time() - began) / number * 1e6)
    return statistics.median(found)


def measure(number: int = CALLS) -> dict[str, dict[str, float]]:
    """Each call's microseconds, with an agent's channel and without."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="calls-") as folder:
        for title, environ in (("with an agent", {}), ("without an agent", {"ELASTIC_CHANNEL": ""})):
            result = run(calls, args=(number,), worlds=[1], env=environ, checkpoint_dir=Path(folder) / "checkpoints")
            found[title] = dict(result.records[0])
    return found


if __name__ == "__main__":
    for title, times in measure(int(os.environ.get("CALLS", CALLS))).items():
        print(title, times)
