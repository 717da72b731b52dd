"""Whatever comes in from any side is read, or refused as its reader promises: nothing crashes and nothing runs.

The targets are those of `tests.fuzz`, which `python -m tests.fuzz` feeds for longer, guided by coverage.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutate import mutated
from tests.fuzz.target import NAMES, Target, load

TARGETS = {name: load(name) for name in NAMES}
EXAMPLES = {"store": 120, "fence": 40, "end of a log": 60, "elastic-ctl": 60, "link dialler": 60}
"""Those that take long have fewer."""


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_good_input_and_what_broke_something_once_break_nothing(target: Target) -> None:
    for data in (*target.seeds, *target.found, b"", b"\0", b"\n" * 100):
        target.run(data)


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS.keys())
def test_good_input_that_was_changed_a_little_breaks_nothing(target: Target) -> None:
    @settings(
        max_examples=EXAMPLES.get(target.name, 200),
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.integers(0, 2**32))
    def look(seed: int) -> None:
        target.run(mutated(target.seeds, random.Random(seed)))

    look()
