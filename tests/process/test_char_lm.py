"""The FSDP2 example, as a user runs it: its shards go on in a world of another size."""

from __future__ import annotations

import re
from pathlib import Path

from tests.process.scripts import completed

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
SCRIPT = ("-m", "elastic.examples.char_lm", "--files", "2")


def test_the_sharded_example_goes_on_in_another_world_and_learns(tmp_path: Path) -> None:
    first = completed([*TORCHRUN, *SCRIPT, "--steps", "20"], tmp_path)
    second = completed([*SCRIPT, "--steps", "40"], tmp_path)
    found = [re.fullmatch(r"step (\d+)  loss (\S+)  world (\d)", line) for line in [*first, *second]]
    steps = [(int(one[1]), int(one[3]), float(one[2])) for one in found if one]
    assert [(step, world) for step, world, _ in steps] == [(10, 2), (20, 2), (30, 1), (40, 1)]
    assert steps[-1][2] < steps[0][2]
