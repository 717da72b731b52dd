"""Lightning's real Trainer in worlds that change: the same weights, each sample once in an epoch."""

from __future__ import annotations

import asyncio
import importlib.util
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.errors import RunFailed
from elastic.testing import NodeFailure, Result, World, run
from elastic.testing.schedule import How
from tests.support.frameworks import needs
from tests.support.job_harness import Job, story
from tests.support.script_runs import completed

pytestmark = [*needs("lightning"), pytest.mark.timeout(600)]

if importlib.util.find_spec("lightning"):
    from tests.scripts import lightning_training as training

BATCH = {"elastic_options": {"global_batch": 12}}
LIMIT_S = 300.0


def trained(folder: Path, worlds: Sequence[Any], *, arguments: Mapping[str, Any], **schedule: Any) -> Result:
    return run(
        training.train,
        kwargs={**BATCH, **arguments},
        worlds=worlds,
        checkpoint_dir=folder / "checkpoints",
        timeout_s=LIMIT_S,
        **schedule,
    )


def weights(result: Result) -> Any:
    return result.values[0]["weights"]


def rest(result: Result) -> dict[str, Any]:
    return {name: value for name, value in result.values[0].items() if name not in ("weights", "largest", "restored")}


def used(result: Result, epoch: int) -> list[int]:
    """The samples of an epoch in steps that survived: of a step that was repeated, those of the last time."""
    last = {step: 0 for _, step, _, _ in result.records}
    for _, step, generation, _ in result.records:
        last[step] = max(last[step], generation)
    return sorted(
        number
        for which, step, generation, numbers in result.records
        if which == epoch and generation == last[step]
        for number in numbers
    )


def repeated(result: Result) -> int:
    """How many steps were made more than once."""
    made = {(step, generation) for _, step, generation, _ in result.records}
    return len(made) - len({step for step, _ in made})


CASES: dict[str, tuple[dict[str, Any], list[int], list[int], list[How]]] = {
    "plain": ({}, [3, 2, 3], [3, 7], ["planned", "planned"]),
    "a node is lost": ({}, [3, 1, 3], [3, 7], ["node_failure", "planned"]),
    "accumulated gradients and a schedule of steps": (
        {"accumulate": 2, "scheduler": "step", "elastic_options": {"global_batch": 6}},
        [3, 2, 3],
        [3, 7],
        ["planned", "node_failure"],
    ),
    "validation, the best files and a plateau": (
        {"validate": True, "callbacks": "best", "scheduler": "plateau"},
        [3, 2, 2],
        [5, 7],
        ["planned", "planned"],
    ),
    "files at every other step": ({"callbacks": "often"}, [3, 2, 3], [3, 8], ["planned", "node_failure"]),
    "two optimizers by hand": ({"net": "ManualNet"}, [3, 1, 2], [3, 7], ["planned", "planned"]),
    "workers of the loader": ({"workers": {"num_workers": 2}}, [3, 2], [3], ["planned"]),
    "workers that live for all epochs": (
        {"workers": {"num_workers": 2, "persistent_workers": True}, "epochs": 3},
        [2, 1],
        [7],
        ["node_failure"],
    ),
    "a number of steps": (
        {"epochs": None, "options": {"max_steps": 10}},
        [3, 2, 3],
        [3, 7],
        ["planned", "node_failure"],
    ),
    "two loaders": ({"net": "TwoSets", "drop_last": True}, [3, 1, 2], [2, 5], ["planned", "planned"]),
}


@pytest.mark.parametrize("case", list(CASES))
def test_a_run_whose_world_changes_ends_with_the_numbers_of_an_undisturbed_one(case: str, tmp_path: Path) -> None:
    arguments, worlds, change_at, how = CASES[case]
    undisturbed = trained(tmp_path / "one", [1], arguments=arguments)
    changed = trained(tmp_path / "many", worlds, arguments=arguments, change_at=change_at, how=how)
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9
    assert rest(changed) == rest(undisturbed)
    assert repeated(changed) <= how.count("node_failure")
    samples = training.SAMPLES // 12 * 12 if "drop_last" in arguments else training.SAMPLES
    for epoch in range(2):
        assert len(used(changed, epoch)) == len(set(used(changed, epoch))) == samples
        assert used(changed, epoch) == used(undisturbed, epoch)


def test_training_by_steps_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    arguments = {"epochs": None, "options": {"max_steps": 8}}
    undisturbed = trained(tmp_path / "one", [1], arguments=arguments)
    changed = trained(tmp_path / "many", [3, 2], arguments=arguments, change_at=[6], how="planned")
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9
    assert rest(changed) == rest(undisturbed)
    assert used(changed, 1) == used(undisturbed, 1)
    assert len(used(changed, 1)) == 36


