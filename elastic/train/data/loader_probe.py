"""How an `ElasticSampler` is served to a DataLoader that is not `elastic.DataLoader`: one that a framework has made.

A sampler is told neither the batch size nor how many batches the training loop has taken: the DataLoader fetches
ahead. Both are known to objects of torch that are calling right then, and are found among the calling functions. What
is used of torch's internals is in `elastic.train.torch_internals`.
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
"""How far up the callers are looked at. The DataLoader is within ten of them."""

_ASKING: Final = ("__iter__", "__len__", "_next_index", "_reset", "__init__")
"""The functions of torch's BatchSampler and DataLoader in which a sampler is asked."""

_BETWEEN: Final = (
    "something between it and the DataLoader takes single indices, so that the batches of the ranks would not match at "
    "the end of an epoch; give it to the DataLoader itself, or let a batch sampler of your own take whole batches, "
    "from torch's BatchSampler(sampler, batch_size, False), and call sampler.advance() with each batch of the loop"
)
_NO_ORDER: Final = "DataLoader(in_order=False) gives batches in no fixed order; leave it out"


def inspect_loader(sampler: object) -> LoaderInfo:
    """Look for who asks `sampler`. To be called while it is asked for an iterator, an index or its length."""
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
    """Say once that the batches of a loader are counted by torch's internals."""
    report.log_to_agent(
        f"ElasticSampler: its loader is torch's DataLoader, whose batches are counted by internals of torch "
        f"{torch.__version__}; elastic.DataLoader counts them itself"
    )
