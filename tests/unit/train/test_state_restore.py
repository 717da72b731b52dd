"""What a state goes on from in a world of one: in this process, from folders made by hand."""

from __future__ import annotations

import copy
import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch.optim.lr_scheduler import ConstantLR, LambdaLR, SequentialLR
from torch.utils.data import DataLoader

import elastic
from elastic.errors import CheckpointDamaged, CheckpointError, ConfigError, RestoreRefused, RestoreUnrecoverable
from elastic.train.checkpoint import manifest, sharded_part
from elastic.train.restore.restore_step import RECORD, RollbackRecord
from elastic.train.statedict.parts import on_its_device

SAMPLES = 12


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("ELASTIC_") or name in {"RANK", "WORLD_SIZE"}:
            monkeypatch.delenv(name)


def rolled_back(folder: Path, *aside: str) -> None:
    record = RollbackRecord(run="abc", step=10, generation=5, aside=aside, at=time.time())
    (folder / RECORD).write_bytes(msgspec.json.encode(record))


def told(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv("ELASTIC_SAVED", json.dumps({"step": 20, "host": "a", "folder": f"/ck/{name}"}))


def test_what_was_set_aside_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rolled_back(tmp_path, "aside-step-0000000020.g2.2")
    told(monkeypatch, "step-0000000020.g2")
    assert not elastic.State(best=0.0).restore(folder=tmp_path)


def test_a_step_that_was_committed_again_after_a_rollback_is_missed_when_it_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolled_back(tmp_path, "aside-step-0000000020.g2")
    told(monkeypatch, "step-0000000020.g7")
    with pytest.raises(CheckpointError, match="step 20 was committed on a"):
        elastic.State(best=0.0).restore(folder=tmp_path)


def test_training_does_not_start_over_where_no_checkpoint_says_what_it_is(tmp_path: Path) -> None:
    state = elastic.State(best=0.0)
    state.restore(folder=tmp_path)
    for _ in range(2):
        state.commit(every=1)
    state.finish()
    for meta in tmp_path.glob("step-*/meta.json"):
        meta.write_text("{")
    with pytest.raises(CheckpointError, match=r"no checkpoint in .*0002.g0: meta.json is damaged.*--allow-rollback"):
        elastic.State(best=0.0).restore(folder=tmp_path)
    assert not elastic.State(best=0.0).restore(folder=tmp_path, allow_rollback=True)


def test_what_the_job_knows_of_another_state_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, other = tmp_path / "job", tmp_path / "other"
    monkeypatch.setenv("ELASTIC_CHECKPOINT_DIR", str(job))
    monkeypatch.setenv("ELASTIC_SAVED", json.dumps({"step": 20, "host": "a", "folder": f"{job}/step-0000000020.g2"}))
    assert not elastic.State(best=0.0).restore(folder=other)
    with pytest.raises(CheckpointError, match="step 20 was committed on a"):
        elastic.State(best=0.0).restore()


def test_a_name_that_no_file_can_have_is_refused_with_one_that_it_can() -> None:
    with pytest.raises(ConfigError, match="write 'net_1'"):
        elastic.State(**{"net/1": torch.nn.Linear(1, 1)})


def test_epochs_within_epochs_are_refused_and_one_loop_after_another_is_not(tmp_path: Path) -> None:
    state = elastic.State(best=0.0)
    state.restore(folder=tmp_path)
    for _ in elastic.epochs(state, 3):
        break
    for _ in elastic.epochs(state, 3):
        with pytest.raises(ConfigError, match="within a loop over epochs of the same state"):
            list(elastic.epochs(state, 5))
        break
    assert list(elastic.epochs(state, 3)) == [0, 1, 2]
    assert list(elastic.epochs(state, 5)) == [3, 4]


def trained(folder: Path, samples: int, steps: int, resume_from: Path | None = None) -> list[int]:
    """The samples that the steps take in epoch 0."""
    sampler = elastic.ElasticSampler(samples, shuffle=False)
    state = elastic.State(sampler=sampler, best=1.0)
    state.restore(folder=folder, resume_from=resume_from)
    served: list[int] = []
    for _ in elastic.epochs(state, 1):
        for batch in DataLoader(range(samples), sampler=sampler, batch_size=2):  # type: ignore[arg-type]
            served += batch.tolist()
            state.commit(every=1)
            if state.step == steps:
                state.save()
                return served
    return served


def test_another_runs_place_in_its_data_is_not_taken_over_by_resume_from(tmp_path: Path) -> None:
    assert trained(tmp_path / "old", SAMPLES, 2) == [0, 1, 2, 3]
    assert trained(tmp_path / "old", SAMPLES, 3) == [4, 5]
    assert trained(tmp_path / "new", SAMPLES, 99, resume_from=tmp_path / "old") == list(range(SAMPLES))
    assert trained(tmp_path / "other", 4, 99, resume_from=tmp_path / "old") == list(range(4)), "other data"


def test_a_value_comes_back_on_the_device_of_the_one_that_is_there() -> None:
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    back = on_its_device(
        {"a": here, "b": [here, {"c": here}], "d": here, "e": 1.0, "f": [here]},
        {"a": there, "b": [here, {"c": there}], "d": None, "e": there, "f": [there, there]},
    )
    assert back["a"].is_meta
    assert back["b"][0] is here
    assert back["b"][1]["c"].is_meta
    assert (back["d"], back["e"], back["f"]) == (here, 1.0, [here])


def test_a_state_is_copied_like_any_object() -> None:
    state = elastic.State(best=0.5)
    assert copy.copy(state).best == 0.5
    with pytest.raises(AttributeError, match="this state has no 'worst'; it has best"):
        _ = state.worst


def test_a_part_that_the_checkpoint_does_not_have_is_named_with_those_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = elastic.State(model=torch.nn.Linear(1, 1))
    before.restore(folder=tmp_path)
    before.commit(every=1)
    before.save()
    assert elastic.State(net=torch.nn.Linear(1, 1)).restore(folder=tmp_path)
    assert "the checkpoint of step 1 has no component net" in capsys.readouterr().err
    assert elastic.State(model=torch.nn.Linear(1, 1)).restore(folder=tmp_path)
    assert "has no part" not in capsys.readouterr().err


@pytest.mark.parametrize("steps", [-3, 2.5, "5"])
def test_what_is_no_number_of_steps_is_refused_by_name(steps: Any, tmp_path: Path) -> None:
    state = elastic.State(best=0.0)
    state.restore(folder=tmp_path)
    with pytest.raises(ConfigError, match=r"state\.commit\(every=.*whole number of steps"):
        state.commit(every=steps)


@pytest.mark.filterwarnings("ignore:The epoch parameter")  # SequentialLR of torch itself uses it.
def test_a_rule_for_the_rate_holds_for_schedulers_that_are_made_of_others(tmp_path: Path) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    parts = [ConstantLR(optimizer, 0.5, 9), LambdaLR(optimizer, lambda step: 1.0)]
    scheduler = SequentialLR(optimizer, parts, [2])
    batch = elastic.GlobalBatch(per_rank=4, lr="linear", lr_base=2)
    sampler = elastic.ElasticSampler(SAMPLES, batch=batch)
    state = elastic.State(optimizer=optimizer, scheduler=scheduler, sampler=sampler)
    state.restore(folder=tmp_path)
    rates = []
    for _ in range(3):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    assert rates == pytest.approx([0.1, 0.1, 0.2])


def withheld(file: Path) -> None:
    """Make a file of which a read fails as that of a broken disk does: the kernel has no first page of this one."""
    file.unlink()
    file.symlink_to("/proc/self/mem")  # Its size is 0.


def test_a_checkpoint_that_a_disk_withholds_has_hope_and_one_that_is_cut_off_has_none(tmp_path: Path) -> None:
    state = elastic.State(best=0.0)
    state.restore(folder=tmp_path)
    state.commit(every=1)
    state.finish()
    (file,) = tmp_path.glob("step-*/meta.json")
    withheld(file)
    with pytest.raises(RestoreRefused, match=r"meta.json cannot be read") as raised:
        elastic.State(best=0.0).restore(folder=tmp_path)
    assert not isinstance(raised.value.__cause__, RestoreUnrecoverable)
    file.unlink()
    file.write_bytes(b"{")
    with pytest.raises(RestoreRefused, match=r"meta.json is damaged") as raised:
        elastic.State(best=0.0).restore(folder=tmp_path)
    assert isinstance(raised.value.__cause__, RestoreUnrecoverable)


def test_a_shard_that_a_disk_withholds_is_told_from_one_that_is_cut_off(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    written = sharded_part.write(folder, {"weight": torch.ones(2)}, None)
    file = folder / "__0_0.distcp"
    written[file.name] = manifest.PartFile(0, crc32="1")
    withheld(file)
    with pytest.raises(CheckpointDamaged, match=r"__0_0.distcp cannot be read") as raised:
        sharded_part.read(folder, written, lambda saved: {"weight": torch.empty(2)}, None)
    assert raised.value.transient
    file.unlink()
    file.write_bytes(b"")
    with pytest.raises(CheckpointDamaged, match=r"the checksum of __0_0.distcp is wrong") as raised:
        sharded_part.read(folder, written, lambda saved: {"weight": torch.empty(2)}, None)
    assert not raised.value.transient
