"""The training library under random schedules: a handful of the seeds that `python -m tests.fuzz.training.run` runs."""

from __future__ import annotations

import pytest

from tests.fuzz.training import run

SEEDS = {
    0: "FSDP2, killed in restores",
    5: "killed in commits and restores, two losses",
    13: "killed in copies to memory, nodes lost",
    19: "folders that are not shared, nodes lost in restores",
    27: "ranks without collectives",
    33: "killed in saves",
    38: "FSDP2, killed in saves",
    239: "killed while all leave in a planned stop",
}


@pytest.mark.parametrize("seed", SEEDS, ids=[f"{seed}, {what}" for seed, what in SEEDS.items()])
def test_a_random_schedule_loses_no_more_than_was_promised_and_changes_no_number(seed: int) -> None:
    outcome = run.outcome(seed)
    assert outcome.kind in ("ok", "refused", "ran out"), str(outcome)
