"""State in worlds of real processes: the same numbers, no finished step lost, and what restore says when it cannot."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from elastic.channel.messages import CheckpointSaved, Unrecoverable, WorkerMessage, said
from elastic.testing import Failure, NodeFailure, Planned, Result, RunFailed, World, reached, record, run
from elastic.train.restore.restore_step import RECORD, RollbackRecord
from tests.scripts import state_training
from tests.support import script_runs

EPOCHS = 3
STEPS_OF_AN_EPOCH = 8
"""500 samples in batches of 70."""


@pytest.fixture(scope="module")
def undisturbed() -> torch.Tensor:
    """The parameters after a run in one world of one."""
    parameters: torch.Tensor = run(state_training.ddp, args=(EPOCHS, 100), worlds=[1]).values[0]["parameters"]
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
        state_training.ddp,
        args=(EPOCHS, 100),
        worlds=[3, 2, 1, 3, 2],
        change_at=[4, 9, 13, 18],
        checkpoint_dir=tmp_path,
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
    worlds = [World(3, NodeFailure(5, nodes=(0,))), World(2, Failure(11, rank=1)), World(1, Failure(14)),
              World(3, NodeFailure(20)), World(2)]  # fmt: skip
    result = run(state_training.ddp, args=(EPOCHS, 2, 0, 9), worlds=worlds, checkpoint_dir=tmp_path)
    assert same(result, undisturbed)
    for world in range(4):
        assert starts(result)[world + 1] >= last_step(result, world) - 3


def test_prefetching_loaders_lose_and_repeat_nothing(tmp_path: Path, undisturbed: torch.Tensor) -> None:
    worlds = [World(2, Planned(3)), World(1, Planned(9)), World(2)]
    result = run(state_training.ddp, args=(EPOCHS, 5, 0, None, 2), worlds=worlds, checkpoint_dir=tmp_path)
    assert starts(result)[:2] == [0, last_step(result, 0)]
    assert same(result, undisturbed)


def test_sharded_training_goes_on_in_any_world_from_disk(tmp_path: Path) -> None:
    alone = run(state_training.fsdp, args=(14, 100), worlds=[1]).values[0]
    result = run(
        state_training.fsdp, args=(14, 100), worlds=[3, 2, 1, 3], change_at=[4, 7, 10], checkpoint_dir=tmp_path
    )
    assert starts(result) == [0, *(last_step(result, world) for world in range(3))]
    assert all(torch.allclose(value, alone, rtol=0, atol=1e-9) for value in result.values)


def test_a_folder_that_is_not_shared_is_said_in_one_line_at_the_first_commit(tmp_path: Path) -> None:
    result = run(state_training.ddp, args=(1, 2), worlds=[2], checkpoint_dirs=tmp_path)
    said = [note for note in result.worlds[0].replicas[0].notes if "not shared" in note]
    assert len(said) == 1
    assert "--checkpoint-dir" in said[0]


def test_who_cannot_read_the_newest_checkpoint_receives_it_from_who_can(tmp_path: Path) -> None:
    """Rank 0's folder has it, the newcomers' have not."""
    result = run(state_training.ddp, args=(2, 100), worlds=[World(1, Planned(5)), World(3)], checkpoint_dirs=tmp_path)
    assert starts(result) == [0, last_step(result, 0)]
    notes = result.worlds[1].replicas[0].notes
    assert any("resumed at step" in note and "sent to 2 ranks" in note for note in notes)


def test_training_never_starts_over_when_the_node_that_saved_is_gone(tmp_path: Path) -> None:
    worlds = [World(2, NodeFailure(7, nodes=(0,))), World(1)]
    with pytest.raises(RunFailed) as failed:
        run(state_training.ddp, args=(EPOCHS, 2), worlds=worlds, checkpoint_dirs=tmp_path)
    text = str(failed.value)
    assert "was committed on" in text
    assert str(tmp_path) in text
    assert "--allow-rollback" in text


def test_a_restore_that_is_refused_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    folder.write_text("a file stands there")
    script = "import elastic; elastic.init(); elastic.State(best=0.0).restore()"
    environ = {**os.environ, "ELASTIC_CHECKPOINT_DIR": str(folder)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=90)
    assert done.returncode == 1
    assert done.stderr.startswith("elastic: error: ")
    assert str(folder) in done.stderr
    assert len(done.stderr.splitlines()) == 1


REFUSED = """
import elastic
state = elastic.State(best=0.0)
try:
    state.restore(folder="file")
except elastic.errors.RestoreRefused as error:
    print("refused")
