"""Hugging Face's Trainer in worlds that change: with the real Trainer, processes, gloo and DDP."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.errors import ConfigError
from elastic.testing import NodeFailure, Planned, World, run
from elastic.testing.result import Result
from tests.support import trainer_runs
from tests.support.frameworks import needs
from tests.support.trainer_runs import SAMPLES, train

pytestmark = [*needs("transformers", "accelerate"), pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
STEPS = 10
"""Two epochs of 50 samples, 12 in a step: the last step of an epoch takes 2."""


def training(folder: Path, options: dict[str, Any], worlds: list[int] | list[World], **changes: Any) -> Result:
    return run(
        train,
        args=(str(folder / "out"), {"global_batch": 12, **options}),
        worlds=worlds,
        checkpoint_dir=folder / "checkpoints",
        timeout_s=400,
        **changes,
    )


def surviving(result: Result) -> dict[int, list[int]]:
    """The samples of each step, of the last world that completed it."""
    of: dict[int, tuple[int, list[int]]] = {}
    for number, world in enumerate(result.worlds):
        for replica in world.replicas:
            for step, _, used, *_ in replica.records:
                before = of.get(step, (-1, []))
                of[step] = (number, [*before[1], *used] if before[0] == number else list(used))
    return {step: samples for step, (_, samples) in of.items()}


def repeated(result: Result) -> int:
    """How many steps were completed in more than one world."""
    worlds = [{record[0] for replica in world.replicas for record in replica.records} for world in result.worlds]
    return sum(count - 1 for count in Counter(step for steps in worlds for step in steps).values())


def assert_same(changed: Result, undisturbed: Result) -> None:
    """The same weights, the same logs, and each sample once in each epoch."""
    assert len(changed.values) == len(changed.worlds[-1].replicas)
    expected = undisturbed.values[0]
    for value in changed.values:
        assert torch.allclose(value["weights"], expected["weights"], rtol=0, atol=1e-9)
        assert value["step"] == expected["step"]
        assert value["best"] == pytest.approx(expected["best"], abs=1e-6)
    assert len(changed.values[0]["logs"]) == len(expected["logs"])
    for own, other in zip(changed.values[0]["logs"], expected["logs"], strict=True):
        assert own == pytest.approx(other, abs=1e-6)  # The Trainer sums its losses in float32.
    steps = surviving(changed)
    per_epoch = -(-SAMPLES // 12)
    for first in range(0, expected["step"] - per_epoch + 1, per_epoch):
        epoch = [sample for step in range(first + 1, first + per_epoch + 1) for sample in steps[step]]
        assert sorted(epoch) == list(range(SAMPLES))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return training(tmp_path_factory.mktemp("undisturbed"), {}, [1])


@pytest.mark.parametrize("how", ["planned", "node_failure"])
@pytest.mark.parametrize("worlds", [[3, 2, 3], [3, 1, 3]])
def test_worlds_that_change_end_with_the_weights_logs_and_samples_of_one_that_does_not(
    tmp_path: Path, undisturbed: Result, worlds: list[int], how: str
) -> None:
    result = training(tmp_path, {}, worlds, change_at=[3, 7], how=how)
    assert_same(result, undisturbed)
    assert repeated(result) <= (1 if how == "node_failure" else 0)
    assert "resumed at step" in "".join(result.worlds[1].replicas[0].notes)


def test_losses_over_tokens_evaluation_early_stopping_and_loader_workers_carry_over(tmp_path: Path) -> None:
    options = {
        "tokens": True,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_strategy": "steps",
        "save_steps": 2,
        "metric_for_best_model": "eval_loss",
        "greater_is_better": True,  # It gets worse, so that the patience ends.
        "load_best_model_at_end": True,
        "patience": 3,
        "num_train_epochs": 4,
        "dataloader_num_workers": 1,
    }
    whole = training(tmp_path / "whole", options, [1])
    changed = training(tmp_path / "changed", options, [2, 1, 2], change_at=[3, 6], how=["node_failure", "planned"])
    assert 5 < whole.values[0]["step"] < 20
    assert_same(changed, whole)
    last = json.loads(
        (tmp_path / "changed/out" / f"checkpoint-{whole.values[0]['step']}/trainer_state.json").read_text()
    )
    best = Path(last["best_model_checkpoint"])
    assert best.parent == tmp_path / "changed/out"
    assert best.is_dir()


@pytest.mark.parametrize("loss", ["own", "func"])
def test_a_loss_of_the_users_own_is_weighted_in_the_same_way(tmp_path: Path, undisturbed: Result, loss: str) -> None:
    assert_same(training(tmp_path, {"loss": loss}, [2, 1], change_at=[6], how="planned"), undisturbed)


def test_a_loss_of_the_next_labels_counts_one_label_less_in_each_sample(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", {"tokens": "next", "num_train_epochs": 1}, [1])
    changed = training(tmp_path / "changed", {"tokens": "next", "num_train_epochs": 1}, [2], how="planned")
    assert_same_weights(changed, whole)


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
MODELS: dict[str, tuple[dict[str, int], bool]] = {
    "GPT2LMHeadModel": ({"n_embd": 8, "n_layer": 1, "n_head": 2}, True),
    "LlamaForCausalLM": (SIZES, True),
    "XLNetLMHeadModel": ({"d_model": 8, "n_layer": 1, "n_head": 2, "d_inner": 8}, False),
    "BertForMaskedLM": (SIZES, False),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_first_label_of_a_sample_counts_where_the_loss_of_the_model_has_it(name: str) -> None:
    import transformers

    from elastic.integrations.transformers.label_shift import shifts_labels

    sizes, shifts = MODELS[name]
    model_class = getattr(transformers, name)
    model = model_class(model_class.config_class(**sizes, vocab_size=16, bos_token_id=1, eos_token_id=2)).eval()
    words = torch.tensor([[3, 4, 5, 6]])
    without_first = torch.tensor([[-100, 4, 5, 6]])
    same = torch.equal(model(words, labels=words).loss, model(words, labels=without_first).loss)
    assert shifts_labels(model) == same == shifts


# Adapters

needs_peft = pytest.mark.skipif(
    importlib.util.find_spec("peft") is None, reason="peft not installed; make scripts does it"
)
ADAPTERS = {"adapters": "same", "learning_rate": 0.1}


@needs_peft
def test_adapters_end_with_the_same_weights_in_worlds_that_change(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", ADAPTERS, [1])
    changed = training(tmp_path / "changed", ADAPTERS, [3, 2, 3], change_at=[3, 7], how=["planned", "node_failure"])
    assert_same(changed, whole)
    assert "resumed at step" in "".join(changed.worlds[1].replicas[0].notes)


@needs_peft
def test_adapters_resume_from_a_checkpoint_folder_that_has_the_adapters_alone(tmp_path: Path) -> None:
    options = {**ADAPTERS, "save_strategy": "steps", "save_steps": 4}
    whole = training(tmp_path / "whole", options, [1])
    changed = training(tmp_path / "changed", options, [World(2, NodeFailure(at=6, nodes=(0, 1))), World(3)])
    assert_same(changed, whole)
    assert min(record[0] for record in changed.worlds[1].replicas[0].records) == 5
    weights = [path.name for path in (tmp_path / "changed/out/checkpoint-4").glob("*model*")]
    assert weights == ["adapter_model.safetensors"]


@needs_peft
def test_frozen_weights_that_are_others_in_the_next_process_are_refused_unless_they_are_kept(tmp_path: Path) -> None:
    options = {**ADAPTERS, "adapters": "random"}
    with pytest.raises(Exception, match="frozen weights of the model differ from those of the checkpoint"):
        training(tmp_path / "refused", options, [1, 1], change_at=[3], how="planned")
    result = training(tmp_path / "kept", {**options, "keep_frozen": True}, [1, 1], change_at=[3], how="planned")
    assert len({record[3] for world in result.worlds for record in world.replicas[0].records}) == 1


def test_a_job_whose_nodes_are_all_lost_resumes_from_the_newest_checkpoint_folder(
    tmp_path: Path, undisturbed: Result
) -> None:
    options = {"save_strategy": "steps", "save_steps": 4, "enable_jit_checkpoint": True}
    worlds = [World(2, NodeFailure(at=6, nodes=(0, 1))), World(1, Planned(at=8)), World(3)]
    result = training(tmp_path, options, worlds)
    assert_same(result, undisturbed)
    assert min(record[0] for record in result.worlds[1].replicas[0].records) == 5
    assert f"resumed at step 4 from {tmp_path}/out/checkpoint-4" in "".join(result.worlds[1].replicas[0].notes)
    assert "ignoring enable_jit_checkpoint" in "".join(result.worlds[1].replicas[0].notes)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {".elastic", "checkpoint-4", "checkpoint-8", "checkpoint-10"}


def test_a_training_that_has_finished_returns_what_it_returned_and_trains_no_further(tmp_path: Path) -> None:
    first = training(tmp_path, {"save_strategy": "steps", "save_steps": 4}, [2])
    again = training(tmp_path, {"save_strategy": "steps", "save_steps": 4}, [1])
    assert again.values[0]["step"] == STEPS
    assert again.worlds[0].replicas[0].records == []
    assert torch.equal(again.values[0]["weights"], first.values[0]["weights"])


def test_without_a_global_batch_later_worlds_keep_that_of_the_first(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", {"global_batch": 6}, [1])
    changed = training(tmp_path / "changed", {"global_batch": None}, [2, 1], change_at=[4], how="planned")
    assert_same_weights(changed, whole)
    said = "each step takes 6 samples at any world size (computed as 3 x 1 x 2 workers); to fix this in the script, "
    assert said in "".join(changed.worlds[0].replicas[0].notes)


def assert_same_weights(changed: Result, whole: Result) -> None:
    assert torch.allclose(changed.values[0]["weights"], whole.values[0]["weights"], rtol=0, atol=1e-9)


def test_another_global_batch_than_that_of_the_checkpoint_is_refused_in_one_line(tmp_path: Path) -> None:
    options = {"save_strategy": "steps", "save_steps": 4}
    training(tmp_path, {**options, "num_train_epochs": 1}, [1])
    for path in (tmp_path / "checkpoints").glob("step-*"):
        path.rename(path.with_name(f"aside-{path.name}"))
    with pytest.raises(Exception, match="made with total 12, but this run has 10, so its steps would take other"):
        training(tmp_path, {**options, "global_batch": 10}, [1])


# What cannot be exact


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from transformers import TrainingArguments

    from elastic.integrations.transformers import ElasticTrainer

    def make(dataset: Any = None, **options: Any) -> Any:
        arguments = TrainingArguments(str(tmp_path_factory.mktemp("out")), report_to=[], use_cpu=True, **options)
        return ElasticTrainer(
            trainer_runs.Classifier(),
            arguments,
            train_dataset=dataset if dataset is not None else trainer_runs.Points(),
        )

    return make


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        points = trainer_runs.Points()
        return iter([points[index] for index in range(len(points))])


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "iterable": (
        {"dataset": Endless(), "max_steps": 3},
        "train_dataset is iterable and has no position to resume from",
    ),
    "skip": ({"ignore_data_skip": True}, "ignore_data_skip starts an epoch from its beginning; leave it out"),
    "each node": ({"save_on_each_node": True}, "the same checkpoint to a shared directory; leave it out"),
    "batch": ({"auto_find_batch_size": True}, "auto_find_batch_size changes the batches during training; leave it out"),
    "length": (
        {"train_sampling_strategy": "group_by_length"},
        "makes the order depend on the world size; leave it out",
    ),
    "split": ({"accelerator_config": {"split_batches": True}}, "split batches by the world size; leave them out"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_setting_that_cannot_be_exact_is_refused_in_one_line_that_says_what_to_use(
    trainer: Any, case: str, capfd: pytest.CaptureFixture[str]
) -> None:
    options, text = REFUSED[case]
    with pytest.raises(ConfigError, match=re.escape(text)):
        trainer(**options).train()
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("elastic: error: ElasticTrainer")]
    assert len(lines) == 1


@pytest.mark.parametrize("given", ["the folder", "true"])
def test_a_checkpoint_of_a_plain_trainer_is_refused_since_its_samples_are_not_known(trainer: Any, given: str) -> None:
    made = trainer()
    foreign = Path(made.args.output_dir) / "checkpoint-3"
    foreign.mkdir()
    with pytest.raises(ConfigError, match="was not saved by an ElasticTrainer"):
        made.train(resume_from_checkpoint=True if given == "true" else str(foreign))


def test_a_worker_that_would_train_alone_is_refused(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU and without use_cpu the Trainer trains on each worker for itself, in any launcher."""
    made = trainer()
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "2")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="this is one of 2 workers, but the Trainer would train alone"):
        made.train()


