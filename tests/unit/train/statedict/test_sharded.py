"""The optimizer of a sharded module: what is saved decides what is loaded. Its tensors are whole ones here."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from elastic.train.statedict.sharded import SavedTensor, ShardedOptimizer, is_sharded


def made(lr: float = 0.1, frozen: bool = False) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 1))
    model[0].requires_grad_(not frozen)
    weights, others = [model[0].weight, model[1].weight], [model[0].bias, model[1].bias]
    return model, torch.optim.Adam([{"params": weights, "lr": lr}, {"params": others, "weight_decay": lr}], lr=lr)


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer, *, first: bool = True) -> None:
    hidden = model[0](torch.ones(1, 2)) if first else torch.ones(1, 3)  # type: ignore[index]
    optimizer.zero_grad()
    model[1](hidden).sum().backward()  # type: ignore[index]
    optimizer.step()


def carried(before: ShardedOptimizer, after: ShardedOptimizer) -> None:
    saved = before.take()
    kinds = {k: SavedTensor(tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else None for k, v in saved.items()}
    template = after.template(kinds)
    assert template.keys() == saved.keys()
    for key, value in saved.items():
        if isinstance(value, torch.Tensor):
            template[key].copy_(value)
        else:
            template[key] = value
    after.put(template)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other) and one.dtype == other.dtype
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_moments_and_the_settings_of_each_group_come_back() -> None:
    before, after = made(), made(lr=0.7)
    stepped(*before)
    carried(ShardedOptimizer(*before), ShardedOptimizer(*after))
    assert same(after[1].state_dict(), before[1].state_dict())


def test_a_parameter_that_had_no_gradient_yet_has_nothing_to_load() -> None:
    before, after = made(), made()
    stepped(*before, first=False)
    carried(ShardedOptimizer(*before), ShardedOptimizer(*after))
    assert len(after[1].state_dict()["state"]) == 2
    assert same(after[1].state_dict(), before[1].state_dict())


def test_a_parameter_that_is_frozen_when_it_is_restored_keeps_its_moments() -> None:
    before, after = made(), made(frozen=True)
    stepped(*before)
    carried(ShardedOptimizer(*before), ShardedOptimizer(*after))
    assert same(after[1].state_dict(), before[1].state_dict())


def test_to_look_at_an_optimizer_does_not_make_it_step() -> None:
    model, optimizer = made()
    optimizer.register_step_post_hook(lambda *_: pytest.fail("it stepped"))
    part = ShardedOptimizer(model, optimizer)
    part.put(part.template(dict.fromkeys(part.take())) | part.take())
    assert not optimizer.state


def test_a_compiled_module_has_the_names_of_the_bare_one() -> None:
    bare, compiled = made(), made()
    compiled[0][0] = torch.compile(compiled[0][0], backend="eager")  # type: ignore[index, operator]
    assert ShardedOptimizer(*compiled).take().keys() == ShardedOptimizer(*bare).take().keys()


def test_an_optimizer_of_other_parameters_is_refused_by_their_names() -> None:
    before, after = made(), made()
    del after[1].param_groups[1]
    with pytest.raises(ValueError, match=r"this optimizer lacks 0\.bias, 1\.bias"):
        carried(ShardedOptimizer(*before), ShardedOptimizer(*after))


def test_of_parameters_with_new_names_it_is_said_who_has_not_which() -> None:
    before, after = made(), made()
    del before[1].param_groups[1], after[1].param_groups[0]
    with pytest.raises(
        ValueError, match=r"this optimizer lacks 0\.weight, 1\.weight, and the checkpoint lacks 0\.bias, 1\.bias$"
    ):
        carried(ShardedOptimizer(*before), ShardedOptimizer(*after))


def test_what_is_loaded_into_has_the_shape_and_the_type_of_what_was_saved() -> None:
    saved = {
        "state.0.weight.exp_avg": SavedTensor((3, 2), torch.bfloat16),
        "state.0.weight.step": SavedTensor((), torch.float32),
        "state.0.weight.factors": SavedTensor((3,), torch.float64),
        "state.gone.exp_avg": SavedTensor((4,), torch.int8),
        "param_groups.0.weight.lr": SavedTensor((), torch.float64),
        "param_groups.0.weight.betas": None,
    }
    made_for = ShardedOptimizer(*made()).template(saved)
    found = {key: one if one is None else SavedTensor(tuple(one.shape), one.dtype) for key, one in made_for.items()}
    assert found == saved
    assert not any(one.requires_grad for one in made_for.values() if one is not None)


def test_a_tensor_is_looked_at_while_another_thread_has_only_begun_to_load_what_shards_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A save's thread loads that module; until it is whole it has no class of sharded tensors."""
    name = "torch.distributed.tensor"
    monkeypatch.setitem(sys.modules, name, ModuleType(name))
    assert not is_sharded([torch.zeros(1)])
