"""Rows of a sparse table on one server."""

from __future__ import annotations

import torch

from elastic.train.ps.protocol import SGD, TableSpec
from elastic.train.ps.sparse_table import SparseTable, first_rows

SPEC = TableSpec("rows", 1_000_000, 8, "float64", 7, 0.5)


def numbers(*ids: int) -> torch.Tensor:
    return torch.tensor(ids, dtype=torch.int64)


def table(spec: TableSpec = SPEC, base: torch.Tensor | None = None) -> SparseTable:
    return SparseTable(spec, 0, 1, base)


class TestFirstRows:
    def test_follow_from_seed_and_id_alone(self) -> None:
        one, other = table().rows(numbers(5, 999_999)), SparseTable(SPEC, 1, 2).rows(numbers(999_999, 5))
        assert torch.equal(one, other.flip(0))

    def test_are_the_same_on_every_machine_and_in_every_version(self) -> None:
        known = [[-0.81836, -1.681673], [-0.843986, -0.873791]]
        rows = first_rows(TableSpec("rows", 10, 2, "float64", 7, 1.0), numbers(0, 1))
        assert rows.shape == (2, 2)
        assert [[round(value, 6) for value in row] for row in rows.tolist()] == known

    def test_differ_by_id_column_and_seed(self) -> None:
        rows = first_rows(SPEC, torch.arange(1000))
        assert len(torch.unique(rows)) == 8000
        other = first_rows(TableSpec("rows", 1_000_000, 8, "float64", 8, 0.5), torch.arange(1000))
        assert not torch.isin(other, rows).any()

    def test_are_normal_with_the_deviation_asked_for(self) -> None:
        rows = first_rows(SPEC, torch.arange(20_000))
        assert abs(float(rows.mean())) < 0.01
        assert abs(float(rows.std()) - 0.5) < 0.005
        inside = float((rows.abs() < 0.5).double().mean())
        assert abs(inside - 0.6827) < 0.01
        assert torch.isfinite(first_rows(SPEC, torch.arange(-(2**63), -(2**63) + 9))).all()

    def test_take_any_seed(self) -> None:
        for seed in (-(2**63), -1, 0, 2**63 - 1):
            spec = TableSpec("rows", 10, 2, "float32", seed, 1.0)
            assert torch.isfinite(first_rows(spec, numbers(0, 9))).all()

    def test_are_those_of_the_file_if_there_is_one(self) -> None:
        base = torch.arange(20.0).reshape(10, 2)
        made = table(TableSpec("rows", 10, 2, "float32", 0, 1.0), base)
        made.apply(numbers(3), torch.ones(1, 2), 1.0, SGD())
        assert made.rows(numbers(2, 3)).tolist() == [[4, 5], [5, 6]]


class TestApply:
    def test_changes_the_rows_with_a_gradient_and_no_other(self) -> None:
        made = table()
        before = made.rows(numbers(1, 2))
        made.apply(numbers(1), torch.ones(1, 8), 0.1, SGD())
        after = made.rows(numbers(1, 2))
        assert torch.allclose(after[0], before[0] - 0.1, atol=1e-15)
        assert torch.equal(after[1], before[1])

    def test_adds_up_the_gradients_of_one_id(self) -> None:
        made = table()
        before = made.rows(numbers(1))
        made.apply(numbers(1, 1, 1), torch.ones(3, 8), 0.1, SGD())
        assert torch.allclose(made.rows(numbers(1)), before - 0.3, atol=1e-15)

    def test_reading_costs_no_memory(self) -> None:
        made = table()
        made.rows(torch.arange(1000))
        assert len(made.state()["ids"]) == 0
        made.apply(torch.arange(5000), torch.ones(5000, 8), 0.1, SGD())
        assert len(made.state()["ids"]) == 5000

    def test_momentum_of_a_row_moves_only_with_its_gradients(self) -> None:
        made = table()
        before = made.rows(numbers(1, 2))
        sgd = SGD(momentum=0.5)
        made.apply(numbers(1, 2), torch.ones(2, 8), 1.0, sgd)
        made.apply(numbers(2), torch.ones(1, 8), 1.0, sgd)
        made.apply(numbers(1), torch.ones(1, 8), 1.0, sgd)
        change = made.rows(numbers(1, 2)) - before
        assert torch.allclose(change, torch.full((2, 8), -2.5, dtype=torch.float64), atol=1e-12)

    def test_nothing_is_no_change(self) -> None:
        made = table()
        made.apply(numbers(), torch.ones(0, 8), 1.0, SGD())
        assert len(made.state()["ids"]) == 0
        assert made.rows(numbers()).shape == (0, 8)
