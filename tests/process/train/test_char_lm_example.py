"""The FSDP2 example, as a user runs it: its shards go on in a world of another size."""

from __future__ import annotations

import re
from pathlib import Path

from tests.scripts.torch_forkserver import LIMIT_S, Forked
from tests.support.script_runs import WARM, completed, environment

MODULE = "elastic.examples.char_lm"
WORDS = ("--files", "2", "--steps")


def test_the_sharded_example_goes_on_in_another_world_and_learns(tmp_path: Path) -> None:
    """Two workers under elastic-launch, then one without any launcher."""
    kept = str(tmp_path / "checkpoints")
    launch = ("-m", "launcher", "--nproc-per-node", "2", "--checkpoint-dir", kept)
    first = completed([*launch, "-m", MODULE, *WORDS, "20"], tmp_path, **WARM)
    alone = Forked((MODULE, *WORDS, "40"), environment(ELASTIC_CHECKPOINT_DIR=kept))
    second = alone.output(LIMIT_S).splitlines()
    assert alone.wait(0) == 0, second
    found = [re.fullmatch(r"step (\d+)  loss (\S+)  world (\d)", line) for line in [*first, *second]]
    steps = [(int(one[1]), int(one[3]), float(one[2])) for one in found if one]
    assert [(step, world) for step, world, _ in steps] == [(10, 2), (20, 2), (30, 1), (40, 1)]
    assert steps[-1][2] < steps[0][2]