elastic.State(best=0.0).restore(folder="folder", step=5)
"""


SEVERAL = """
import elastic
student, teacher = elastic.State(best=0.0), elastic.State(best=0.0)
student.restore()
teacher.restore(folder="teacher")
for state in (teacher, student):
    state.commit(every=1)
    state.finish()
"""


def heard(script: str, folder: Path) -> tuple[list[WorkerMessage], int, str]:
    """What an agent hears of a script, the script's exit code, and what it prints."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as agent:
        agent.bind(str(folder / "talk"))
        agent.listen()
        code, out, _ = script_runs.run(("-c", script), folder, ELASTIC_CHANNEL=str(folder / "talk"))
        theirs, _ = agent.accept()
        with theirs:
            return [said.decode(data) for data in iter(lambda: theirs.recv(1 << 16), b"")], code, out


def test_a_restore_that_no_restart_can_mend_is_told_to_the_agent_and_a_folder_that_may_come_back_is_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    words, code, out = heard(REFUSED, tmp_path)
    assert out == "refused\n"
    (word,) = [word for word in words if isinstance(word, Unrecoverable)]
    assert word.code == code == 1
    assert word.text == "--restore-step 5: there is no such checkpoint; folder has no checkpoint"


def test_a_checkpoint_of_another_state_is_not_taken_for_that_of_the_job(tmp_path: Path) -> None:
    """Otherwise the job's own state would miss it at the next start, if that is before its own first one."""
    words, _, _ = heard(SEVERAL, tmp_path)
    assert [Path(word.folder).parent.name for word in words if isinstance(word, CheckpointSaved)] == ["checkpoints"]


def test_a_planned_stop_loses_nothing_when_the_node_that_saved_leaves_with_its_folder(tmp_path: Path) -> None:
    worlds = [World(2, Planned(5, leave=(0,))), World(1)]
    result = run(state_training.ddp, args=(1, 3), worlds=worlds, checkpoint_dirs=tmp_path)
    assert starts(result) == [0, last_step(result, 0)]


def test_a_rollback_that_is_allowed_starts_from_what_can_be_read(tmp_path: Path) -> None:
    worlds = [World(2, NodeFailure(7, nodes=(0,))), World(1)]
    result = run(
        state_training.ddp, args=(2, 2), worlds=worlds, checkpoint_dirs=tmp_path, env={"ELASTIC_ALLOW_ROLLBACK": "1"}
    )
    assert starts(result) == [0, 0]
    assert any("--allow-rollback" in note for note in result.worlds[1].replicas[0].notes)


def test_a_damaged_newest_checkpoint_is_skipped_with_a_line(tmp_path: Path) -> None:
    run(state_training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path)
    newest = max(tmp_path.glob("step-*"))
    (newest / "model.pt").write_bytes(b"x" * (newest / "model.pt").stat().st_size)
    result = run(state_training.ddp, args=(1, 3), worlds=[2], checkpoint_dir=tmp_path)
    assert starts(result) == [6]
    assert f"skipping checkpoint {newest}: " in result.output


def test_a_damaged_shard_of_the_newest_checkpoint_is_skipped_with_a_line_too(tmp_path: Path) -> None:
    run(state_training.fsdp, args=(6, 3), worlds=[2], checkpoint_dir=tmp_path)
    newest = max(tmp_path.glob("step-*"))
    shard = newest / "optimizer" / "__1_0.distcp"
    shard.write_bytes(b"x" * shard.stat().st_size)
    result = run(state_training.fsdp, args=(6, 3), worlds=[1], checkpoint_dir=tmp_path)
    assert starts(result) == [3]
    assert f"skipping checkpoint {newest}: " in result.output
    assert any(f"skipped {newest.name}: optimizer: the checksum" in note for note in result.worlds[0].replicas[0].notes)


def test_restore_step_goes_back_once_and_keeps_what_was_newer(tmp_path: Path) -> None:
    run(state_training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path)
    worlds = [World(1, Failure(5)), World(1)]
    result = run(
        state_training.ddp, args=(1, 1), worlds=worlds, checkpoint_dir=tmp_path, env={"ELASTIC_RESTORE_STEP": "3"}
    )
    assert starts(result)[0] == 3
    assert starts(result)[1] > 3
    assert list(tmp_path.glob("aside-*"))


def test_resume_from_takes_parts_and_values_and_begins_at_step_0(tmp_path: Path) -> None:
    before = run(state_training.ddp, args=(1, 3), worlds=[1], checkpoint_dir=tmp_path / "old").values[0]
    env = {"ELASTIC_RESUME_FROM": str(tmp_path / "old")}
    result = run(state_training.ddp, args=(0, 3), worlds=[2], checkpoint_dir=tmp_path / "new", env=env)
    assert starts(result) == [0]
    assert same(result, before["parameters"])
    assert {value["seen"] for value in result.values} == {STEPS_OF_AN_EPOCH}


