"""The simulation has teeth: each rule of the core that is broken is found by a seed.

The seeds stand in `tests/sim/mutations.json`. They belong to the core and the simulation as they are: after a change of
either, `python -m tests.sim.mutate --write` looks for them anew.
"""

from __future__ import annotations

from concurrent.futures import as_completed

import pytest

from tests.sim.mutate import find_named, fresh, noted
from tests.sim.mutations import MUTATIONS, OPEN


@pytest.mark.timeout(600)
def test_each_mutation_is_found_by_its_seed() -> None:
    seeds = noted()
    chosen = [one for one in MUTATIONS if one.name in seeds]
    with fresh() as pool:
        tasks = [pool.submit(find_named, one.name, [seeds[one.name]]) for one in chosen]
        missed = sorted(found.name for found in (task.result() for task in as_completed(tasks)) if found.seed is None)
    assert missed == [], "their seeds find them no more; to look for others: python -m tests.sim.mutate --write"


def test_a_mutation_that_no_seed_finds_is_one_of_those_that_are_known() -> None:
    assert {one.name for one in MUTATIONS} - set(noted()) == {*OPEN}, "python -m tests.sim.mutate --write"


def test_names_of_mutations_are_unique() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)
