"""The state of a model whose weights are frozen but for a few."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from elastic.errors import ConfigError
from elastic.integrations.trained_weights import TrainedWeights


def model(seed: int = 1) -> Any:
    torch.manual_seed(seed)
    made: Any = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    made[0].requires_grad_(False)
    made[1].requires_grad_(False)
    return made


def test_frozen_parameters_are_left_out_and_buffers_are_not() -> None:
    state = TrainedWeights(model(), keep_frozen=False).state_dict()
    assert set(state) == {"1.running_mean", "1.running_var", "1.num_batches_tracked", "2.weight", "2.bias"}


def test_frozen_parameters_are_kept_where_the_script_says_so() -> None:
    made = model()
    assert set(TrainedWeights(made, keep_frozen=True).state_dict()) == set(made.state_dict())


def test_a_parameter_that_was_trained_once_is_kept_from_then_on_also_by_the_next_process() -> None:
    made = model()
    weights = TrainedWeights(made, keep_frozen=False)
    made[0].weight.requires_grad_(True)
    weights.note_trained()
    made[0].weight.requires_grad_(False)
    state = weights.state_dict()
    assert "0.weight" in state
    assert "0.bias" not in state

    later = TrainedWeights(model(2), keep_frozen=False)
    later.load_state_dict(state)
    assert set(later.state_dict()) == set(state)


def test_what_is_kept_is_loaded_and_what_is_frozen_stays_that_of_the_script() -> None:
    old, new = model(1), model(2)
    own = new[0].weight.clone()
    TrainedWeights(new, keep_frozen=False).load_state_dict(TrainedWeights(old, keep_frozen=False).state_dict())
    assert torch.equal(new[2].weight, old[2].weight)
    assert torch.equal(new[0].weight, own)


def test_what_a_quantized_parameter_saves_below_its_name_is_left_out_with_it() -> None:
    made = model()
    made[0].register_state_dict_post_hook(
        lambda module, state, prefix, _: state.update({f"{prefix}weight.absmax": torch.ones(1)})
    )
    assert "0.weight.absmax" not in TrainedWeights(made, keep_frozen=False).state_dict()


@pytest.mark.parametrize(
    ("changed", "where"),
    [("a name more", "3.weight exists only in the checkpoint"), ("a name less", "2.bias exists only in the model")],
)
def test_a_state_with_other_trained_parameters_is_refused(changed: str, where: str) -> None:
    state = TrainedWeights(model(), keep_frozen=False).state_dict()
    if changed == "a name more":
        state["3.weight"] = torch.ones(1)
    else:
        del state["2.bias"]
    with pytest.raises(ConfigError, match=where):
        TrainedWeights(model(), keep_frozen=False).load_state_dict(state)


def test_the_digest_tells_other_frozen_weights_and_does_not_change_with_training() -> None:
    made = model()
    weights = TrainedWeights(made, keep_frozen=False)
    first = weights.frozen_digest()
    made[2].weight.data.zero_()
    assert TrainedWeights(made, keep_frozen=False).frozen_digest() == first
    assert TrainedWeights(model(), keep_frozen=False).frozen_digest() == first
    assert TrainedWeights(model(2), keep_frozen=False).frozen_digest() != first


def test_weights_of_two_bytes_have_a_digest() -> None:
    assert TrainedWeights(model().bfloat16(), keep_frozen=False).frozen_digest()


def test_there_is_no_digest_where_everything_is_kept() -> None:
    assert TrainedWeights(model(), keep_frozen=True).frozen_digest() == ""
