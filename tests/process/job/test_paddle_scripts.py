"""A script of Paddle's, under Paddle itself, reads Paddle's variables and finds the other workers.

Paddle stands in a virtual environment of its own, .venv-paddle: `make paddle` installs it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.job_harness import Job, story

VENV = Path(__file__).resolve().parents[3] / ".venv-paddle"
PADDLE = VENV / "bin" / "python"
pytestmark = [
    pytest.mark.paddle,
    pytest.mark.timeout(240),
    pytest.mark.skipif(
        not (VENV / ".installed").exists() and os.environ.get("ELASTIC_PADDLE_REQUIRED") != "1",
        reason="Paddle is not installed; make paddle does it",
    ),
]

SCRIPT = """
import os
import sys

import numpy as np
import paddle
import paddle.distributed as dist

for name in list(os.environ):  # What another framework would read.
    if name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") or name.startswith("ELASTIC_"):
        del os.environ[name]

dist.init_parallel_env()
rank, world = dist.get_rank(), dist.get_world_size()
total = paddle.to_tensor([float(rank + 1)])
dist.all_reduce(total)
if not os.path.exists("{failed_once}") and rank == 1:
    open("{failed_once}", "w").close()
    sys.exit("rank 1 fails once")

paddle.seed(0)
layer = paddle.nn.Linear(4, 1)
model = paddle.DataParallel(layer)
optimizer = paddle.optimizer.SGD(learning_rate=0.1, parameters=model.parameters())
x = np.random.default_rng(0).standard_normal((64, 4)).astype("float32")
y = x.sum(1, keepdims=True)
for step in range(100):
    loss = ((model(paddle.to_tensor(x[rank::world])) - paddle.to_tensor(y[rank::world])) ** 2).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
weights = []
dist.all_gather(weights, layer.weight)
assert all(np.array_equal(weights[0].numpy(), other.numpy()) for other in weights)
if rank == 0:
    print("world", world, "sum", total.item(), "loss", round(loss.item(), 4), flush=True)
"""

FLEET = """
from paddle.distributed import fleet

# What fleet.init() asks. It then makes several groups of gloo, which on a CPU often fails ("connection
# refused"), also without any launcher.
role = fleet.PaddleCloudRoleMaker(is_collective=True)
print("worker", role._worker_index(), "of", role._worker_num(), "at", role._get_trainer_endpoints(), flush=True)
"""


@story
async def test_a_script_that_reads_only_paddles_variables_trains_on_two_nodes_and_after_a_restart(job: Job) -> None:
    """Paddle's store binds the port that the agent holds, in both generations."""
    script = job.write("train.py", SCRIPT.format(failed_once=job.folder / "failed-once"))
    nodes = [await job.node("--np", "2", script=(str(PADDLE), str(script))) for _ in range(2)]
    assert [await node.exits() for node in nodes] == [0, 0]
    assert (job.folder / "failed-once").exists()
    (said,) = (line for node in nodes for line in node.shown if line.startswith("world"))
    assert said == "world 2 sum 3.0 loss 0.0"


@story
async def test_fleet_finds_two_workers_on_each_of_two_nodes(job: Job) -> None:
    script = job.write("train.py", FLEET)
    flags = ("--np", "2", "--nproc-per-node", "2", "--console", "all")
    nodes = [await job.node(*flags, script=(str(PADDLE), str(script))) for _ in range(2)]
    assert [await node.exits() for node in nodes] == [0, 0]
    said = sorted(line.removeprefix(f"[{node.id}] ") for node in nodes for line in node.shown if "worker" in line)
    endpoints = nodes[0].text("endpoints.log").splitlines()[1:]
    assert said == [f"rank {rank}: worker {rank} of 4 at {endpoints}" for rank in range(4)]
