"""Rows of docs/development/requirements.md that ask for the training library, as their pages put the question."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from elastic.testing import Failure, RunFailed, World, reached, run
from tests.support.script_runs import completed

ONE_MORE_EPOCH = """
import torch
import elastic

elastic.init()
model = torch.nn.Linear(2, 1, bias=False)
state = elastic.State(model=model)
state.restore()
print(f"step {state.step} weight {model.weight.tolist()}", flush=True)
for _ in elastic.epochs(state, 1):
    with torch.no_grad():
        model.weight.add_(1)
    state.commit(every=1)
"""


def test_a_job_starts_from_the_model_of_an_older_one_with_resume_from(tmp_path: Path) -> None:
    torch.save({"weight": torch.tensor([[0.25, 0.5]])}, tmp_path / "older.pt")
    (tmp_path / "train.py").write_text(ONE_MORE_EPOCH)
    launch = ["-m", "launcher", "--nproc-per-node", "1", "--job-id", "newer"]
    said = completed([*launch, "--resume-from", "older.pt", "train.py"], tmp_path)
    assert said == ["step 0 weight [[0.25, 0.5]]"]
    exported = tmp_path / "newer.pt"
    completed(["-m", "elastic.train.export", "checkpoints/newer", str(exported)], tmp_path)
    assert torch.load(exported, weights_only=True)["weight"].tolist() == [[1.25, 1.5]]


def mixed(steps: int) -> tuple[float, int]:
    """Steps in bfloat16 with a scaler whose scale doubles every second step; its scale and what it counts towards."""
    import elastic

    elastic.init()
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
    state = elastic.State(model=model, optimizer=optimizer, scaler=scaler)
    state.restore()
    while state.step < steps:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(torch.ones(2, 4)).float().square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        state.commit(every=1)
        state.save()
        reached(state.step)
    kept = scaler.state_dict()
    return kept["scale"], kept["_growth_tracker"]


def test_mixed_precision_keeps_its_scale_over_a_restart(tmp_path: Path) -> None:
    result = run(mixed, args=(5,), worlds=[World(1, Failure(3)), World(1)], checkpoint_dir=tmp_path)
    assert result.values == [(16.0, 1)], "doubled after steps 2 and 4"


def parameters() -> list[float]:
    """What a rank begins with, when each one made other parameters and nothing was saved yet."""
    import elastic

    here = elastic.init()
    model = torch.nn.Linear(2, 1)
    torch.nn.init.constant_(model.weight, here.rank)
    state = elastic.State(model=model)
    state.restore()
    return [float(one) for one in model.weight.flatten()]


def test_parameters_are_initialised_on_every_rank_and_alike(tmp_path: Path) -> None:
    assert run(parameters, worlds=[3], checkpoint_dir=tmp_path).values == [[0.0, 0.0]] * 3


def diverges(folder: str) -> None:
    """The second step ends with a parameter that is not finite."""
    import elastic

    elastic.init()
    model = torch.nn.Linear(2, 1)
    state = elastic.State(model=model)
    state.restore()
    state.commit(every=1)
    state.save()
    with torch.no_grad():
        model.weight[0, 1] = float("nan")
    state.commit(every=1)


def test_with_paddles_variable_a_commit_refuses_nan_names_the_parameter_and_keeps_the_good_checkpoint(
    tmp_path: Path,
) -> None:
    said = r"NotFinite: component model: weight has NaN at step 2 on rank 0; the newest checkpoint is step 1"
    with pytest.raises(RunFailed, match=said):
        run(diverges, args=(str(tmp_path),), worlds=[1], checkpoint_dir=tmp_path, env={"FLAGS_check_nan_inf": "1"})
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-0000000001.g1"]
