"""The bar of phases: each as long as its share."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from launcher.ctl.phase_bar import STYLES, WIDTH, bar, widths
from launcher.history.recovery import PhaseEnd


def test_every_phase_has_a_colour() -> None:
    assert set(STYLES) == set(PhaseEnd)


def test_a_bar_is_as_long_as_it_may_be_and_names_what_can_be_seen() -> None:
    text = bar({"detect": 0.001, "stop": 0.5, "step": 1.5}, 40, ascii_only=True).plain
    drawn, names = text.splitlines()
    assert drawn == "#" * 40 + " 2.00 s"
    assert names.split() == ["step", "1.50", "s"]
    assert len(bar({"step": 1.0}, 500, ascii_only=False).plain.split()[0]) == WIDTH


@given(st.lists(st.floats(-1, 1e6), max_size=20), st.integers(0, 200))
def test_the_cells_of_all_phases_are_the_whole_bar(lengths: list[float], cells: int) -> None:
    found = widths(lengths, cells)
    assert len(found) == len(lengths)
    assert min(found, default=0) >= 0
    assert sum(found) == (cells if any(length > 0 for length in lengths) else 0)
