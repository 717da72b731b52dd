"""What the commits of a state leave on disk, in a world of one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import elastic
from elastic.errors import CheckpointError


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


def begun(folder: Path) -> tuple[elastic.State, bool]:
    """A state, and whether there was something to go on from."""
    state = elastic.State(model=torch.nn.Linear(2, 1), best=0.0)
    return state, state.restore(folder=folder)


def saved(folder: Path) -> list[int]:
    return sorted(int(path.name[5:15]) for path in folder.glob("step-*"))


def test_only_the_steps_that_are_due_are_saved_and_the_last_one_at_the_end(tmp_path: Path) -> None:
    state, _ = begun(tmp_path)
    for _ in range(5):
        state.commit(every=2)
    state.finish()
    assert saved(tmp_path) == [2, 4, 5]


def test_a_script_that_never_saves_has_nothing_saved_at_its_end(tmp_path: Path) -> None:
    state, _ = begun(tmp_path)
    for _ in range(3):
        state.commit()
    state.finish()
    assert saved(tmp_path) == []


def test_a_step_that_is_saved_is_not_saved_again(tmp_path: Path) -> None:
    state, _ = begun(tmp_path)
    state.commit(every=1)
    state.save()
    (folder,) = tmp_path.glob("step-*")
    before = folder.stat().st_ino, (folder / "meta.json").stat().st_ino
    state.save()
    state.finish()
    assert (folder.stat().st_ino, (folder / "meta.json").stat().st_ino) == before


def test_step_epoch_and_values_go_on_where_the_last_save_was(tmp_path: Path) -> None:
    state, there = begun(tmp_path)
    assert not there
    for epoch in elastic.epochs(state, 2):
        for _ in range(2):
            state.best = 10.0 * epoch + state.step
            state.commit(every=3)
    later, there = begun(tmp_path)
    assert there
    assert (later.step, later.epoch, later.best) == (4, 2, 13.0)
    assert list(elastic.epochs(later, 2)) == []
    assert list(elastic.epochs(later, 3)) == [2]


def test_what_is_saved_before_the_first_step_is_gone_on_from(tmp_path: Path) -> None:
    state, _ = begun(tmp_path)
    state.best = 7.0
    state.save()
    then = torch.rand(2)
    torch.manual_seed(1)
    later, there = begun(tmp_path)
    assert there
    assert (later.step, later.best) == (0, 7.0)
    assert torch.equal(torch.rand(2), then)
    assert torch.equal(later.model.weight, state.model.weight)


def test_as_many_checkpoints_stay_as_restore_was_told(tmp_path: Path) -> None:
    state = elastic.State(best=0.0)
    state.restore(folder=tmp_path, keep=1)
    for _ in range(3):
        state.commit(every=1)
    state.finish()
    assert saved(tmp_path) == [3]


def test_a_commit_that_saves_nothing_still_counts_the_batches_taken_in_their_epoch(tmp_path: Path) -> None:
    sampler = elastic.ElasticSampler(6, shuffle=False)
    loader = DataLoader(TensorDataset(torch.arange(6)), batch_size=2, sampler=sampler)
    state = elastic.State(sampler=sampler)
    state.restore(folder=tmp_path)
    taken = []
    for epoch in elastic.epochs(state, 2):
        for _ in range(2):
            for (batch,) in loader:
                taken.append((sampler.epoch, batch.tolist()))
                state.commit()
                if batch[0] == 0:
                    break  # The second loop goes on from here.
        assert sampler.epoch == epoch
    assert taken == [(epoch, [first, first + 1]) for epoch in range(2) for first in (0, 2, 4)]


def test_a_save_that_failed_is_raised_at_the_next_commit_and_a_later_one_stands(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    state, _ = begun(folder)
    folder.write_text("in the way")
    state.commit(every=1)
    with pytest.raises(CheckpointError, match="a part of that path is a file"):
        state.commit(every=1)
    folder.unlink()
    state.finish()
    assert saved(folder) == [state.step]


def test_what_is_restored_from_disk_is_not_saved_again_before_a_step_was_made(tmp_path: Path) -> None:
    state, _ = begun(tmp_path)
    state.commit(every=1)
    state.finish()
    (folder,) = tmp_path.glob("step-*")
    before = folder.stat().st_ino, (folder / "meta.json").stat().st_ino
    later, _ = begun(tmp_path)
    later.save()
    assert (folder.stat().st_ino, (folder / "meta.json").stat().st_ino) == before
