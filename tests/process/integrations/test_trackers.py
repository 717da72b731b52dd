"""W&B, MLflow and TensorBoard, offline: a job that loses rank 0's node and then its worker has one run of each."""

from __future__ import annotations

import importlib.util
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

from elastic.testing import Failure, NodeFailure, Planned, Result, World, run
from tests.scripts import tracked_training
from tests.support import tracker_files
from tests.support.tracker_files import Points

TRACKERS: Final = ("wandb", "mlflow", "tensorboard", "sqlalchemy")
MISSING: Final = [name for name in TRACKERS if importlib.util.find_spec(name) is None]

pytestmark = [
    pytest.mark.scripts,
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # Of packages that read the trackers' files.
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)}: not installed; make scripts does it"),
]

WAYS: Final = {
    "script": tracked_training.script,
    "transformers": tracked_training.transformers,
    "elastic.integrations.transformers": tracked_training.elastic_trainer,
    "lightning": tracked_training.lightning,
    "elastic.integrations.lightning": tracked_training.elastic_lightning,
    "accelerate": tracked_training.accelerate,
    "elastic.integrations.accelerate": tracked_training.elastic_accelerator,
}
STEP_NAMES: Final = {
    "transformers": "train/global_step",
    "elastic.integrations.transformers": "train/global_step",
    "lightning": "trainer/global_step",
    "elastic.integrations.lightning": "trainer/global_step",
}
FIRST: Final = {"lightning": 0, "elastic.integrations.lightning": 0}
"""The first step that is logged."""


@dataclass(frozen=True)
class Tracked:
    """A run that is over, and what the trackers have of it."""

    way: str
    folder: Path
    uri: str
    result: Result

    @property
    def steps(self) -> list[int]:
        first = FIRST.get(self.way, 1)
        return list(range(first, first + tracked_training.STEPS))


def _way(name: str) -> object:
    package = name.rpartition(".")[2]
    missing = name != "script" and importlib.util.find_spec(package) is None
    return pytest.param(
        name, marks=pytest.mark.skipif(missing, reason=f"{package} is not installed; make scripts does it")
    )


@pytest.fixture(scope="module", params=[_way(name) for name in WAYS])
def tracked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tracked:
    folder = tmp_path_factory.mktemp("tracked")
    worlds = [World(2, NodeFailure(at=7, nodes=(0,))), World(1, Failure(at=10, rank=0, by="kill")), World(1)]
    return training(str(request.param), folder, worlds, WANDB__TRANSACTION_LOG_FLUSH_INTERVAL="0.05")


def training(way: str, folder: Path, worlds: list[World], **env: str) -> Tracked:
    uri = f"sqlite:///{folder}/mlflow.db"
    tracker_files.mlflow_points(uri)  # Lightning opens it on every rank, and MLflow cannot make it twice at once.
    offline = {
        "WANDB_MODE": "offline",
        "WANDB_DIR": str(folder),
        "WANDB_SILENT": "true",
        "MLFLOW_TRACKING_URI": uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_ASYNC_LOGGING_BUFFERING_SECONDS": "60",  # What is logged asynchronously is lost with the process.
    }
    result = run(
        WAYS[way],
        args=(str(folder),),
        worlds=worlds,
        checkpoint_dir=folder / "checkpoints",
        timeout_s=500.0,
        env={**offline, **env},
    )
    return Tracked(way, folder, uri, result)


def repeated(points: Points) -> Points:
    """What is there twice; transformers itself logs the epoch with training and again with evaluation."""
    counts = Counter(point for point in points if point[0] not in ("epoch", "train/epoch"))
    return [point for point, count in counts.items() if count > 1]


def test_the_workers_went_back_to_their_checkpoints(tracked: Tracked) -> None:
    assert [world.replicas[0].records[:1] for world in tracked.result.worlds] == [[0], [4], [8]]


def test_wandb_has_one_run_that_rank_0_alone_writes(tracked: Tracked) -> None:
    ids = tracker_files.wandb_ids(tracked.folder)
    assert (len(ids), len(set(ids))) == (3, 1)
    assert ids[0].startswith("testing-")


def test_wandb_has_no_step_twice(tracked: Tracked) -> None:
    points = tracker_files.wandb_points(tracked.folder, STEP_NAMES.get(tracked.way, "_step"))
    assert repeated(points) == []
    steps = [step for name, step in points if name in ("loss", "train/loss")]
    assert steps[-2:] == tracked.steps[-2:]
    assert len(steps) >= len(tracked.steps) - 4, "W&B may lose what it had not written when its process was killed"


def test_mlflow_has_one_run_with_each_step_once(tracked: Tracked) -> None:
    (points,) = tracker_files.mlflow_points(tracked.uri).values()
    assert repeated(points) == []
    assert sorted(step for name, step in points if name == "loss") == tracked.steps


def test_tensorboard_shows_one_run_with_each_step_once(tracked: Tracked) -> None:
    (points,) = tracker_files.tensorboard_points(tracked.folder).values()
    assert repeated(points) == []
    assert sorted(step for name, step in points if name in ("loss", "train/loss")) == tracked.steps


def test_a_planned_change_leaves_no_gap_and_an_id_of_the_user_stays(tmp_path: Path) -> None:
    tracked = training("script", tmp_path, [World(1, Planned(at=3)), World(2)], WANDB_RUN_ID="mine")
    assert tracker_files.wandb_ids(tmp_path) == ["mine", "mine"]
    assert sorted(tracker_files.wandb_points(tmp_path)) == [("loss", step) for step in tracked.steps]
    (points,) = tracker_files.mlflow_points(tracked.uri).values()
    assert sorted(points) == [("loss", step) for step in tracked.steps]