def test_the_loaders_and_the_state_of_a_data_module_are_resumed(tmp_path: Path) -> None:
    arguments = {"data_module": True, "validate": True}
    undisturbed = trained(tmp_path / "one", [1], arguments={})
    changed = trained(
        tmp_path / "many", [3, 1, 2], arguments=arguments, change_at=[3, 7], how=["planned", "node_failure"]
    )
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9
    assert rest(changed) == rest(undisturbed)
    for epoch in range(2):
        assert used(changed, epoch) == list(range(training.SAMPLES))
    assert [value["restored"] for value in changed.values] == [2, 2]


@pytest.mark.skipif(not importlib.util.find_spec("jsonargparse"), reason="LightningCLI needs jsonargparse")
def test_the_command_line_of_lightning_trains_with_this_trainer_in_every_world(tmp_path: Path) -> None:
    undisturbed = trained(tmp_path / "one", [1], arguments={})
    changed = run(
        training.train_by_cli,
        args=(str(tmp_path / "root"),),
        worlds=[2, 1],
        change_at=[3],
        how="planned",
        checkpoint_dir=tmp_path / "checkpoints",
        timeout_s=LIMIT_S,
    )
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9
    assert changed.values[0]["step"] == 10
    assert (tmp_path / "root" / "config.yaml").is_file()


def test_random_numbers_continue_in_a_world_of_the_same_size(tmp_path: Path) -> None:
    arguments = {"net": "DropoutNet"}
    undisturbed = trained(tmp_path / "one", [2], arguments=arguments)
    changed = trained(tmp_path / "many", [2, 2, 2], arguments=arguments, change_at=[3, 5], how="planned")
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9


def test_early_stopping_in_the_middle_of_an_epoch_comes_at_the_same_step(tmp_path: Path) -> None:
    arguments = {
        "epochs": 6,
        "validate": True,
        "callbacks": "stop",
        "scheduler": "epoch",
        "options": {"val_check_interval": 2},
    }
    undisturbed = trained(tmp_path / "one", [1], arguments=arguments)
    changed = trained(
        tmp_path / "many", [3, 1, 3], arguments=arguments, change_at=[4, 6], how=["node_failure", "planned"]
    )
    assert rest(undisturbed)["step"] < 30, "it has to stop before its last step"
    assert rest(changed) == rest(undisturbed)
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9


def test_a_batch_that_is_larger_than_a_rank_can_hold_gives_the_same_gradient_in_parts(tmp_path: Path) -> None:
    """In a world of one, four samples at a time; without the limit, twelve."""
    whole = trained(tmp_path / "whole", [1], arguments={"elastic_options": {"global_batch": 12, "max_per_rank": 12}})
    cut = trained(
        tmp_path / "cut",
        [3, 1],
        arguments={"elastic_options": {"global_batch": 12, "max_per_rank": 4}},
        change_at=[4],
        how="planned",
    )
    assert (weights(cut) - weights(whole)).abs().max() < 1e-9
    assert cut.values[0]["largest"] <= 4 < whole.values[0]["largest"]


def test_after_the_whole_job_was_lost_training_resumes_from_the_newest_file_of_model_checkpoint(tmp_path: Path) -> None:
    arguments = {"callbacks": "often", "epochs": 2}
    undisturbed = trained(tmp_path / "one", [1], arguments=arguments)
    lost = [World(2, NodeFailure(at=8, nodes=(0, 1))), World(1)]
    changed = trained(tmp_path / "many", lost, arguments=arguments)
    last = [step for _, step, generation, _ in changed.records if generation == 2]
    assert min(last) == 7, "the file of step 6 was the newest: that of step 8 was not written when the job was lost"
    assert (weights(changed) - weights(undisturbed)).abs().max() < 1e-9


def evaluated(folder: Path, worlds: Sequence[int], change_at: Sequence[int] = (), **options: Any) -> Result:
    return run(
        training.evaluate,
        kwargs=options,
        worlds=worlds,
        change_at=change_at,
        checkpoint_dir=folder / "checkpoints",
        timeout_s=LIMIT_S,
    )


