"""The random state of a worker."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from elastic.errors import CheckpointDamaged
from elastic.train.statedict import rng


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Other tests have the numbers that they had before."""
    before = rng.capture()
    yield
    rng.restore(before)


def draw() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.rand()), float(torch.rand(()))]


def through_a_file(captured: dict[str, Any]) -> Any:
    file = io.BytesIO()
    torch.save(captured, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_all_generators_go_on_from_where_they_were() -> None:
    random.gauss(0, 1)  # Its second number is kept for the next call.
    np.random.standard_normal()
    captured = through_a_file(rng.capture())
    then = [draw(), draw()]
    draw()
    rng.restore(captured)
    assert [draw(), draw()] == then


def test_the_same_seed_rank_and_step_give_the_same_numbers() -> None:
    rng.derive(7, rank=2, step=500)
    first = draw()
    rng.derive(7, rank=2, step=500)
    assert draw() == first


def test_the_numbers_that_are_derived_are_the_same_in_every_version() -> None:
    rng.derive(7, rank=2, step=500)
    assert random.getrandbits(32) == 1147218690
    assert torch.initial_seed() == 895268521749677596
    assert np.random.randint(2**31) == 608921663


def test_other_seeds_ranks_and_steps_give_other_numbers() -> None:
    seen = set()
    for seed in (0, 1, -1):
        for rank in (0, 1, 11):
            for step in (0, 1, 111):
                rng.derive(seed, rank=rank, step=step)
                seen.update(draw())
    assert len(seen) == 27 * 4


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda captured: {key: value for key, value in captured.items() if key != name}


@pytest.mark.parametrize(
    "harm",
    [
        lambda captured: None,
        lambda captured: {"some": "thing"},
        lambda captured: {**captured, "layout": 99},
        without("python"),
        without("torch"),
        lambda captured: {**captured, "torch": torch.zeros(3, dtype=torch.uint8)},
        lambda captured: {**captured, "torch": "text"},
        lambda captured: {**captured, "python": {**captured["python"], "words": torch.zeros(5, dtype=torch.int64)}},
        lambda captured: {**captured, "python": {**captured["python"], "words": torch.full((625,), -1)}},
        lambda captured: {**captured, "numpy": {"bit_generator": "PCG64"}},
        lambda captured: {**captured, "numpy": [1, 2, 3]},
    ],
)
def test_what_is_no_random_state_is_one_error_and_changes_nothing(harm: Callable[[dict[str, Any]], Any]) -> None:
    captured = rng.capture()
    harmed = harm(captured)
    draw()  # What is harmed is of another moment than this one.
    before = rng.capture()
    with pytest.raises(CheckpointDamaged, match="the RNG state") as raised:
        rng.restore(harmed)
    assert "\n" not in str(raised.value)
    now = draw()
    rng.restore(before)
    assert draw() == now
