"""What parts and values of a state may hold, in worlds of real processes: all of it comes back, or is refused."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

import elastic
from elastic.testing import Failure, NodeFailure, Planned, RunFailed, World, reached, record, run
from elastic.train.data.permutation import Permutation


class Odd:
    """A part whose state `torch.load(weights_only=True)` refuses at one step."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.steps = 0

    def state_dict(self) -> dict[str, Any]:
        return {"odd": Path("here") if self.steps == self.at else "", "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def warmed_up(steps: int, every: int | None, memory_every: int | None) -> list[Any]:
    """A learning rate that numpy made, milestones that are a Counter, and a list that grows."""
    here = elastic.init()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    rates = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 + numpy.cos(step))
    milestones = torch.optim.lr_scheduler.MultiStepLR(torch.optim.SGD(model.parameters(), lr=1.0), [2, 2, 30])
    state = elastic.State(model=model, optimizer=optimizer, rates=rates, milestones=milestones, seen=[])
    state.restore()
    record(["start", here.rank, state.step])
    while state.step < steps:
        optimizer.step()
        rates.step()
        milestones.optimizer.step()
        milestones.step()
        state.seen.append(numpy.float64(state.step))
        state.commit(every=every, memory_every=memory_every)
        reached(f"step {state.step}")
    return [
        [float(one) for one in state.seen],
        float(optimizer.param_groups[0]["lr"]),
        type(milestones.milestones) is Counter,
    ]


@pytest.mark.parametrize(("every", "memory_every"), [(1, None), (None, 1)])
def test_numbers_of_numpy_come_back_as_numbers_to_all_ranks(
    tmp_path: Path, every: int | None, memory_every: int | None
) -> None:
    worlds = [World(1, Planned("step 2")), World(2, NodeFailure("step 4", nodes=(0,))), World(2)]
    result = run(warmed_up, args=(6, every, memory_every), worlds=worlds, checkpoint_dir=tmp_path)
    starts = [world.replicas[-1].records[0][2] for world in result.worlds]
    assert all(start >= least for start, least in zip(starts, [0, 2, 3], strict=True))
    assert result.values == [[[0.0, 1.0, 2.0, 3.0, 4.0, 5.0], 1 + numpy.cos(6), True]] * 2


def odd(at: int, steps: int, every: int | None, memory_every: int | None) -> int:
    elastic.init()
    part = Odd(at)
    state = elastic.State(odd=part)
    state.restore()
    record(["start", state.step])
    while state.step < steps:
        part.steps += 1
        state.commit(every=every, memory_every=memory_every)
        reached(f"step {state.step}")
    return part.steps


def test_a_part_that_could_not_be_loaded_is_refused_at_the_start_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(
        RunFailed,
        match=r"component .odd. contains pathlib\S*PosixPath, which torch\.load\(weights_only=True\) rejects",
    ):
        run(odd, args=(0, 3, None, None), worlds=[2], checkpoint_dir=tmp_path)


def test_what_could_not_be_loaded_is_not_kept_in_memory_and_a_line_says_so(tmp_path: Path) -> None:
    result = run(odd, args=(1, 3, None, 1), worlds=[1], checkpoint_dir=tmp_path)
    assert result.values == [3]
    (line,) = [note for note in result.worlds[0].replicas[0].notes if "saves no in-memory checkpoint" in note]
    assert re.search(r"contains pathlib\S*PosixPath", line)  # Python 3.13 defines it in pathlib._local.


def test_a_copy_in_memory_that_became_unreadable_leaves_it_to_disk(tmp_path: Path) -> None:
    """The state is plain at the first commit, and at those that go to disk."""
    worlds = [World(2, NodeFailure("step 4", nodes=(0,))), World(1)]
    result = run(odd, args=(4, 6, 3, 1), worlds=worlds, checkpoint_dir=tmp_path)
    assert result.values == [6]


