"""What a training with Accelerate keeps of its data: the order, the size of a step and the place."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from elastic.errors import ConfigError
from elastic.train.data.sampler import ElasticSampler
from tests.support.frameworks import needs

if TYPE_CHECKING:
    from elastic.integrations.accelerate.training_data import TrainingData

pytestmark = needs("accelerate")

LENGTH = 50


def data(
    *, total: int = 12, seed: int = 1, fixed: bool = False, drop_last: bool = False, own: bool = False
) -> TrainingData:
    from elastic.integrations.accelerate.training_data import TrainingData

    sampler = ElasticSampler(LENGTH, seed=seed)
    return TrainingData(
        sampler, per_rank=4, total=total, fixed_total=fixed, nominal=4, drop_last=drop_last, own_sampler=own
    )


@pytest.mark.parametrize(("drop_last", "steps"), [(False, 5), (True, 4)])
def test_an_epoch_has_the_steps_that_its_samples_make(drop_last: bool, steps: int) -> None:
    assert data(drop_last=drop_last).steps == steps


def test_a_later_world_takes_the_step_and_the_seed_of_the_first_one() -> None:
    first, later = data(total=12, seed=1), data(total=8, seed=2)
    first.set_epoch(3)
    first.saves = 2
    later.load_state_dict(first.state_dict())
    assert (later.total, later.seed, later.saves, later.sampler.epoch) == (12, 1, 2, 3)
    assert later.sampler.batch is not None
    assert (later.sampler.batch.total, later.sampler.batch.rule.max_per_rank) == (12, 4)


def test_a_step_that_the_user_has_chosen_counts_more_than_what_was_remembered() -> None:
    later = data(total=8, fixed=True)
    later.load_state_dict(data(total=12).state_dict())
    assert later.total == 8


def test_a_sampler_of_the_users_own_keeps_its_seed_and_refuses_another_one() -> None:
    later = data(seed=2, own=True)
    with pytest.raises(ConfigError, match=r"the checkpoint was made with seed 1.*write ElasticSampler\(..., seed=1\)"):
        later.load_state_dict(data(seed=1).state_dict())


@pytest.mark.parametrize("total", [0, -1, 2.5])
def test_a_step_has_a_whole_number_of_samples(total: int) -> None:
    with pytest.raises(ConfigError, match="write a number of samples, 1 or more"):
        data(total=total)
