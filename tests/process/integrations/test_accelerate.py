"""Accelerate in worlds that change: with the real Accelerate, processes, gloo and DDP."""

from __future__ import annotations

import asyncio
import importlib.util
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from elastic.testing import NodeFailure, Planned, World, run
from elastic.testing.result import Result
from tests.support import gated_training, script_runs
from tests.support.etcd_servers import Server
from tests.support.frameworks import needs
from tests.support.job_harness import QUICK_TTL_S, Job, story
from tests.support.script_runs import WARM, completed
from tests.support.torchrun_harness import Torchruns, works

pytestmark = [*needs("accelerate"), pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[3] / "elastic" / "examples" / "accelerate_digits.py"
SAMPLES = 53
LOOPS = {
    "accumulating": ("train", {"accumulate": 2}),  # Steps of 24 samples: 2 batches of 4 on each of 3 processes.
    "simple": ("train_without_accumulate", {"total_batch_size": 10}),
}
SCHEDULES = {
    "planned, then a loss of rank 0": [World(3, Planned(at=2)), World(2, NodeFailure(at=4, nodes=(0,))), World(3)],
    "two lost at once, then planned": [World(3, NodeFailure(at=2, nodes=(0, 2))), World(1, Planned(at=4)), World(3)],
}


def training(loop: str, folder: Path, worlds: list[World]) -> Result:
    from tests.scripts import accelerate_training

    name, options = LOOPS[loop]
    function = getattr(accelerate_training, name)
    return run(function, args=(2,), kwargs=options, worlds=worlds, checkpoint_dir=folder / "checkpoints", timeout_s=400)


def steps(result: Result) -> dict[int, list[Any]]:
    """What was recorded of each step: epoch, step, samples, learning rate and more; of the newest world that did it."""
    return {one[1]: one for world in result.worlds for replica in world.replicas for one in replica.records}


def repeated(result: Result) -> int:
    """How many steps were done in more than one world."""
    done = Counter(one[1] for world in result.worlds for replica in world.replicas for one in replica.records)
    return sum(count - 1 for count in done.values())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    return {loop: training(loop, tmp_path_factory.mktemp("undisturbed"), [World(3)]) for loop in LOOPS}


@pytest.mark.parametrize("worlds", SCHEDULES.values(), ids=SCHEDULES)
@pytest.mark.parametrize("loop", LOOPS)
def test_worlds_that_change_end_with_the_weights_rates_and_samples_of_one_that_does_not(
    tmp_path: Path, undisturbed: dict[str, Result], loop: str, worlds: list[World]
) -> None:
    whole, changed = undisturbed[loop], training(loop, tmp_path, worlds)
    assert torch.allclose(changed.values[0], whole.values[0], rtol=0, atol=1e-9)
    assert repeated(changed) <= 1
    expected, found = steps(whole), steps(changed)
    assert found.keys() == expected.keys()
    for step, (epoch, _, samples, rate, *more) in expected.items():
        assert found[step][0] == epoch
        assert sorted(found[step][2]) == sorted(samples)
        assert found[step][3:] == [pytest.approx(rate, abs=1e-12), *more]
    for epoch in range(2):
        used = [sample for one in found.values() if one[0] == epoch for sample in one[2]]
        assert sorted(used) == list(range(SAMPLES))


def test_two_models_that_are_trained_in_turn_on_split_batches_end_with_the_same_weights(tmp_path: Path) -> None:
    from tests.scripts.accelerate_training import train_two_models

    whole = run(train_two_models, args=(2,), worlds=[3], checkpoint_dir=tmp_path / "whole")
    worlds = [World(3, NodeFailure(at=2, nodes=(0,))), World(2, Planned(at=5)), World(1)]
    changed = run(train_two_models, args=(2,), worlds=worlds, checkpoint_dir=tmp_path / "changed", timeout_s=400)
    assert torch.allclose(changed.values[0], whole.values[0], rtol=0, atol=1e-9)
    batches = {(epoch, step, sample) for epoch, step, used, _ in changed.records for sample in used}
    for epoch in range(2):
        used = [sample for one, _, sample in batches if one == epoch]
        assert sorted(used) == list(range(SAMPLES))[-48:], "8 whole steps of 6 samples, from the end of the dataset"


def test_a_saved_state_is_loaded_by_another_job_in_another_world_and_only_when_that_job_begins(tmp_path: Path) -> None:
    from tests.scripts.accelerate_training import train_and_save

    def saving(name: str, project: str, worlds: list[World], stop: int | None = None) -> Result:
        return run(
            train_and_save,
            args=(3, str(tmp_path / project), stop),
            worlds=worlds,
            checkpoint_dir=tmp_path / name,
            timeout_s=400,
        )

    whole = saving("whole", "of whole", [World(2)])
    saving("first", "project", [World(3)], stop=7)
    checkpoints = tmp_path / "project" / "checkpoints"
    assert {path.name for path in checkpoints.iterdir()} == {".elastic", "checkpoint_1", "checkpoint_2"}
    second = saving("second", "project", [World(2, NodeFailure(at=10)), World(1)])
    assert torch.allclose(second.values[0], whole.values[0], rtol=0, atol=1e-9)
    loaded = [[one for one in world.replicas[0].records if "loaded" in one] for world in second.worlds]
    assert loaded == [
        [{"loaded": 6, "epoch": 1, "calls": 6}],
        [{"loaded": 10, "epoch": 1, "calls": 10}],  # What this job did since, not what the folder has.
    ]
    assert "ignoring accelerator.load_state(): this job resumes from its own step 10" in "".join(
        second.worlds[1].replicas[0].notes
    )
    assert {path.name for path in checkpoints.iterdir()} == {".elastic", "checkpoint_5", "checkpoint_6"}


@pytest.fixture(scope="module")
def refusals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    from tests.scripts import accelerate_refusals

    result = run(accelerate_refusals.refusals, worlds=[1], checkpoint_dir=tmp_path_factory.mktemp("refusals"))
    found: dict[str, str] = result.values[0]
    return found


USE_ORDER = "sampler=elastic.ElasticSampler(dataset, order=...)"
REFUSED = {
    "iterable": "use a dataset with __len__ and __getitem__, or write the loop with elastic.State and elastic.ElasticS",
    "dispatch": "each process reads its own share; leave out dispatch_batches",
    "weighted": f"a WeightedRandomSampler, whose order cannot be restored at another world size; write {USE_ORDER}",
    "replacement": f"draws a random selection of the samples; write {USE_ORDER}",
    "batch sampler": f"uses a custom batch sampler, or none; write DataLoader(dataset, batch_size=..., {USE_ORDER}",
    "no batches": "uses a custom batch sampler, or none",
    "own loader": "is of type OwnLoader, which builds its own batches; use torch.utils.data.DataLoader",
    "own global batch": "leave batch= out of its ElasticSampler, and set total_batch_size instead",
    "two shuffle": "a second loader shuffles or has a sampler, but a job has only one training loader; combine the ",
    "sync with dataloader": "with sync_with_dataloader=False a step could span two epochs",
    "FSDP": "FSDP is not supported; use DDP, which is the default, or write the loop with elastic.State",
    "total": "ElasticAccelerator(total_batch_size=0): write a number of samples, 1 or more",
    "outside of epochs": "put the loop inside `for epoch in accelerator.epochs(n)`",
    "no backward": "call it instead of loss.backward()",
    "by hand": "no optimizer has stepped: manually accumulated gradients would be lost; use ElasticAccelerator(gr",
    "step early": "use the optimizer that accelerator.prepare() returns",
    "scheduler": "a scheduler that changes the learning rate is not prepared",
    "scheduler alone": "write `if accelerator.sync_gradients: scheduler.step()`",
    "evaluation loader": "accelerator.backward() was called outside of a loop over the training loader",
    "LocalSGD": "is not exchanged with the other processes (no_sync, or LocalSGD)",
    "registered late": "prepare or register it before",
    "length": "is not known before accelerator.restore(); call that first, or use ElasticAccelerator(total_batch_size",
    "skip": "call accelerator.load_state() instead, which restores the position in the data",
    "no optimizer": "no optimizer is prepared: pass it to accelerator.prepare()",
    "unprepared model": "an optimizer changes parameters of a model that is not prepared",
    "no loader": "no training loader is prepared: pass the DataLoader to accelerator.prepare()",
    "free_memory": "a job has one training; start a job for each training",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_another_world_could_not_do_the_same_is_refused_with_what_to_use(
    refusals: dict[str, str], name: str
) -> None:
    assert REFUSED[name] in refusals[name]


def test_every_script_that_is_refused_is_asked_for_its_line(refusals: dict[str, str]) -> None:
    assert refusals.keys() == REFUSED.keys()


def test_an_accelerator_that_counts_one_process_of_two_is_refused(tmp_path: Path) -> None:
    from tests.scripts.accelerate_refusals import accelerator_first

    (said, other) = run(accelerator_first, worlds=[2], checkpoint_dir=tmp_path).values
    assert said == other
    assert "Accelerate counts 1 process, but the launcher started 2; create the ElasticAccelerator before" in said


def test_the_example_is_short_and_runs_under_plain_python_and_torchrun(tmp_path: Path) -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 80
    module = ("-m", "elastic.examples.accelerate_digits", "--epochs", "2")
    torchrun = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
    alone = completed(module, tmp_path)
    assert [line.rpartition("step")[2] for line in alone] == [" 45  world 1", " 90  world 1"]
    both = completed([*torchrun, *module], tmp_path, ELASTIC_CHECKPOINT_DIR=str(tmp_path / "other"))
    assert [line.rpartition("step")[2] for line in both] == [" 23  world 2", " 46  world 2"]


@story
async def test_the_example_loses_the_node_of_rank_0_and_repeats_nothing_that_was_committed(job: Job) -> None:
    """The world of three waits before its step 20, where the node is killed."""
    flags = ("--np", "1:3", "--preload", "accelerate,sklearn.datasets")
    with gated_training.gate(job.folder, "elastic.examples.accelerate_digits", {3: 20}) as gate:
        script = (*gate.words, "--epochs", "6")
        nodes = [await job.node(*flags, ttl_s=QUICK_TTL_S, join_window_s=15, script=script) for _ in range(3)]
        first = [await node.says(r"generation 1: 3 nodes, world size 3, this is M_id (\d)") for node in nodes]
        rank_0 = nodes[[found[1] for found in first].index("0")]
        await rank_0.shows(r"^epoch 0 .* of 360  step 15  world 3$")
        await rank_0.killed()
        left = [node for node in nodes if node is not rank_0]
        for node in left:
            await node.says("generation 2: 2 nodes")
    assert [await node.exits() for node in left] == [0, 0]
    said = "\n".join(line for node in left for line in node.lines)
    assert any(f"resumed at step {step} from memory" in said for step in range(15, 20)), said
    shown = "\n".join(line for node in left for line in node.shown)
    assert [f"step {15 * epoch}  world 2" in shown for epoch in range(2, 7)] == [True] * 5, shown


SCRIPTS = ("test_ops", "test_sync", "test_script")


@pytest.mark.parametrize("flags", [("--local-nodes", "2", "--np", "2"), ("--nproc-per-node", "2")], ids=" ".join)
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_that_accelerate_tests_itself_with_pass(tmp_path: Path, name: str, flags: tuple[str, ...]) -> None:
    found = importlib.util.find_spec(f"accelerate.test_utils.scripts.{name}")
    assert found is not None
    assert found.origin is not None
    completed(["-m", "launcher", *flags, found.origin], tmp_path, **WARM, ACCELERATE_USE_CPU="true")


CONFIG = """
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
num_machines: 1
num_processes: 1
mixed_precision: 'no'
use_cpu: false
"""


def test_accelerate_launch_meets_in_etcd_and_goes_on_without_a_node_that_is_lost(etcd: Server, tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)

    async def play() -> None:
        async with Torchruns(etcd, tmp_path).open() as job:
            meeting = {"PET_RDZV_ENDPOINT": etcd.endpoint, "PET_RDZV_ID": job.job_id, "PET_NNODES": "1:2"}
            flags = ("--rdzv_backend", "elastic-etcd", "--rdzv_conf", "last_call_timeout=15s", "--max-restarts", "3")
            words = (
                "-m",
                "accelerate.commands.launch",
                "--config_file",
                str(config),
                "--main_process_port",
                "0",
                *flags,
            )
            script = (str(tmp_path / "worker.py"), str(job.end))
            nodes = [await job.run(*words, *script, environ=meeting) for _ in range(2)]
            await job.told.until(
                lambda: sorted(one[-1][:2] for node in nodes if (one := works(node))) == [(0, 2), (1, 2)],
                "a world of 2",
            )
            lost, left = sorted(nodes, key=lambda node: works(node)[-1])
            lost.signal(signal.SIGKILL)
            await job.world(left)
            job.end.write_text("0")
            assert await left.exits() == 0

    asyncio.run(play())


def test_accelerate_launch_without_an_endpoint_is_told_the_variable(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG)
    flags = ("--config_file", str(config), "--main_process_port", "0", "--rdzv_backend", "elastic-etcd")
    code, _, said = script_runs.run(("-m", "accelerate.commands.launch", *flags, "never.py"), tmp_path)
    assert code == 2
    assert "set PET_RDZV_ENDPOINT" in said.splitlines()[-1]