def test_the_private_names_that_are_used_are_those_of_this_release() -> None:
    import inspect

    from transformers import Trainer

    source = inspect.getsource(Trainer)
    for name in ("_tr_loss", "_total_loss_scalar", "_globalstep_last_logged", "current_flos"):
        assert f"self.{name}" in source
    assert ("self._initial_global_step" in source) == ("loss_is_scaled_for_ga" in source)  # Both since 5.19.
    for name, parameters in {
        "_load_from_checkpoint": ["self", "resume_from_checkpoint", "model"],
        "_save_checkpoint": ["self", "model", "trial"],
        "get_batch_samples": ["self", "epoch_iterator", "num_batches", "device"],
        "training_step": ["self", "model", "inputs", "num_items_in_batch"],
    }.items():
        assert list(inspect.signature(getattr(Trainer, name)).parameters) == parameters


# The example


def test_the_example_is_short_enough_to_copy() -> None:
    assert len((ROOT / "elastic/examples/hf_trainer.py").read_text().splitlines()) < 80


def test_the_example_runs_under_torchrun_and_plain_python_resumes_it(tmp_path: Path) -> None:
    words = ["-m", "elastic.examples.hf_trainer", "--output_dir", str(tmp_path / "out"), "--save_steps", "20"]
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ELASTIC_")}
    environ |= {"OMP_NUM_THREADS": "1", "ELASTIC_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    first = subprocess.run(
        [*torchrun, *words, "--epochs", "1"], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert first.returncode == 0, first.stderr
    again = subprocess.run(
        [sys.executable, *words, "--epochs", "2"], env=environ, cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert again.returncode == 0, again.stderr
    assert f"[elastic] resumed at step 65 from {tmp_path}/out/checkpoint-65" in again.stderr
    assert "'epoch': '2'" in again.stdout
