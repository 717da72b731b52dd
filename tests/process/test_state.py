"""State in worlds of real processes: the same numbers, no finished step lost, and what restore says when it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from elastic.testing import Failure, Loss, Planned, Result, RunFailed, World, reached, record, run
from elastic.train.rollback import RECORD, Record
from tests.process import training

EPOCHS = 3
STEPS_OF_AN_EPOCH = 8
"""500 samples in batches of 70."""


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    """The parameters after a run in one world of one."""
    parameters: torch.Tensor = run(training.ddp, args=(EPOCHS, 100), worlds=[1]).values[0]["parameters"]
    return parameters


def starts(result: Result) -> list[int]:
    """The step at which each world began, the same on all of its ranks."""
    found = [
        {tuple(replica.records[0][:2]) for replica in world.replicas if replica.records} for world in result.worlds
    ]
    assert all(len(one) == 1 for one in found), found
    return [one.pop()[1] for one in found]


def last_step(result: Result, world: int) -> int:
    """The last step that a world finished, on any rank."""
    return max(int(one[1]) for replica in result.worlds[world].replicas for one in replica.records if one[0] != "start")


def same(result: Result, wanted: torch.Tensor) -> bool:
    return all(torch.allclose(value["parameters"], wanted, rtol=0, atol=1e-9) for value in result.values)


def test_planned_changes_3_2_1_3_2_lose_no_finished_step_and_end_with_the_same_numbers(
    tmp_path: Path, undisturbed: torch.Tensor
) -> None:
    result = run(
        training.ddp, args=(EPOCHS, 100), worlds=[3, 2, 1, 3, 2], change_at=[4, 9, 13, 18], checkpoint_dir=tmp_path
    )
    assert starts(result) == [0, *(last_step(result, world) for world in range(4))]
    assert [[replica.code for replica in world.replicas] for world in result.worlds] == [
        [143] * 3, [143] * 2, [143], [143] * 3, [0, 0],
    ]  # fmt: skip
    assert same(result, undisturbed)
    assert {value["seen"] for value in result.values} == {EPOCHS * STEPS_OF_AN_EPOCH}


def test_losses_and_failures_end_with_the_same_numbers_and_cost_at_most_the_steps_since_the_last_save(
    tmp_path: Path, undisturbed: torch.Tensor
) -> None:
    worlds = [World(3, Loss(5, nodes=(0,))), World(2, Failure(11, rank=1)), World(1, Failure(14)), World(3, Loss(20)),
              World(2)]  # fmt: skip
    result = run(training.ddp, args=(EPOCHS, 2, 0, 9), worlds=worlds, checkpoint_dir=tmp_path)
    assert same(result, undisturbed)
    for world in range(4):
        assert starts(result)[world + 1] >= last_step(result, world) - 3


def test_prefetching_loaders_lose_and_repeat_nothing(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    worlds = [World(2, Planned(3)), World(1, Planned(9)), World(2)]
    result = run(training.ddp, args=(EPOCHS, 5, 0, None, 2), worlds=worlds, checkpoint_dir=tmp_path)
    assert starts(result)[:2] == [0, last_step(result, 0)]
    assert same(result, undisturbed)


def test_sharded_training_goes_on_in_any_world_from_disk(tmp_path: Path) -> None:
    alone = run(training.fsdp, args=(14, 100), worlds=[1]).values[0]
    result = run(training.fsdp, args=(14, 100), worlds=[3, 2, 1, 3], change_at=[4, 7, 10], checkpoint_dir=tmp_path)
    assert starts(result) == [0, *(last_step(result, world) for world in range(3))]
    assert all(torch.allclose(value, alone, rtol=0, atol=1e-9) for value in result.values)


def test_a_folder_that_is_not_shared_is_said_in_one_line_at_the_first_commit(tmp_path: Path) -> None:
    result = run(training.ddp, args=(1, 2), worlds=[2], checkpoint_dirs=tmp_path)
    said = [note for note in result.worlds[0].replicas[0].notes if "not shared" in note]
    assert len(said) == 1
    assert "--checkpoint_dir" in said[0]


def test_who_cannot_read_the_newest_checkpoint_receives_it_from_who_can(tmp_path: Path) -> None:
    """Rank 0's folder has it, the newcomers' have not."""
    result = run(training.ddp, args=(2, 100), worlds=[World(1, Planned(5)), World(3)], checkpoint_dirs=tmp_path)
    assert starts(result) == [0, last_step(result, 0)]
    notes = result.worlds[1].replicas[0].notes
    assert any("resumed at step" in note and "sent to 2 ranks" in note for note in notes)


def test_training_never_starts_over_when_the_node_that_saved_is_gone(tmp_path: Path) -> None:
    worlds = [World(2, Loss(7, nodes=(0,))), World(1)]
    with pytest.raises(RunFailed) as failed:
        run(training.ddp, args=(EPOCHS, 2), worlds=worlds, checkpoint_dirs=tmp_path)
    text = str(failed.value)
    assert "was committed on" in text
    assert str(tmp_path) in text
    assert "--allow_rollback" in text


def test_a_rollback_that_is_allowed_starts_from_what_can_be_read(tmp_path: Path) -> None:
    worlds = [World(2, Loss(7, nodes=(0,))), World(1)]
    result = run(
        training.ddp, args=(2, 2), worlds=worlds, checkpoint_dirs=tmp_path, env={"ELASTIC_ALLOW_ROLLBACK": "1"}
    )
    assert starts(result) == [0, 0]
    assert any("--allow_rollback" in note for note in result.worlds[1].replicas[0].notes)


def test_a_damaged_newest_checkpoint_is_skipped_with_a_line(tmp_path: Path) -> None:
    run(training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path)
    newest = max(tmp_path.glob("step-*"))
    (newest / "model.pt").write_bytes(b"x" * (newest / "model.pt").stat().st_size)
    result = run(training.ddp, args=(1, 3), worlds=[2], checkpoint_dir=tmp_path)
    assert starts(result) == [6]
    assert f"checkpoint {newest} is skipped" in result.output


def test_restore_step_goes_back_once_and_keeps_what_was_newer(tmp_path: Path) -> None:
    run(training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path)
    worlds = [World(1, Failure(5)), World(1)]
    result = run(training.ddp, args=(1, 1), worlds=worlds, checkpoint_dir=tmp_path, env={"ELASTIC_RESTORE_STEP": "3"})
    assert starts(result)[0] == 3
    assert starts(result)[1] > 3
    assert list(tmp_path.glob("aside-*"))


def test_resume_from_takes_parts_and_values_and_begins_at_step_0(tmp_path: Path) -> None:
    before = run(training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path / "old").values[0]
    env = {"ELASTIC_RESUME_FROM": str(tmp_path / "old")}
    result = run(training.ddp, args=(0, 3), worlds=[2], checkpoint_dir=tmp_path / "new", env=env)
    assert starts(result) == [0]
    assert same(result, before["parameters"])
    assert {value["seen"] for value in result.values} == {STEPS_OF_AN_EPOCH}


def commit_first() -> None:
    import elastic

    elastic.init()
    elastic.State(model=training.network()).commit(every=1)


def test_a_commit_before_restore_is_one_line_that_names_the_mend() -> None:
    with pytest.raises(RunFailed, match=r"state.commit\(\) was called before state.restore\(\)"):
        run(commit_first, worlds=[1])


def draw(steps: int) -> list[float]:
    """Random numbers after a restore."""
    import elastic

    here = elastic.init()
    torch.manual_seed(here.rank)
    state = elastic.State(model=training.network())
    state.restore()
    record(["start", state.step])
    drawn = []
    while state.step < steps:
        drawn.append(float(torch.rand(())))
        state.commit(every=1)
        record([state.step, drawn[-1]])
        reached(state.step)
    return drawn


def test_random_numbers_go_on_by_rank_where_the_world_is_the_same(tmp_path: Path) -> None:
    whole = run(draw, args=(6,), worlds=[2])
    parted = run(draw, args=(6,), worlds=[World(2, Planned(3)), World(2)], checkpoint_dir=tmp_path)
    for rank in range(2):
        assert parted.values[rank] == whole.values[rank][starts(parted)[1] :]


def test_random_numbers_differ_by_rank_where_the_world_is_another_one(tmp_path: Path) -> None:
    result = run(draw, args=(5,), worlds=[World(1, Planned(3)), World(3)], checkpoint_dir=tmp_path)
    assert len({tuple(value) for value in result.values}) == 3


def fill(folder: str) -> Any:
    """Save once, lose the folder, save again."""
    import elastic

    elastic.init()
    state = elastic.State(model=training.network())
    state.restore()
    state.commit(every=1)
    state.save()
    shutil.rmtree(folder)
    Path(folder).write_text("a file stands there now")
    state.commit(every=1)
    state.save()


def test_a_save_that_fails_is_an_error_that_names_folder_and_mend(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    with pytest.raises(RunFailed, match=r"CheckpointError: .*another --checkpoint_dir"):
        run(fill, args=(str(folder),), worlds=[1], checkpoint_dir=folder)


class TestMemory:
    """With memory_every=1 a loss costs at most one step, and nothing is read from disk."""

    def test_survivors_go_on_from_memory_and_newcomers_receive_it(
        self, tmp_path: Path, undisturbed: torch.Tensor
    ) -> None:
        worlds = [World(3, Loss(6, nodes=(1,))), World(3, Failure(12, rank=0)), World(2)]
        result = run(training.ddp, args=(EPOCHS, 1000, 1), worlds=worlds, checkpoint_dir=tmp_path)
        begun = starts(result)
        for world in range(2):
            assert last_step(result, world) - 1 <= begun[world + 1] <= last_step(result, world)
            assert any("from memory" in note for note in result.worlds[world + 1].replicas[0].notes)
        assert same(result, undisturbed)

    def test_shards_of_a_lost_node_come_from_its_neighbour(self, tmp_path: Path) -> None:
        alone = run(training.fsdp, args=(12, 1000), worlds=[1]).values[0]
        worlds = [World(3, Loss(5, nodes=(0,))), World(2, Loss(9, nodes=(1,))), World(2)]
        result = run(training.fsdp, args=(12, 1000, 1), worlds=worlds, checkpoint_dir=tmp_path)
        begun = starts(result)
        for world in range(2):
            assert last_step(result, world) - 1 <= begun[world + 1] <= last_step(result, world)
            assert any("from memory" in note for note in result.worlds[world + 1].replicas[0].notes)
        assert all(torch.allclose(value, alone, rtol=0, atol=1e-9) for value in result.values)

    def test_what_is_newer_on_disk_is_taken_from_there(self, tmp_path: Path) -> None:
        """Memory every 4 steps, disk every 3: step 6 is on disk, and 4 in memory."""
        worlds = [World(2, Failure(7)), World(2)]
        result = run(training.ddp, args=(1, 3, 4), worlds=worlds, checkpoint_dir=tmp_path)
        assert starts(result)[1] == 6
        assert any(str(tmp_path) in note for note in result.worlds[1].replicas[0].notes)

    def test_that_another_run_went_back_in_this_folder_does_not_matter_to_memory(self, tmp_path: Path) -> None:
        """Its generations had higher numbers than ours."""
        record = Record(run="another", step=1, generation=99, aside=(), at=0.0)
        (tmp_path / RECORD).write_bytes(msgspec.json.encode(record))
        result = run(training.ddp, args=(1, 1000, 1), worlds=[World(2, Failure(4)), World(2)], checkpoint_dir=tmp_path)
        assert any("from memory" in note for note in result.worlds[1].replicas[0].notes)
