"""The types of the library as a user's project sees them: mypy, strict, over the examples and a script of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

SCRIPT = """
from typing import Any, assert_type

import torch
from torch.utils.data import TensorDataset

import elastic
from elastic import testing
from elastic.errors import CheckpointError
from elastic.train import checkpoint, ps

with elastic.preparing("loading the data"):
    data = TensorDataset(torch.zeros(8, 2))
here: elastic.ProcessEnvironment = elastic.init(timeout_s=60.0)
assert_type(elastic.env(), elastic.ProcessEnvironment)
assert_type(here.device, torch.device)
assert_type(here.rank, int)
batch = elastic.GlobalBatch(total=4, max_per_rank=2)
sampler = elastic.ElasticSampler(data, batch=batch)
loader = elastic.DataLoader(data, sampler=sampler, num_workers=2)
stream = elastic.ElasticStream(lambda epoch: range(epoch, 9), batch_size=2)
state = elastic.State(model=torch.nn.Linear(2, 1), sampler=sampler, stream=stream, best=0.0)
assert_type(state.restore(folder="checkpoints"), bool)
for epoch in elastic.epochs(state, 2):
    assert_type(epoch, int)
    for (inputs,) in loader:
        loss = batch.scale_loss(torch.as_tensor(inputs).sum())
        assert_type(loss, torch.Tensor)
        assert_type(batch.is_last_micro_batch, bool)
        elastic.report(step=state.step, loss=loss, accuracy=0.5)
        state.commit(every=50, memory_every=1, loss=loss)
assert_type(state.step, int)
"""


@pytest.mark.timeout(400)
def test_a_users_project_type_checks_against_the_library(tmp_path: Path) -> None:
    for example in (ROOT / "elastic/examples").glob("[!_]*.py"):
        if "elastic.integrations" not in example.read_text():  # Those need a framework, which has types of its own.
            shutil.copy(example, tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    checked = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", ROOT / ".mypy_cache/user"),
            "--allow-untyped-calls",  # Torch's Tensor.backward has no types.
            "--disable-error-code=import-untyped",  # Nor has scikit-learn.
            ".",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