def test_a_shared_evaluation_uses_each_sample_once_and_gives_the_metric_of_a_world_of_one(tmp_path: Path) -> None:
    alone = evaluated(tmp_path / "one", [1])
    shared = evaluated(tmp_path / "many", [3, 2], [5], share_evaluation=True)
    assert shared.values[0] == pytest.approx(alone.values[0], abs=1e-9)
    numbers: dict[tuple[str, int], list[int]] = {}
    for name, step, what in shared.records:
        if name != "metric":
            numbers.setdefault((name, step), []).extend(what)
    assert {key: sorted(samples) for key, samples in numbers.items()} == {
        **{("val_loss", step): list(range(11)) for step in (2, 4, 7, 9)},
        ("test_loss", 10): list(range(7)),
    }
    metrics, expected = (
        {step: value for name, step, value in result.records if name == "metric"} for result in (shared, alone)
    )
    assert metrics == pytest.approx(expected, abs=1e-9)


ANOTHER: dict[str, tuple[int, dict[str, Any], bool]] = {
    "at the end of an epoch with other batches": (25, {"save_on_train_epoch_end": True}, True),
    "after the validation at the end of an epoch with as many batches": (12, {"save_on_train_epoch_end": False}, True),
    "at the last step of an epoch with as many batches": (12, {"every_n_train_steps": 5}, False),
}


@pytest.mark.parametrize("when", list(ANOTHER))
def test_a_file_that_another_trainer_wrote_at_the_end_of_an_epoch_is_resumed(when: str, tmp_path: Path) -> None:
    resumed = run(
        training.resumed_from_another_trainer,
        args=(str(tmp_path / "files"), *ANOTHER[when]),
        worlds=[1],
        checkpoint_dir=tmp_path / "job",
        timeout_s=LIMIT_S,
    )
    assert resumed.values[0] == [(epoch, batch) for epoch in (1, 2) for batch in range(5)]


WITHIN: dict[str, tuple[int, dict[str, Any], bool]] = {
    "in the middle": (12, {"every_n_train_steps": 3}, False),
    "in the middle of an epoch that has more batches": (4, {"every_n_train_steps": 9}, False),
    "after the validation at the end of an epoch with other batches": (4, {"save_on_train_epoch_end": False}, True),
}


@pytest.mark.parametrize("when", list(WITHIN))
def test_a_file_that_another_trainer_wrote_within_an_epoch_is_refused_in_one_line(when: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as failed:
        run(
            training.resumed_from_another_trainer,
            args=(str(tmp_path / "files"), *WITHIN[when]),
            worlds=[1],
            checkpoint_dir=tmp_path / "job",
            timeout_s=LIMIT_S,
        )
    lines = [line for line in str(failed.value).splitlines() if line.startswith("elastic: error: ")]
    assert len(lines) == 1, str(failed.value)
    assert "save_on_train_epoch_end" in lines[0]
    assert "code 2" in str(failed.value)


REFUSED = {
    "iterable": "IterableDataset",
    "weighted": "WeightedRandomSampler",
    "distributed": "use_distributed_sampler",
    "fsdp": "strategy",
    "twice": "called twice",
    "cycle": "min_size",
}


@pytest.mark.parametrize("what", list(REFUSED))
def test_what_cannot_be_exact_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    with pytest.raises(RunFailed) as failed:
        run(training.refused, args=(what,), worlds=[1], checkpoint_dir=tmp_path, timeout_s=LIMIT_S)
    lines = [line for line in str(failed.value).splitlines() if line.startswith("elastic: error: ")]
    assert len(lines) == 1, str(failed.value)
    assert REFUSED[what] in lines[0]


@story
async def test_the_example_resumes_from_memory_when_a_node_is_killed(job: Job) -> None:
    script = ("-m", "elastic.examples.lightning_digits", "--epochs", "8", "--step_time", "0.05")
    nodes = [await job.node("--np", "3", ttl_s=2, script=script) for _ in range(3)]
    steps = [
        asyncio.create_task(node.says(r"step \d+ of 184 .*world 3")) for node in nodes
    ]  # That of rank 0 shows them.
    _, others = await asyncio.wait(steps, return_when=asyncio.FIRST_COMPLETED)
    for task in others:
        task.cancel()
    nodes[2].signal(signal.SIGKILL)
    assert [await node.exits() for node in nodes[:2]] == [0, 0]
    lines = [line for node in nodes[:2] for line in (*node.lines, *node.shown)]
    assert any(re.search(r"resumed at step \d+ from memory", line) for line in lines), lines
    (said,) = [found for line in lines if (found := re.search(r"test accuracy (\S+) % after (\d+) steps", line))]
    assert int(said[2]) == 8 * 23
    assert float(said[1]) > 90


def test_under_plain_python_the_same_script_trains_alone(tmp_path: Path) -> None:
    lines = completed(["-m", "elastic.examples.lightning_digits", "--epochs", "2"], tmp_path)
    assert lines[-1].endswith("after 46 steps")
