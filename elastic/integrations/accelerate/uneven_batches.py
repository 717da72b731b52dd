"""Gathers results that the processes computed from batches of different sizes."""

from __future__ import annotations

from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather, gather_object, pad_across_processes, recursively_apply


def gather_samples(accelerator: Accelerator, values: Any, samples: int, *, as_objects: bool) -> Any:
    """Gather values of the samples of one training batch from all processes, without padding. A collective.

    Args:
        accelerator: The accelerator of this process.
        values: Tensors with a row for each sample, in lists, tuples and dicts; or any list with `as_objects`.
        samples: The number of samples in this process's batch; 0 if the batch is padding, which is ignored.
        as_objects: Gather a list of objects, as for all values that are not tensors.

    Returns:
        The values of all samples in the order of the ranks, in the structure of `values`.
    """
    if as_objects or not _are_tensors(values):
        return gather_object(list(values)[:samples])
    sizes: list[int] = gather(torch.tensor([samples], device=accelerator.device)).tolist()

    def gathered(tensor: torch.Tensor) -> Any:
        if tensor.ndim == 0:  # One value for the whole batch.
            every = gather(tensor)
            return every[[size > 0 for size in sizes]] if every.ndim else every
        rows = gather(pad_across_processes(tensor))
        longest = len(rows) // len(sizes)
        counting = [rank * longest + row for rank, size in enumerate(sizes) for row in range(size)]
        return rows[counting]

    return recursively_apply(gathered, values, error_on_other_type=True)


def _are_tensors(values: Any) -> bool:
    try:
        recursively_apply(lambda tensor: tensor, values, error_on_other_type=True)
    except TypeError:
        return False
    return True