def elsewhere(steps: int, memory_every: int | None) -> list[float]:
    """What is made without a device lands on another one than the model."""
    elastic.init()
    torch.set_default_device("meta")
    model = torch.nn.Linear(2, 2, device="cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    state = elastic.State(model=model, optimizer=optimizer, total=torch.zeros(2, device="cpu"))
    state.restore()
    while state.step < steps:
        state.total += 1
        state.commit(every=1, memory_every=memory_every)
        reached(f"step {state.step}")
    state.finish()
    return [float(one) for one in state.total]


@pytest.mark.parametrize("memory_every", [None, 1])
def test_the_default_device_of_a_script_is_its_own(tmp_path: Path, memory_every: int | None) -> None:
    worlds = [World(2, NodeFailure("step 2", nodes=(0,))), World(2)]
    result = run(elsewhere, args=(4, memory_every), worlds=worlds, checkpoint_dir=tmp_path)
    assert result.values == [[4.0, 4.0]] * 2


def test_the_order_of_the_data_does_not_depend_on_the_default_device() -> None:
    usual = Permutation(5, 0, None).take(0, range(5))
    with torch.device("meta"):
        assert Permutation(5, 0, None).take(0, range(5)) == usual


def later(steps: int, every: int | None, memory_every: int | None) -> list[float]:
    """FSDP2 with a layer that is used from step 3 on, and one that is frozen until step 1."""
    from torch.distributed.fsdp import fully_shard

    here = elastic.init()
    torch.manual_seed(0)
    model = torch.nn.ModuleList([torch.nn.Linear(2, 2).double() for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    model[1].requires_grad_(False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    state = elastic.State(model=model, optimizer=optimizer)
    state.restore()
    record(["start", here.rank, state.step])
    while state.step < steps:
        model[1].requires_grad_(state.step >= 1)
        hidden = model[0](torch.full((1, 2), 1.0 + state.step).double())
        if state.step >= 1:
            hidden = model[1](hidden)
        if state.step >= 3:
            hidden = model[2](hidden)
        optimizer.zero_grad()
        hidden.square().sum().backward()
        optimizer.step()
        state.commit(every=every, memory_every=memory_every)
        reached(f"step {state.step}")
    return [float(one.full_tensor().sum()) for one in model.parameters()]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("every", "memory_every"), [(1, None), (None, 1)])
def test_a_sharded_layer_that_is_trained_only_later_changes_nothing_in_a_restore(
    tmp_path: Path, every: int | None, memory_every: int | None
) -> None:
    undisturbed = run(later, args=(6, None, None), worlds=[1], checkpoint_dir=tmp_path / "a")
    worlds = [World(2, Failure("step 2")), World(2, Failure("step 4")), World(1)]
    result = run(later, args=(6, every, memory_every), worlds=worlds, checkpoint_dir=tmp_path / "b")
    assert result.values[0] == pytest.approx(undisturbed.values[0], abs=1e-9)


def two_states(steps: int, folder: Path, memory_every: int) -> list[int]:
    """Two states of one script; the one in the job's own folder is committed last."""
    elastic.init()
    other = elastic.State(model=torch.nn.Linear(1, 1), seen=0)
    other.restore(folder=folder)
    state = elastic.State(model=torch.nn.Linear(2, 2), steps=0)
    state.restore()
    while state.step < steps:
        other.seen += 1
        other.commit(memory_every=memory_every)
        state.steps += 1
        state.commit(memory_every=memory_every)
        reached(f"step {state.step}")
    return [state.steps, other.seen, other.step]


@pytest.mark.parametrize("memory_every", [1, 1000])
def test_two_states_of_one_script_go_on_each_where_it_was(tmp_path: Path, memory_every: int) -> None:
    """The first world ends by a failure where memory serves, and as planned where nothing else was due."""
    end = Failure("step 2", rank=1) if memory_every == 1 else Planned("step 2")
    steps = 60 if memory_every == 1 else 5000  # A plan is agreed on while steps run: some must be left.
    result = run(
        two_states,
        args=(steps, tmp_path / "b", memory_every),
        worlds=[World(2, end), World(2)],
        checkpoint_dir=tmp_path,
    )
    assert result.values == [[steps] * 3] * 2


def one_more(names: list[str], save: bool) -> list[float]:
    """Modules that differ by rank until they are restored."""
    here = elastic.init()
    torch.manual_seed(here.rank)
    modules = {name: torch.nn.Linear(1, 1) for name in names}
    state = elastic.State(**modules)
    state.restore()
    if save:
        state.commit(every=1)
        state.finish()
    return [float(one.weight) for one in modules.values()]


@pytest.mark.parametrize("resume", [False, True])
def test_a_part_that_the_checkpoint_does_not_have_is_that_of_rank_0_on_all_ranks(tmp_path: Path, resume: bool) -> None:
    run(one_more, args=(["a"], True), worlds=[1], checkpoint_dir=tmp_path / "old")
    env = {"ELASTIC_RESUME_FROM": str(tmp_path / "old")} if resume else {}
    folder = tmp_path / ("new" if resume else "old")
    first, second = run(one_more, args=(["a", "b"], False), worlds=[2], checkpoint_dir=folder, env=env).values
    assert first == second
