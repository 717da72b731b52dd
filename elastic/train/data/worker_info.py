"""A stream read within a DataLoader worker as if there were no other worker.

Iterable datasets are often written to share themselves among DataLoader workers: they ask `get_worker_info`. Our
stream does that itself, so they are told that there is none, while they are being read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import get_worker_info
from torch.utils.data._utils import worker


def without_worker_info(make: Callable[[], Iterable[Any]]) -> Iterator[Any]:
    """The samples of `make()`."""
    if (info := get_worker_info()) is None:
        yield from make()
        return
    worker._worker_info = None
    try:
        samples = iter(make())
    finally:
        worker._worker_info = info
    while True:
        worker._worker_info = None
        try:
            sample = next(samples)
        except StopIteration:
            return
        finally:
            worker._worker_info = info
        yield sample
