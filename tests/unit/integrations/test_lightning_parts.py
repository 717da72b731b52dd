"""How a batch is cut into parts for a rank that cannot hold all of it at once."""

from __future__ import annotations

import importlib.util
from typing import Any, NamedTuple

import pytest
import torch

from tests.support.frameworks import needs

pytestmark = needs("lightning")

if importlib.util.find_spec("lightning"):
    from elastic.integrations.lightning.parts import CannotCut, cut


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


NUMBERS = torch.arange(7)


def numbers(batch: Any, limit: int) -> list[list[int]]:
    return [part.batch.tolist() for part in cut(batch, 7, limit)]


def test_a_batch_that_fits_is_one_part_and_stays_as_it_is() -> None:
    batch = object()
    ((whole, share),) = cut(batch, 7, 7)
    assert whole is batch
    assert share == 1


def test_parts_have_about_equal_sizes_none_above_the_limit() -> None:
    assert numbers(NUMBERS, 3) == [[0, 1], [2, 3], [4, 5, 6]]
    assert numbers(NUMBERS, 4) == [[0, 1, 2], [3, 4, 5, 6]]


def test_the_shares_of_the_parts_add_up_to_one() -> None:
    assert sum(part.share for part in cut(NUMBERS, 7, 2)) == pytest.approx(1)


def test_tuples_lists_and_dicts_of_tensors_keep_their_shape() -> None:
    batch = {"a": [NUMBERS, (NUMBERS, None)], "b": Pair(NUMBERS, NUMBERS)}
    first = cut(batch, 7, 4)[0].batch
    assert first["a"][0].tolist() == first["a"][1][0].tolist() == first["b"].y.tolist() == [0, 1, 2]
    assert first["a"][1][1] is None
    assert isinstance(first["b"], Pair)


def test_a_list_with_one_entry_for_each_sample_is_cut() -> None:
    first = cut((NUMBERS, list("abcdefg")), 7, 4)[0].batch
    assert first[1] == ["a", "b", "c"]


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(3), torch.tensor(1.0), [NUMBERS, 1.5], (NUMBERS, {"scale": 2}), [torch.zeros(7, 2)] * 7, object()],
    ids=["another length", "a scalar", "a number", "a number in a dict", "a list that may be both", "an object"],
)
def test_what_is_not_one_entry_for_each_sample_is_not_cut(batch: Any) -> None:
    with pytest.raises(CannotCut):
        cut(batch, 7, 4)
