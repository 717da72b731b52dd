"""`elastic.init()` without arguments, wherever a script is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.script_runs import completed, completed_forked, run
from tests.support.shared_console import by_rank

SCRIPT = """
import torch
import torch.distributed as dist
import elastic

here = elastic.init()
assert elastic.init() == elastic.env() == here
total = torch.ones(1, device=here.device)
dist.all_reduce(total)
names = "rank local_rank world_size local_world_size device backend generation restarts"
said = " ".join(f"{name}={getattr(here, name)}" for name in names.split())
print(f"{said} sum {total.item()}\\n", end="", flush=True)
dist.destroy_process_group()
"""

THREE_CHANGES = """
import torch
import elastic
from torch.nn.parallel import DistributedDataParallel

here = elastic.init()
torch.manual_seed(here.rank)
model = DistributedDataParallel(torch.nn.Linear(4, 1).to(here.device))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(16, 4, device=here.device)
for step in range(100):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), x.sum(1, keepdim=True))
    loss.backward()
    optimizer.step()
print(f"rank {here.rank} weights {model.module.weight.flatten().tolist()}", flush=True)
"""

ENDS_AT_ONCE = """
import torch
import elastic

elastic.init()
state = elastic.State(model=torch.nn.Linear(2, 1))
state.restore()
print("done\\n", end="", flush=True)
"""
TORCHRUN = ("--standalone", "--nproc-per-node", "3")


@pytest.fixture
def script(tmp_path: Path) -> str:
    (tmp_path / "train.py").write_text(SCRIPT)
    return "train.py"


def line(rank: int, local_rank: int, world: int, generation: int, local_world: int = 1) -> str:
    return (
        f"rank={rank} local_rank={local_rank} world_size={world} local_world_size={local_world} device=cpu "
        f"backend=gloo generation={generation} restarts=0 sum {world}.0"
    )


def test_a_plain_python_command_is_a_world_of_one(script: str, tmp_path: Path) -> None:
    assert completed(["-W", "error", script], tmp_path) == [line(0, 0, 1, 0)]


def test_workers_of_torchrun_join(script: str, tmp_path: Path) -> None:
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", script]
    assert sorted(completed_forked(torchrun, tmp_path)) == [line(0, 0, 2, 0, 2), line(1, 1, 2, 0, 2)]


def test_workers_of_two_nodes_of_ours_join(script: str, tmp_path: Path) -> None:
    ours = ["-m", "launcher", "--local-nodes", "2", "--console", "all", script]
    assert sorted(by_rank(completed(ours, tmp_path))) == [(0, line(0, 0, 2, 1)), (1, line(1, 0, 2, 1))]


def test_three_changes_make_a_script_train_together(tmp_path: Path) -> None:
    """Import, init, wrap; DDP starts all from rank 0's weights and averages the gradients."""
    (tmp_path / "train.py").write_text(THREE_CHANGES)
    ours = ["-m", "launcher", "--nproc-per-node", "2", "--console", "all", "train.py"]
    first, second = sorted(completed(ours, tmp_path, ELASTIC_NO_PRELOAD="0"))  # What DDP needs is loaded once for both.
    assert first.partition("weights")[2] == second.partition("weights")[2] != ""


def test_a_group_that_the_script_started_itself_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch.distributed as dist, elastic\n"
        "dist.init_process_group('gloo', store=dist.HashStore(), rank=0, world_size=1)\n"
        "print(elastic.init().world_size, flush=True)\n"
    )
    assert completed_forked(["train.py"], tmp_path) == ["1"]


def test_env_says_what_the_group_says_while_there_is_one_and_in_a_fork_what_the_environment_says(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import os, torch.distributed as dist, elastic\n"
        "here = elastic.init()\n"
        "os.environ['ELASTIC_JOB_ID'] = 'j'  # Changed later, and read again.\n"
        "os.environ |= {'RANK': '1', 'WORLD_SIZE': '2'}  # As for a process that this one starts.\n"
        "def show(who):\n"
        "    found = elastic.env()\n"
        "    print(who, found.job_id, found.rank, found.world_size, found.backend or '-', flush=True)\n"
        "show('joined')\n"
        "if (child := os.fork()) == 0:\n"
        "    show('fork')\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "dist.destroy_process_group()\n"
        "show('ended')\n"
    )
    assert completed_forked(["train.py"], tmp_path) == ["joined j 0 1 gloo", "fork j 1 2 -", "ended j 1 2 -"]


def test_a_group_that_was_ended_can_be_started_anew_with_a_limit_for_its_collectives(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch, torch.distributed as dist, elastic\n"
        "first = elastic.init()\n"
        "dist.destroy_process_group()\n"
        "second = elastic.init(timeout_s=7)\n"
        "assert second == first and second is not first\n"
        "gloo = dist.distributed_c10d._get_default_group()._get_backend(torch.device('cpu'))\n"
        "print(gloo.options._timeout, flush=True)\n"
    )
    assert completed_forked(["train.py"], tmp_path) == ["0:00:07"]


def test_workers_that_end_right_after_a_collective_end_well_without_ending_the_group_themselves(tmp_path: Path) -> None:
    """Torch alone aborts in most of such runs."""
    (tmp_path / "train.py").write_text(ENDS_AT_ONCE)
    assert completed_forked(["torch.distributed.run", *TORCHRUN, "train.py"], tmp_path).count("done") == 3


def test_an_environment_that_does_not_fit_together_is_one_line_and_exit_2(script: str, tmp_path: Path) -> None:
    code, _, said = run([script], tmp_path, RANK="0")
    assert code == 2
    assert said.startswith("elastic: error: joining the other workers needs RANK, WORLD_SIZE, MASTER_ADDR and ")
    assert said.count("\n") == 1
