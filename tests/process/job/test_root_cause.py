"""Which failure is the first, with torch and gloo: the others only get errors of the connection."""

from __future__ import annotations

import re

from tests.support.job_harness import Job, story

TRAIN = """
import os, sys
from pathlib import Path
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

bad = sys.argv[2].split(",")
marks = Path(sys.argv[1])

class Data(Dataset):
    def __len__(self):
        return 48
    def __getitem__(self, i):
        if i >= 24 and os.environ["RANK"] in bad:
            raise OSError(5, "Input/output error")
        return torch.full((4,), float(i))

def raised(*what):
    "Ends only when every worker that is to fail has said so: they fail at once."
    sys.__excepthook__(*what)
    sys.stderr.flush()
    if os.environ["RANK"] in bad:
        (marks / os.environ["RANK"]).touch()
        while not all((marks / rank).exists() for rank in bad):
            os.sched_yield()

sys.excepthook = raised
dist.init_process_group("gloo")
model = torch.nn.Linear(4, 1)
for x in DataLoader(Data(), batch_size=8):
    model(x).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
"""
"""What DDP does, without the two seconds that it loads for in each process."""


async def fails(job: Job, bad: str, count: int = 2, slots: int = 2) -> None:
    """Run the script on these nodes; every node must name these ranks, and the log of one of them."""
    script = job.write("train.py", TRAIN)
    (job.folder / "marks").mkdir()
    flags = ("--np", str(count), "--nproc-per-node", str(slots), "--max-restarts", "0")
    words = (str(script), str(job.folder / "marks"), bad)
    # A warm nursery loads much more than torch; for one worker that starts once, torch alone is cheaper.
    environ = {"ELASTIC_NO_PRELOAD": "1"} if slots == 1 else {}
    nodes = [await job.node(*flags, script=words, environ=environ) for _ in range(count)]
    assert [await node.exits() for node in nodes] == [1] * len(nodes)
    for node in nodes:
        *early, judged = (line for line in node.lines if line.startswith("ABORT!!!"))
        assert judged == (
            f"ABORT!!! Out of all {count * slots} trainers, the trainer process with rank=[{bad}] was aborted. "
            "Please check its log."
        )
        for line in early:  # Where workers take long to end, it is told who had ended until then.
            assert re.search(rf"rank=\[[{bad}]\]", line)
        first = await node.says(r"^Root cause: rank (\d) on host 127\.0\.0\.1 ")
        assert first[1] in bad.split(",")
        await node.says(rf"^Its log is /.*/log/workerlog\.{first[1]} on host 127\.0\.0\.1\.$")
        end = node.lines.index(f"The last lines of rank {first[1]}'s log:")
        tail = [line for line in node.lines[end + 1 :] if line.startswith("    ")]
        assert any(
            re.fullmatch(rf" +\[rank{first[1]}\]: OSError: \[Errno 5\] Input/output error", line) for line in tail
        )


@story
async def test_a_rank_that_cannot_read_its_data_is_the_first_cause_on_every_node(job: Job) -> None:
    await fails(job, "1")


@story
async def test_rank_0_can_be_the_first_cause(job: Job) -> None:
    await fails(job, "0", slots=1)


@story
async def test_two_ranks_that_fail_at_once_are_both_named(job: Job) -> None:
    await fails(job, "1,2")


@story
async def test_two_ranks_of_one_node_that_fail_at_once_are_both_named(job: Job) -> None:
    await fails(job, "0,2", count=1, slots=3)
