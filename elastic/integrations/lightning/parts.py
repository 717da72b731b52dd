"""Cuts a batch that is larger than a rank can hold at once into parts of about equal size."""

from __future__ import annotations

import itertools
from typing import Any, NamedTuple

import torch


class Part(NamedTuple):
    """A part of a batch, and its share of the batch's samples."""

    batch: Any
    share: float


class CannotCut(Exception):
    """The batch contains a value that does not have one entry per sample."""


def cut(batch: Any, samples: int, limit: int) -> list[Part]:
    """Cut a batch of `samples` samples into parts of at most `limit`.

    Tensors are cut along their first dimension, and so are lists that have one entry per sample. Mappings, tuples and
    lists of such values keep their structure. Raises `CannotCut` for anything else, and if a list may be either.
    """
    count = -(-samples // limit)
    if count <= 1:
        return [Part(batch, 1.0)]
    bounds = [samples * number // count for number in range(count + 1)]
    return [
        Part(_slice(batch, samples, slice(start, stop)), (stop - start) / samples)
        for start, stop in itertools.pairwise(bounds)
    ]


def _slice(thing: Any, samples: int, part: slice) -> Any:
    if thing is None:
        return None
    if isinstance(thing, torch.Tensor):
        if thing.dim() and len(thing) == samples:
            return thing[part]
        raise CannotCut(f"a tensor of shape {tuple(thing.shape)}")
    if type(thing) is dict:
        return {key: _slice(item, samples, part) for key, item in thing.items()}
    if isinstance(thing, tuple) and hasattr(thing, "_fields"):
        return type(thing)(*(_slice(item, samples, part) for item in thing))
    if type(thing) in (list, tuple):
        return _slice_sequence(thing, samples, part)
    raise CannotCut(f"a {type(thing).__name__}")


def _slice_sequence(thing: Any, samples: int, part: slice) -> Any:
    """Cut each item of a sequence, or a sequence with one entry per sample; one that may be either is not cut."""
    entries = len(thing) == samples
    try:
        whole = type(thing)(_slice(item, samples, part) for item in thing)
    except CannotCut:
        if entries:
            return thing[part]
        raise
    if entries:
        raise CannotCut(f"a {type(thing).__name__} of {samples} things, each of which has {samples} entries")
    return whole
