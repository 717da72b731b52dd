"""Who is asking a sampler for indices: torch's BatchSampler and DataLoader, found among the calling functions.

A sampler is told neither the batch size nor how many batches the training loop has taken: the DataLoader fetches
ahead. Both are known to objects of torch that are calling right then. `BatchSampler.__iter__` pulls indices with
`islice` (torch 2.6 and later), so a StopIteration ends one batch, and the next pull begins another; with drop_last it
pulls with `zip`, where that would end the epoch.

What is used of torch's internals is here, and only here: the functions named in `_ASKING`, `_num_yielded` (the batches
that the loop has taken) and `_in_order`.
"""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import Any, Final

from torch.utils.data import BatchSampler
from torch.utils.data.dataloader import _BaseDataLoaderIter

FRAMES_MAX: Final = 64
"""How far up the callers are looked at. The DataLoader is within ten of them."""

_ASKING: Final = ("__iter__", "__len__", "_next_index", "_reset", "__init__")


class LoaderLoop:
    """Counts the batches that a loop over a DataLoader has taken, also after the loop has ended.

    The DataLoader's iterator is not kept alive: it stops its workers when it is dropped. Only its attributes are, and
    those until it is gone.
    """

    def __init__(self, iterator: _BaseDataLoaderIter) -> None:
        """Follow an iterator of a DataLoader from its start."""
        self._attributes: dict[str, Any] | None = vars(iterator)
        self._taken = 0
        self._alive = weakref.ref(iterator, self._end)

    @property
    def taken(self) -> int:
        """The batches that the loop has been given so far.

        With persistent workers the iterator serves the next loop too, and counts that one then; what was seen before
        stays.
        """
        if self._attributes is not None:
            self._taken = max(self._taken, int(self._attributes["_num_yielded"]))
        return self._taken

    @property
    def in_order(self) -> bool:
        """Whether batches come in the order of the indices, as they do unless DataLoader(in_order=False)."""
        return self._attributes is None or bool(self._attributes.get("_in_order", True))

    def _end(self, _: object) -> None:
        self._taken = self.taken
        self._attributes = None


@dataclass(frozen=True, slots=True)
class LoaderInfo:
    """Who asks. `batch_size` None: one index at a time. `cuts`: an early end of a batch is understood.

    `loop` is None where nobody can tell how many batches were taken. `between`: what serves the DataLoader takes single
    indices, and makes of them what is not seen here.
    """

    batch_size: int | None = None
    drop_last: bool = False
    cuts: bool = False
    loop: LoaderLoop | None = None
    between: bool = False


def inspect_loader(sampler: object) -> LoaderInfo:
    """Look for who asks `sampler`. To be called while it is asked for an iterator, an index or its length."""
    batches: BatchSampler | None = None
    frame = sys._getframe(1)
    for _ in range(FRAMES_MAX):
        if frame.f_code.co_name in _ASKING and str(frame.f_globals.get("__name__")).startswith("torch.utils.data."):
            asking = frame.f_locals.get("self")
            if isinstance(asking, BatchSampler) and asking.sampler is sampler:
                batches = asking
            elif isinstance(asking, _BaseDataLoaderIter):
                return _caller(sampler, batches, asking)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return _caller(sampler, batches, None)


def _caller(sampler: object, batches: BatchSampler | None, iterator: _BaseDataLoaderIter | None) -> LoaderInfo:
    served = batches if batches is not None else sampler
    known = iterator is not None and iterator._index_sampler is served and hasattr(iterator, "_num_yielded")
    loop = LoaderLoop(iterator) if known and iterator is not None else None
    if batches is None:
        return LoaderInfo(loop=loop, between=iterator is not None and iterator._index_sampler is not sampler)
    return LoaderInfo(batches.batch_size, batches.drop_last, not batches.drop_last, loop)