def named_otherwise(path: str) -> None:
    """A module whose name is not that in the file."""
    import elastic

    elastic.init()
    elastic.State(net=state_training.network()).restore(resume_from=path)


def test_resume_from_a_file_without_any_part_of_the_state_is_an_error(tmp_path: Path) -> None:
    torch.save(state_training.network().state_dict(), tmp_path / "m.pt")
    with pytest.raises(RunFailed, match=r"it has the components model, but elastic.State has net; use the same name"):
        run(named_otherwise, args=(str(tmp_path / "m.pt"),), worlds=[1])


def commit_first() -> None:
    import elastic

    elastic.init()
    elastic.State(model=state_training.network()).commit(every=1)


def test_a_commit_before_restore_is_one_line_that_names_the_mend() -> None:
    with pytest.raises(RunFailed, match=r"state.commit\(\) was called before state.restore\(\)"):
        run(commit_first, worlds=[1])


def rewritten(*, scored: bool) -> Any:
    """A script before and after it was rewritten: `best` becomes a part, and another part comes in."""
    import elastic

    elastic.init()
    model = state_training.network()
    if scored:
        best = torch.nn.Linear(1, 1)
        state = elastic.State(model=model, best=best, ema=state_training.network(1))
    else:
        state = elastic.State(model=model, best=1.5)
    state.restore()
    state.commit(every=1)
    state.finish()
    return state.best if not scored else state.best is best


def test_parts_that_came_with_a_new_version_of_the_script_are_named_and_win_over_old_values(tmp_path: Path) -> None:
    assert run(rewritten, kwargs={"scored": False}, worlds=[1], checkpoint_dir=tmp_path).values == [1.5]
    result = run(rewritten, kwargs={"scored": True}, worlds=[1], checkpoint_dir=tmp_path)
    assert result.values == [True]
    notes = result.worlds[0].replicas[0].notes
    assert any("has no component best, ema, which starts with its initial state" in note for note in notes)


def grown() -> None:
    """A model that does not fit the checkpoint."""
    import elastic

    elastic.init()
    elastic.State(model=torch.nn.Linear(3, 3)).restore()


def test_a_part_that_does_not_fit_is_named(tmp_path: Path) -> None:
    run(rewritten, kwargs={"scored": False}, worlds=[1], checkpoint_dir=tmp_path)
    with pytest.raises(RunFailed, match="the error is in component model of the checkpoint of step 1"):
        run(grown, worlds=[1], checkpoint_dir=tmp_path)


def goes_bad(steps: int) -> None:
    """Commit to memory each step and to disk each third one; the parameters are nan in the last one."""
    import elastic

    elastic.init()
    model = state_training.network()
    state = elastic.State(model=model)
    state.restore()
    record(["start", state.step])
    while state.step < steps:
        if state.step + 1 == steps:
            next(model.parameters()).data.fill_(float("nan"))
        state.commit(every=3, memory_every=1)
        record([state.step])
        reached(state.step)


def test_a_commit_with_nan_names_the_checkpoint_on_disk_also_after_a_restore_from_memory(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="the newest checkpoint is step 3"):
        run(
            goes_bad,
            args=(6,),
            worlds=[World(1, Failure(5)), World(1)],
            checkpoint_dir=tmp_path,
            env={"ELASTIC_CHECK_NAN": "1"},
        )


def never_saved(steps: int) -> None:
    """Count steps that are kept nowhere."""
    import elastic

    elastic.init()
    state = elastic.State(model=state_training.network())
    state.restore()
    while state.step < steps:
        state.commit()
        reached(state.step)


def test_a_world_that_starts_over_because_nothing_was_saved_says_so(tmp_path: Path) -> None:
    result = run(never_saved, args=(4,), worlds=[World(1, Failure(3)), World(1)], checkpoint_dir=tmp_path)
    said = [any("training starts at step 0" in note for note in one.replicas[0].notes) for one in result.worlds]
    assert said == [False, True]


def finishes_anyway() -> None:
    """Rank 1 fails, and says `finish` on its way out, while rank 0 waits for it in a step."""
    import elastic

    here = elastic.init()
    state = elastic.State(model=state_training.network())
    state.restore()
    try:
        for step in range(5):
            if here.rank == 1 and step == 3:
                raise LookupError("no such sample")
            torch.distributed.all_reduce(torch.ones(1))
            state.commit(every=2)
    finally:
        state.finish()


