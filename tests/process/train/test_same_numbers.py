"""A run whose world changes computes what an undisturbed one does: with real processes and DDP."""

from __future__ import annotations

from pathlib import Path

from tests.support.script_runs import completed_forked

ROOT = Path(__file__).parents[3]


def test_with_a_total_four_world_changes_and_lost_steps_end_with_the_same_parameters(tmp_path: Path) -> None:
    *worlds, undisturbed, apart = completed_forked(
        ["tests.scripts.compare_schedules", str(tmp_path)], ROOT, PYTHONWARNINGS="error"
    )
    assert worlds == [
        "world 3 steps 7 takes 1",
        "world 2 steps 6 takes 2",
        "world 1 steps 5 takes 3",
        "world 3 steps 9 takes 1",
        "world 2 steps 3 takes 2",
    ]
    assert undisturbed == "world 1 steps 30 takes 3"
    assert float(apart.removeprefix("apart ")) < 1e-9


def test_a_sharded_module_that_accumulates_ends_with_the_same_parameters_too(tmp_path: Path) -> None:
    words = ["tests.scripts.compare_schedules", str(tmp_path), "sharded"]
    world, undisturbed, apart = completed_forked(words, ROOT, PYTHONWARNINGS="error")
    assert (world, undisturbed) == ("world 2 steps 30 takes 2", "world 1 steps 30 takes 3")
    assert float(apart.removeprefix("apart ")) < 1e-9
