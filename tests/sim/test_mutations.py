"""The simulation has teeth: each rule of the core that is broken is found by a seed.

The seeds stand in `tests/sim/mutations.json`. They belong to the core and the simulation as they are: after a change of
either, `python -m tests.sim.mutate --write` looks for them anew.
"""

from __future__ import annotations

from concurrent.futures import as_completed

import pytest

from elastic.core.agent.table import TABLE
from tests.sim.mutant import Broken, find
from tests.sim.mutate import fresh, noted
from tests.sim.mutations import MUTATIONS, OPEN, ROWS, Mutation


@pytest.mark.timeout(600)
def test_each_mutation_is_found_by_its_seed() -> None:
    seeds = noted()
    chosen = [one for one in MUTATIONS if one.name in seeds]
    with fresh() as pool:
        tasks = [pool.submit(find, one, [seeds[one.name]]) for one in chosen]
        missed = sorted(found.name for found in (task.result() for task in as_completed(tasks)) if found.seed is None)
    assert missed == [], "their seeds find them no more; to look for others: python -m tests.sim.mutate --write"


def test_a_mutation_that_no_seed_finds_is_one_of_those_that_are_known() -> None:
    assert {one.name for one in MUTATIONS} - set(noted()) == set(OPEN), "python -m tests.sim.mutate --write"


def test_every_row_of_the_table_is_taken_out_once() -> None:
    assert [(name, phase) for name, phase, _ in ROWS] == [(row.name, row.phase.name) for row in TABLE]


def test_every_mutation_is_a_program() -> None:
    assert all(Broken(one) for one in MUTATIONS)


def test_names_of_mutations_are_unique() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_a_text_that_is_not_in_the_file_any_more_is_named() -> None:
    with pytest.raises(
        LookupError, match=r"elastic/core/membership/gate\.py has 'what nobody wrote' 0 times .* 'one' anew"
    ):
        Broken(Mutation("one", "elastic/core/membership/gate.py", "what nobody wrote", "", ""))
