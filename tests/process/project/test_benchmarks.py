"""The benchmarks run: what they measure is for people to judge, on a machine that does nothing else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import checkpoint, results, table
from tests.bench.against import MEETING
from tests.bench.results import OURS, Figure
from tests.support.script_runs import environment


def run(bench: str, folder: Path, *flags: str) -> dict[str, Figure]:
    """Run the smallest form of a benchmark; what it measured of ours. Whether a goal is kept is no matter here."""
    command = [sys.executable, "-m", f"tests.bench.{bench}", "--results", str(folder), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=110)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    figures = results.read(bench, folder)
    assert figures, done.stdout + done.stderr
    print(done.stdout)
    return {one.what: one for one in figures if one.who == OURS}


@pytest.mark.parametrize(("kind", "world"), [("node", 1), ("newcomer", 2)])
def test_the_recovery_benchmark_measures_how_long_another_world_took(
    kind: str, world: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    flags = ("--kinds", kind, "--rounds", "1", "--only", "ours", "--nodes", "2")
    figure, *others = run("recovery", tmp_path, *flags).values()
    assert [one.value for one in others] == [0] * (kind == "newcomer")  # No finished step is lost.
    assert figure.value > 0
    assert f"to a world of {world} (generation " in capfd.readouterr().out
    assert "training.py" in figure.started


def test_the_start_benchmark_measures_the_first_step(tmp_path: Path) -> None:
    figures = run("start", tmp_path, "--rounds", "1", "--uncounted", "0", "--nodes", "1", "--only", "ours")
    assert figures["command to first step, one node"].value > 0


def test_the_learning_benchmark_measures_the_first_start_with_an_empty_cache(tmp_path: Path) -> None:
    figures = run("learning", tmp_path, "--scripts", "digits", "--parts", "start", "--starts", "1", "--nodes", "1")
    assert figures["digits: command to first step, empty cache"].value > 0
    assert {one.who for one in results.read("learning", tmp_path)} == {OURS, results.NO_LEARN}


def test_the_idle_benchmark_measures_memory_processor_and_messages(tmp_path: Path) -> None:
    figures = run("idle", tmp_path, "--nodes", "1", "--seconds", "5")
    assert len(figures) == 10, "with heartbeats, and without"
    assert all(one.value > 0 for one in figures.values())
    first, last = table.marks(table.FIGURES)
    begun = f"a\n{first}\nold\n{last}\nb\n"
    written = table.written(begun, table.FIGURES, table.table(figures.values()))
    assert "old" not in written
    assert "agent's CPU, of a core" in written
    assert table.written(written, table.FIGURES, table.table(figures.values())) == written


def test_torchs_agents_meet_in_a_process_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.bench.scale", "--sizes", "", "--torch", "2,32", "--torch_rounds", "1"]
    command += ["--idle", ""]
    done = subprocess.run(
        [*command, "--results", str(tmp_path)], capture_output=True, text=True, env=environment(), timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [(one.what, one.who) for one in results.read("scale", tmp_path)] == [("32 agents meet", MEETING)]
    in_picture = [(one.what, one.unfinished) for one in results.read("scale_sizes", tmp_path)]
    assert in_picture == [("2 agents meet", 0), ("32 agents meet", 0)]


def test_the_checkpoint_benchmark_runs_and_prints_a_line_for_each_way_to_keep_a_state(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert checkpoint.main(["--quick", "--recoveries", "0"]) == 0
    said = capfd.readouterr().out
    lines = said.splitlines()
    for name in ("memory tier", "disk tier", "torch.save + fsync", "dcp.save", "dcp.async_save", "one memory copy"):
        assert sum(line.startswith(f"{name}  ") for line in lines) == 1, said
    assert "memory tier: blocks for" in said
    assert "with an agent: commit" in said
    assert "without an agent: commit" in said