def test_no_save_waits_for_the_others_on_the_way_out_of_an_exception(tmp_path: Path) -> None:
    with pytest.raises(RunFailed, match="LookupError: no such sample"):
        run(finishes_anyway, worlds=[2], checkpoint_dir=tmp_path, timeout_s=60)


def draw(steps: int) -> list[float]:
    """Random numbers after a restore."""
    import elastic

    here = elastic.init()
    torch.manual_seed(here.rank)
    state = elastic.State(model=state_training.network())
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


def dropout(kind: str, workers: int) -> list[float]:
    """A number that is drawn in each step of two epochs, as dropout draws them, in the loop over a DataLoader."""
    import elastic

    elastic.init()
    torch.manual_seed(7)
    order: Any
    loader: Any
    if kind == "stream":
        loader = order = elastic.ElasticStream(lambda epoch: iter(range(12)), batch_size=3, num_workers=workers)
    else:
        order = elastic.ElasticSampler(12)
        loader = DataLoader(TensorDataset(torch.arange(12)), sampler=order, batch_size=3, num_workers=workers)
    state = elastic.State(order=order, drawn=[])
    state.restore()
    for _ in elastic.epochs(state, 2):
        for _ in loader:
            state.drawn = [*state.drawn, float(torch.rand(()))]
            state.commit(every=1)
            reached(state.step)
        state.drawn = [*state.drawn, float(torch.rand(()))]
    drawn: list[float] = state.drawn
    return drawn


@pytest.mark.parametrize(("kind", "workers"), [("sampler", 0), ("sampler", 1), ("stream", 0)])
@pytest.mark.parametrize("at", [2, 4], ids=["in an epoch", "at the end of an epoch"])
def test_random_numbers_of_a_loop_go_on_as_in_a_run_without_a_break(
    tmp_path: Path, kind: str, workers: int, at: int
) -> None:
    undisturbed = run(dropout, args=(kind, workers), worlds=[1]).values
    broken = run(
        dropout, args=(kind, workers), worlds=[World(1, Planned(at)), World(1)], checkpoint_dir=tmp_path
    ).values
    assert broken == undisturbed


def test_random_numbers_differ_by_rank_where_the_world_is_another_one(tmp_path: Path) -> None:
    result = run(draw, args=(5,), worlds=[World(1, Planned(3)), World(3)], checkpoint_dir=tmp_path)
    assert len({tuple(value) for value in result.values}) == 3


def fill(folder: str) -> Any:
    """Save once, lose the folder, save again."""
    import elastic

    elastic.init()
    state = elastic.State(model=state_training.network())
    state.restore()
    state.commit(every=1)
    state.save()
    shutil.rmtree(folder)
    Path(folder).write_text("a file stands there now")
    state.commit(every=1)
    state.save()


def test_a_save_that_fails_is_an_error_that_names_folder_and_mend(tmp_path: Path) -> None:
    folder = tmp_path / "ck"
    with pytest.raises(RunFailed, match=r"CheckpointError: .*another --checkpoint-dir"):
        run(fill, args=(str(folder),), worlds=[1], checkpoint_dir=folder)


class TestMemory:
    """With memory_every=1 a loss costs at most one step, and nothing is read from disk."""

    def test_survivors_go_on_from_memory_and_newcomers_receive_it(
        self, tmp_path: Path, undisturbed: torch.Tensor
    ) -> None:
        worlds = [World(3, NodeFailure(6, nodes=(1,))), World(3, Failure(12, rank=0)), World(2)]
        result = run(state_training.ddp, args=(EPOCHS, 1000, 1), worlds=worlds, checkpoint_dir=tmp_path)
        begun = starts(result)
        for world in range(2):
            assert last_step(result, world) - 1 <= begun[world + 1] <= last_step(result, world)
            assert any("from memory" in note for note in result.worlds[world + 1].replicas[0].notes)
        assert same(result, undisturbed)

    def test_shards_of_a_lost_node_come_from_its_neighbour(self, tmp_path: Path) -> None:
        alone = run(state_training.fsdp, args=(12, 1000), worlds=[1]).values[0]
        worlds = [World(3, NodeFailure(5, nodes=(0,))), World(2, NodeFailure(9, nodes=(1,))), World(2)]
        result = run(state_training.fsdp, args=(12, 1000, 1), worlds=worlds, checkpoint_dir=tmp_path)
        begun = starts(result)
        for world in range(2):
            assert last_step(result, world) - 1 <= begun[world + 1] <= last_step(result, world)
            assert any("from memory" in note for note in result.worlds[world + 1].replicas[0].notes)
        assert all(torch.allclose(value, alone, rtol=0, atol=1e-9) for value in result.values)

    def test_what_is_newer_on_disk_is_taken_from_there(self, tmp_path: Path) -> None:
        """Memory every 4 steps, disk every 3: step 6 is on disk, and 4 in memory."""
        worlds = [World(2, Failure(7)), World(2)]
        result = run(state_training.ddp, args=(1, 3, 4), worlds=worlds, checkpoint_dir=tmp_path)
        assert starts(result)[1] == 6
        assert any(str(tmp_path) in note for note in result.worlds[1].replicas[0].notes)

    def test_that_another_run_went_back_in_this_folder_does_not_matter_to_memory(self, tmp_path: Path) -> None:
        """Its generations had higher numbers than ours."""
        record = RollbackRecord(run="another", step=1, generation=99, aside=(), at=0.0)
        (tmp_path / RECORD).write_bytes(msgspec.json.encode(record))
        result = run(
            state_training.ddp, args=(1, 1000, 1), worlds=[World(2, Failure(4)), World(2)], checkpoint_dir=tmp_path
        )
        assert any("from memory" in note for note in result.worlds[1].replicas[0].notes)


