"""Tensors between real ranks, over gloo."""

from __future__ import annotations

import pytest

from tests.scripts import gloo_ranks

RANKS = "tests.scripts.redistribute_ranks"


def test_rows_become_columns_for_every_type() -> None:
    assert gloo_ranks.run(RANKS, "every_type", [{}] * 3) == [True] * 3


def test_more_messages_than_may_be_on_the_way_all_come_through() -> None:
    assert gloo_ranks.run(RANKS, "large", [{}] * 2) == [True] * 2


def test_a_newcomer_receives_a_replicated_tensor_in_place() -> None:
    assert gloo_ranks.run(RANKS, "newcomer", [{}] * 3) == [[7.0] * 3] * 3


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("dtype", "TensorsDiffer: w is float64[4] on rank 1, but rank 0 has it as float32[4]"),
        ("shape", "TensorsDiffer: w is float32[6] on rank 1, but rank 0 has it as float32[4]"),
        ("own", "TensorsDiffer: rank 1: w has the shape [3], but its box is [0:4]"),
        ("nobody", "TensorsMissing: no rank holds w[0:4], which rank 1 needs"),
    ],
)
def test_every_rank_raises_the_same_error_when_tensors_do_not_fit(what: str, told: str) -> None:
    assert gloo_ranks.run(RANKS, "refused", [{"what": what}] * 2) == [told] * 2
