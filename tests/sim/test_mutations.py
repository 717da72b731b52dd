"""The simulation has teeth: each rule of the core that is broken is found by a seed.

The seeds stand in `tests/sim/mutations.json`. They belong to the core and the simulation as they are: after a change of
either, `python -m tests.sim.mutate --write` looks for them anew.
"""

from __future__ import annotations

from concurrent.futures import as_completed

import pytest

from elastic.agentstate import TABLE
from tests.sim.mutant import Broken, find
from tests.sim.mutate import fresh, noted
from tests.sim.mutations import MUTATIONS, ROWS, Mutation


@pytest.mark.timeout(600)
def test_each_mutation_is_found_by_its_seed() -> None:
    seeds = noted()
    assert [one.name for one in MUTATIONS if one.name not in seeds] == [], "python -m tests.sim.mutate --write"
    with fresh() as pool:
        found = [
            task.result() for task in as_completed([pool.submit(find, one, [seeds[one.name]]) for one in MUTATIONS])
        ]
    missed = sorted(one.name for one in found if one.seed is None)
    assert missed == [], "their seeds find them no more: python -m tests.sim.mutate --write looks for others"


def test_every_row_of_the_table_is_taken_out_once() -> None:
    assert [(name, phase) for name, phase, _ in ROWS] == [(row.name, row.phase.name) for row in TABLE]


def test_names_of_mutations_are_unique() -> None:
    assert len({one.name for one in MUTATIONS}) == len(MUTATIONS)


def test_a_text_that_is_not_in_the_file_any_more_is_named() -> None:
    with pytest.raises(LookupError, match=r"elastic/gate\.py has 'what nobody wrote' 0 times .* 'one' anew"):
        Broken(Mutation("one", "elastic/gate.py", "what nobody wrote", "", ""))
