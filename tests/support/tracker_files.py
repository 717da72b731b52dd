"""What W&B, MLflow and TensorBoard have of a run, read from their files: (name, step) pairs in order."""

from __future__ import annotations

import json
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

Points = list[tuple[str, int]]

BLOCK: Final = 32768
"""W&B's file is a LevelDB log of protobuf records, behind 7 bytes of its own."""
OWN_BYTES: Final = 7
FULL, LAST, NOTHING = 1, 4, 0
WAIT_S: Final = 30.0


def wandb_ids(folder: Path) -> list[str]:
    """The run's ID of each offline folder, one for each start."""
    return [path.name.split("-", 3)[3] for path in sorted(folder.glob("wandb/offline-run-*"))]


def wandb_points(folder: Path, step_name: str = "_step") -> Points:
    """What was logged, by the step that is among the values."""
    points = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for row in wandb_rows(path):
            points += [(name, int(row[step_name])) for name in row if name != step_name and not name.startswith("_")]
    return points


def wandb_rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows that one process has written."""
    from wandb.proto import wandb_internal_pb2

    for content in _records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(content)
        if record.WhichOneof("record_type") == "history":
            yield {one.key or "/".join(one.nested_key): json.loads(one.value_json) for one in record.history.item}


def _records(data: bytes) -> Iterator[bytes]:
    at, parts = OWN_BYTES, b""
    while at + OWN_BYTES <= len(data):
        if BLOCK - at % BLOCK < OWN_BYTES:
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        at += OWN_BYTES
        if kind == NOTHING or at + length > len(data):
            return
        parts += data[at : at + length]
        at += length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def await_wandb(folder: Path, step: int, step_name: str) -> None:
    """Wait until W&B's own process has written a step, which takes it up to its interval."""
    limit_s = time.monotonic() + WAIT_S
    while not any(seen >= step for _, seen in wandb_points(folder, step_name)):
        if time.monotonic() > limit_s:
            raise TimeoutError(f"W&B has not written step {step} in {WAIT_S:.0f} s")


def mlflow_points(uri: str) -> dict[str, Points]:
    """What each run has, by its ID, over all experiments."""
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return {
        run.info.run_id: [
            (name, point.step)
            for name in run.data.metrics
            for point in client.get_metric_history(run.info.run_id, name)
        ]
        for run in runs
    }


def tensorboard_points(folder: Path) -> dict[str, Points]:
    """What TensorBoard shows of each folder of files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = {}
    for parent in sorted({path.parent for path in folder.rglob("events.out.tfevents.*")}):
        events = EventAccumulator(str(parent)).Reload()
        found[str(parent)] = [(tag, one.step) for tag in events.Tags()["scalars"] for one in events.Scalars(tag)]
    return found
