"""The benchmarks run: what they measure is for people to judge, on a machine that does nothing else."""

from __future__ import annotations

import subprocess
import sys

from tests.process.scripts import environment


def test_the_checkpoint_benchmark_runs_and_prints_a_line_for_each_way_to_keep_a_state() -> None:
    command = [sys.executable, "-m", "tests.bench.checkpoint", "--quick", "--recoveries", "0"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    for name in ("memory tier", "disk tier", "torch.save + fsync", "dcp.save", "dcp.async_save", "one memory copy"):
        assert sum(line.startswith(f"{name}  ") for line in lines) == 1, done.stdout
    assert "memory tier: blocks for" in done.stdout
    assert "with an agent: commit" in done.stdout
    assert "without an agent: commit" in done.stdout