def ahead() -> int:
    import elastic

    here = elastic.init()
    state = elastic.State(value=0)
    state.restore()
    if here.rank == 0:
        for _ in range(50):
            state.commit(every=100, memory_every=100, loss=0.5)
    return state.step


def test_a_commit_with_nothing_due_waits_for_no_other_rank() -> None:
    assert run(ahead, worlds=[2]).values == [50, 0]


def two_states() -> None:
    import elastic

    elastic.init()
    first, second = (elastic.State(model=state_training.network()) for _ in range(2))
    first.restore()
    second.restore()
    second.commit(every=1)
    first.commit(every=1)


def test_two_states_in_one_folder_are_refused_in_one_line() -> None:
    with pytest.raises(RunFailed, match="put everything into one State"):
        run(two_states, worlds=[1])


def first_parameters(steps: int) -> Any:
    """The whole parameters of a sharded model as `restore` left them."""
    import elastic

    here = elastic.init()
    model = state_training.network(seed=9)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(model, mesh=init_device_mesh("cpu", (here.world_size,)))
    state = elastic.State(model=model)
    assert state.restore()
    assert state.step == steps
    return torch.cat([one.full_tensor().detach().flatten() for one in model.parameters()])  # type: ignore[attr-defined]


def test_a_sharded_model_starts_from_a_plain_file_and_from_another_runs_shards(tmp_path: Path) -> None:
    import elastic

    trained = run(state_training.fsdp, args=(4, 2), worlds=[2], checkpoint_dir=tmp_path / "old").values[0]
    elastic.export(tmp_path / "old", tmp_path / "model.pt")
    for source in (tmp_path / "model.pt", tmp_path / "old"):
        env = {"ELASTIC_RESUME_FROM": str(source)}
        result = run(first_parameters, args=(0,), worlds=[3], checkpoint_dir=tmp_path / f"new-{source.name}", env=env)
        assert all(torch.equal(value, trained) for value in result.values)
    newest = max((tmp_path / "old").glob("step-*"))
    shard = newest / "model" / "__1_0.distcp"
    shard.write_bytes(b"x" * shard.stat().st_size)
    result = run(first_parameters, args=(0,), worlds=[2], checkpoint_dir=tmp_path / "of-step-2", env=env)
    assert f"skipping checkpoint {newest}: " in result.output
    assert not torch.equal(result.values[0], trained)


def spoil(how: str) -> None:
    """Save step 1, then let step 2 have nan in its loss, or in a parameter."""
    import elastic

    elastic.init()
    model = state_training.network()
    state = elastic.State(model=model)
    state.restore()
    state.commit(every=1)
    state.save()
    if how == "parameter":
        with torch.no_grad():
            model.get_parameter("0.weight")[0, 0] = float("nan")
    state.commit(every=2 if how == "parameter" else 100, loss=torch.tensor(float("nan") if how == "loss" else 1.0))


@pytest.mark.parametrize(("how", "named"), [("loss", "the loss"), ("parameter", r"model: 0\.weight")])
def test_with_check_nan_a_commit_refuses_what_is_not_finite_and_the_good_checkpoint_stays(
    how: str, named: str, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=rf"NotFinite: .*{named}.* step 2 on rank 0; the newest checkpoint is step 1"):
        run(spoil, args=(how,), worlds=[1], checkpoint_dir=tmp_path, env={"FLAGS_check_nan_inf": "1"})
    assert [folder.name for folder in tmp_path.glob("step-*")] == ["step-0000000001.g1"]
