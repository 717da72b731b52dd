"""Serves an `ElasticSampler` to a DataLoader other than `elastic.DataLoader`: one that a framework has created.

Such a DataLoader passes to its sampler neither the batch size nor the number of batches that the training loop has
taken, and it prefetches. Torch's objects that call the sampler know both, so this module finds them on the call stack.
`elastic.train.torch_internals` has what it uses of torch's internals.
"""

from __future__ import annotations

import functools
import sys
from typing import Any, Final

import torch
from torch.utils.data import BatchSampler

from elastic.train import report
from elastic.train.data.epoch_position import LoaderInfo
from elastic.train.torch_internals import LoaderIterator, LoaderLoop

FRAMES_MAX: Final = 64
"""The number of callers that are searched. The DataLoader is among the first ten."""

_ASKING: Final = ("__iter__", "__len__", "_next_index", "_reset", "__init__")
"""The functions of torch's BatchSampler and DataLoader that call a sampler."""

_BETWEEN: Final = (
    "an object between it and the DataLoader reads single indices, so the batches of the ranks would not match at the "
    "end of an epoch; pass it to the DataLoader directly, or write a batch sampler that reads whole batches from "
    "torch's BatchSampler(sampler, batch_size, False), and call sampler.advance() for each batch of the loop"
)
_NO_ORDER: Final = "DataLoader(in_order=False) returns batches in no fixed order; leave it out"


def inspect_loader(sampler: object) -> LoaderInfo:
    """Find the loader that calls `sampler`. Call it while the loader requests an iterator, an index or the length."""
    batches: BatchSampler | None = None
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame.f_code.co_name in _ASKING and str(frame.f_globals.get("__name__")).startswith("torch.utils.data."):
            asking = frame.f_locals.get("self")
            if isinstance(asking, BatchSampler) and asking.sampler is sampler:
                batches = asking
            elif isinstance(asking, LoaderIterator):
                return _info(sampler, batches, asking)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return _info(sampler, batches, None)


def _info(sampler: object, batches: BatchSampler | None, iterator: Any) -> LoaderInfo:
    loop = LoaderLoop(iterator) if iterator is not None else None
    count = loop if loop is not None and loop.takes_from(sampler if batches is None else batches) else None
    problem = "" if count is None or count.in_order else _NO_ORDER
    if batches is not None:
        return LoaderInfo(batches.batch_size, batches.drop_last, count, problem)
    return LoaderInfo(count=count, problem=_BETWEEN if loop is not None and count is None else problem)


@functools.cache
def report_probe() -> None:
    """Log once that the batches of a loader are counted with torch's internals."""
    report.log_to_agent(
        f"ElasticSampler: counting the batches of torch's DataLoader with internals of torch {torch.__version__}; "
        "elastic.DataLoader does not need them"
    )
