"""Boxes of a tensor, and plans that bring any layout into any other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic.errors import TensorsMissing
from elastic.train.comm.tensor_boxes import Box, Transfer, overlap, plan_transfers, split, subtract

Cell = tuple[int, ...]


def cells(box: Box) -> set[Cell]:
    found: set[Cell] = {()}
    for offset, size in zip(box.offsets, box.sizes, strict=True):
        found = {(*cell, i) for cell in found for i in range(offset, offset + size)}
    return found


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """Any, and some in which boxes are seldom empty: most pairs of boxes in small ones have nothing in common."""
    return st.lists(st.integers(0, 6), max_size=3).map(tuple) | st.sampled_from([(6,), (5, 4), (3, 4, 2)])


def all_boxes(shape: Sequence[int]) -> list[Box]:
    """Every box of a tensor that has an element."""
    spans = [[(start, size) for start in range(n) for size in range(1, n - start + 1)] for n in shape]
    return [Box(tuple(a for a, _ in box), tuple(n for _, n in box)) for box in product(*spans)]


@st.composite
def boxes(draw: st.DrawFn, shape: Sequence[int]) -> Box:
    starts = [draw(st.integers(0, length)) for length in shape]
    sizes = [draw(st.integers(0, length - start)) for length, start in zip(shape, starts, strict=True)]
    return Box(tuple(starts), tuple(sizes))


@st.composite
def cuttings(draw: st.DrawFn, shape: Sequence[int]) -> list[Box]:
    """A tensor cut into parts that cover it, along as many dimensions as it pleases."""
    parts = [Box.whole(shape)]
    for d, length in enumerate(shape):
        cuts = sorted({0, length, *draw(st.lists(st.integers(0, length), max_size=3))})
        spans = list(pairwise(cuts)) or [(0, 0)]
        parts = [
            Box((*p.offsets[:d], a, *p.offsets[d + 1 :]), (*p.sizes[:d], b - a, *p.sizes[d + 1 :]))
            for p in parts
            for a, b in spans
        ]
    return parts


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[dict[str, list[Box]]], list[dict[str, Box]]]:
    """Ranks that hold the parts of some tensors, some of them more than once, and ranks that need other parts."""
    ranks = draw(st.integers(1, 5))
    offers: list[dict[str, list[Box]]] = [{} for _ in range(ranks)]
    needs: list[dict[str, Box]] = [{} for _ in range(ranks)]
    for key in draw(st.sets(st.sampled_from("abc"), min_size=1)):
        shape = draw(shapes())
        for part in draw(cuttings(shape)):
            for rank in draw(st.sets(st.integers(0, ranks - 1), min_size=1, max_size=2)):
                offers[rank].setdefault(key, []).append(part)
        for rank in draw(st.sets(st.integers(0, ranks - 1))):
            needs[rank][key] = draw(boxes(shape))
    return offers, needs


class TestBoxes:
    @given(shapes().flatmap(lambda shape: st.tuples(boxes(shape), boxes(shape))))
    def test_the_overlap_has_just_the_common_elements(self, two: tuple[Box, Box]) -> None:
        common = overlap(*two)
        assert (cells(common) if common is not None else set()) == cells(two[0]) & cells(two[1])

    @pytest.mark.parametrize("shape", [(4,), (4, 3), (2, 2, 3)])
    def test_what_is_left_of_a_box_and_the_part_taken_make_up_the_box(self, shape: Sequence[int]) -> None:
        for box, other in product(all_boxes(shape), repeat=2):
            part = overlap(box, other)
            if part is not None:
                parts = [part, *subtract(box, part)]
                assert sum(one.numel for one in parts) == box.numel
                assert set().union(*map(cells, parts)) == cells(box)

    @pytest.mark.parametrize("shape", [(7,), (3, 4), (2, 2, 3)])
    def test_a_box_is_split_into_parts_in_the_order_of_its_elements(self, shape: Sequence[int]) -> None:
        for box, numel_max in product(all_boxes(shape), range(1, 14)):
            parts = list(split(box, numel_max))
            assert all(part.numel <= numel_max for part in parts)
            assert [cell for part in parts for cell in sorted(cells(part))] == sorted(cells(box))

    def test_boxes_of_other_dimensions_have_nothing_in_common(self) -> None:
        assert overlap(Box((0,), (2,)), Box((0, 0), (2, 2))) is None

    def test_a_box_is_inside_a_shape_of_as_many_dimensions_only(self) -> None:
        assert Box((1,), (2,)).inside((3,))
        assert Box((), ()).inside(())
        assert not Box((2,), (2,)).inside((3,))
        assert not Box((-1,), (2,)).inside((3,))
        assert not Box((2,), (-1,)).inside((3,))
        assert not Box((0,), (1,)).inside((3, 1))


class TestPlans:
    @given(worlds())
    def test_any_layout_becomes_any_other_with_each_element_sent_once(
        self, world: tuple[list[dict[str, list[Box]]], list[dict[str, Box]]]
    ) -> None:
        offers, needs = world
        transfers = plan_transfers(offers, needs)
        for transfer in transfers:
            held = set().union(*map(cells, offers[transfer.source][transfer.key]))
            assert cells(transfer.box) <= held
        for target, need in enumerate(needs):
            for key, box in need.items():
                got = [t.box for t in transfers if (t.target, t.key) == (target, key)]
                assert sum(part.numel for part in got) == box.numel
                assert {cell for part in got for cell in cells(part)} == cells(box)

    @pytest.mark.parametrize(("row", "column"), [(1, 1), (1, 2), (3, 1), (2, 2)])
    def test_of_a_tensor_in_four_uneven_parts_any_box_is_sent_once(self, row: int, column: int) -> None:
        rows, columns = ((0, row), (row, 4 - row)), ((0, column), (column, 3 - column))
        parts = [Box((top, left), (high, wide)) for top, high in rows for left, wide in columns]
        for held in (parts, parts[::-1]):
            for need in all_boxes((4, 3)):
                transfers = plan_transfers([{"w": [part]} for part in held] + [{}], [{}] * 4 + [{"w": need}])
                assert sum(one.box.numel for one in transfers) == need.numel
                assert set().union(*(cells(one.box) for one in transfers)) == cells(need)
                assert all(cells(one.box) <= cells(held[one.source]) for one in transfers)

    @given(worlds())
    def test_the_order_in_which_a_rank_names_its_tensors_does_not_matter(
        self, world: tuple[list[dict[str, list[Box]]], list[dict[str, Box]]]
    ) -> None:
        offers, needs = world
        again = [dict(reversed(offer.items())) for offer in offers], [dict(reversed(need.items())) for need in needs]
        assert plan_transfers(*again) == plan_transfers(offers, needs)

    @given(worlds())
    def test_a_rank_is_sent_nothing_that_it_has(
        self, world: tuple[list[dict[str, list[Box]]], list[dict[str, Box]]]
    ) -> None:
        offers, needs = world
        for transfer in plan_transfers(offers, needs):
            if transfer.source != transfer.target:
                for box in offers[transfer.target].get(transfer.key, []):
                    assert overlap(box, transfer.box) is None

    def test_the_load_is_spread_over_those_who_hold_a_replicated_tensor(self) -> None:
        whole = Box.whole((8,))
        offers = [{key: [whole] for key in "abcd"}] * 2 + [{}]
        transfers = plan_transfers(offers, [{}, {}, dict.fromkeys("abcd", whole)])
        assert [t.source for t in transfers] == [0, 1, 0, 1]

    def test_a_tensor_without_dimensions_is_sent_and_an_empty_one_is_not(self) -> None:
        scalar, empty = Box((), ()), Box((0, 0), (0, 3))
        offers: list[dict[str, list[Box]]] = [{"scalar": [scalar]}, {}]
        assert plan_transfers(offers, [{}, {"scalar": scalar, "empty": empty}]) == [Transfer(0, 1, "scalar", scalar)]

    def test_a_part_that_nobody_has_is_named_with_the_rank_that_needs_it(self) -> None:
        offers = [{"w": [Box((0, 0), (2, 4))]}, {"w": [Box((3, 0), (1, 4))]}]
        with pytest.raises(TensorsMissing, match=r"no rank holds w\[2:3, 0:4\], which rank 1 needs"):
            plan_transfers(offers, [{}, {"w": Box.whole((4, 4))}])
