"""What one server holds, and how gradients change it."""

from __future__ import annotations

import pytest
import torch

from elastic.errors import MessageError, ModelMismatch
from elastic.train.ps.framing import TensorShape
from elastic.train.ps.parameters import ParameterStore, PushedGradients, average, check_tensors
from elastic.train.ps.protocol import SGD, PieceSpec, PushRequest, RegisterRequest, TableSpec, UpdateMode

PIECE = PieceSpec("w", (4,), "float64", 0, 4, True)
FROZEN = PieceSpec("frozen", (2,), "float32", 0, 2, False)
TABLE = TableSpec("rows", 10, 2, "float64", 0, 1.0)


def register(
    *pieces: PieceSpec,
    tables: tuple[TableSpec, ...] = (),
    mode: UpdateMode = UpdateMode.ASYNC,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
) -> RegisterRequest:
    sgd = SGD(momentum=momentum, weight_decay=weight_decay)
    return RegisterRequest(session="0-a", mode=mode, sgd=sgd, pieces=pieces, tables=tables)


def push(
    shapes: tuple[TensorShape, ...], pieces: tuple[int, ...] = (0,), tables: tuple[int, ...] = (), lr: float = 0.1
) -> PushRequest:
    return PushRequest(
        session="0-a", number=1, step=0, lr=lr, weight=1.0, pieces=pieces, tables=tables, pull=False, shapes=shapes
    )


def doubles(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def filled(*asked: PieceSpec, momentum: float = 0.0, weight_decay: float = 0.0) -> ParameterStore:
    holdings = ParameterStore(0, 1)
    holdings.register(register(*asked, momentum=momentum, weight_decay=weight_decay))
    holdings.fill(range(len(asked)), [torch.arange(4, dtype=torch.float64)[: spec.stop - spec.start] for spec in asked])
    return holdings


class TestValues:
    def test_the_first_that_are_given_stay(self) -> None:
        holdings = ParameterStore(0, 1)
        holdings.register(register(PIECE, FROZEN))
        assert holdings.missing() == (0, 1)
        holdings.fill((0,), [doubles(1, 2, 3, 4)])
        holdings.fill((0, 1), [doubles(9, 9, 9, 9), torch.ones(2)])
        assert holdings.missing() == ()
        assert [value.tolist() for value in holdings.values()] == [[1, 2, 3, 4], [1, 1]]

    def test_what_is_handed_out_is_a_copy(self) -> None:
        holdings = filled(PIECE)
        holdings.values()[0].zero_()
        assert holdings.values()[0].tolist() == [0, 1, 2, 3]

    def test_a_file_counts_before_the_workers(self) -> None:
        holdings = ParameterStore(0, 2, {"w": torch.arange(8.0).reshape(2, 4)})
        holdings.register(
            register(PieceSpec("w", (2, 4), "float64", 4, 8, True), PieceSpec("v", (4,), "float64", 0, 4, True))
        )
        assert holdings.missing() == (1,)
        holdings.fill((1,), [doubles(0, 0, 0, 0)])
        assert holdings.values()[0].tolist() == [4, 5, 6, 7]

    def test_a_file_with_another_shape_is_refused(self) -> None:
        with pytest.raises(ModelMismatch, match=r"w is \[3\] in the file, but \[4\] in the model"):
            ParameterStore(0, 1, {"w": torch.zeros(3)}).register(register(PIECE))
        with pytest.raises(ModelMismatch, match="rows is"):
            ParameterStore(0, 1, {"rows": torch.zeros(3)}).register(register(tables=(TABLE,)))

    @pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
    def test_sixteen_bit_parameters_do_not_lose_small_changes(self, dtype: str) -> None:
        half = PieceSpec("w", (4,), dtype, 0, 4, True)
        holdings = ParameterStore(0, 1)
        holdings.register(register(half))
        one = torch.ones(4, dtype=holdings_dtype(dtype))
        holdings.fill((0,), [one])
        for _ in range(100):
            holdings.apply(PushedGradients(1.0, 1e-4, {0: one}))
        assert holdings.values()[0].dtype == one.dtype
        assert holdings.values()[0].float().tolist() == pytest.approx([0.99] * 4, abs=4e-3)


def holdings_dtype(name: str) -> torch.dtype:
    return {"float16": torch.float16, "bfloat16": torch.bfloat16}[name]


class TestRegistration:
    def test_the_same_model_again_is_welcome(self) -> None:
        holdings = filled(PIECE)
        holdings.register(register(PIECE))

    @pytest.mark.parametrize(
        ("other", "said"),
        [
            (register(PieceSpec("w", (5,), "float64", 0, 5, True)), r"the servers have w of shape \[4\]"),
            (register(PieceSpec("w", (4,), "float32", 0, 4, True)), "float32"),
            (register(PIECE, FROZEN), "have 1 pieces and tables here, but this worker 2"),
            (register(PIECE, tables=(TABLE,)), "this worker 2"),
            (register(PIECE, mode=UpdateMode.SYNC), "the servers train async with .*, but this worker sync"),
            (register(PIECE, momentum=0.9), "momentum=0.9"),
        ],
    )
    def test_another_model_or_another_training_is_refused_and_the_difference_named(
        self, other: RegisterRequest, said: str
    ) -> None:
        holdings = filled(PIECE)
        with pytest.raises(ModelMismatch, match=said):
            holdings.register(other)
        assert holdings.values()[0].tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize(
        "wrong",
        [
            register(PieceSpec("w", (4,), "float64", 0, 5, True)),
            register(PieceSpec("w", (4,), "float64", 3, 2, True)),
            register(PieceSpec("w", (4,), "int64", 0, 4, True)),
            register(PIECE, PIECE),
        ],
    )
    def test_what_no_model_has_is_refused(self, wrong: RegisterRequest) -> None:
        holdings = ParameterStore(0, 1)
        with pytest.raises(MessageError):
            holdings.register(wrong)
        assert holdings.mode is None


class TestSgd:
    @pytest.mark.parametrize(("momentum", "weight_decay"), [(0.0, 0.0), (0.9, 0.0), (0.0, 0.1), (0.9, 0.1)])
    def test_values_follow_gradients_as_torch_does_it(self, momentum: float, weight_decay: float) -> None:
        holdings = filled(PIECE, momentum=momentum, weight_decay=weight_decay)
        theirs = torch.arange(4, dtype=torch.float64, requires_grad=True)
        optimizer = torch.optim.SGD([theirs], lr=0.1, momentum=momentum, weight_decay=weight_decay)
        for step in range(5):
            gradient = torch.sin(torch.arange(4, dtype=torch.float64) + step)
            theirs.grad = gradient.clone()
            optimizer.step()
            holdings.apply(PushedGradients(1.0, 0.1, {0: gradient}))
        assert torch.equal(holdings.values()[0], theirs.detach())

    def test_the_average_weighs_and_a_worker_without_a_gradient_counts_as_zero(self) -> None:
        one = PushedGradients(1.0, 0.1, {0: doubles(4, 8)})
        other = PushedGradients(3.0, 0.5, {0: doubles(8, 0), 1: doubles(4)})
        mean = average([one, other])
        assert mean.lr == 0.1
        assert mean.pieces[0].tolist() == [7, 2]
        assert mean.pieces[1].tolist() == [3]

    def test_the_average_of_rows_adds_up_those_of_one_id(self) -> None:
        one = PushedGradients(1.0, 1.0, {}, {0: (torch.tensor([1, 2]), torch.ones(2, 2))})
        other = PushedGradients(1.0, 1.0, {}, {0: (torch.tensor([2]), torch.ones(1, 2))})
        holdings = ParameterStore(0, 1)
        holdings.register(register(tables=(TableSpec("rows", 10, 2, "float32", 0, 0.0),)))
        holdings.apply(average([one, other]))
        assert holdings.tables[0].rows(torch.tensor([0, 1, 2]))[:, 0].tolist() == [0, -0.5, -1]


class TestPushes:
    def test_that_do_not_fit_are_refused_by_their_header(self) -> None:
        holdings = filled(PIECE, FROZEN)
        good = TensorShape("float64", (4,))
        holdings.check_push(push((good,)))
        for wrong in (
            push((TensorShape("float64", (5,)),)),
            push((TensorShape("float32", (4,)),)),
            push((TensorShape("float64", (2, 2)),)),
            push((good, good)),
            push((good, good), pieces=(0, 0)),
            push((), pieces=(0,)),
            push((good,), pieces=(7,)),
            push((TensorShape("float32", (2,)),), pieces=(1,)),
            push((good,), tables=(0,)),
        ):
            with pytest.raises(MessageError):
                holdings.check_push(wrong)

    def test_of_rows_that_do_not_fit_are_refused(self) -> None:
        holdings = ParameterStore(1, 2)
        holdings.register(register(tables=(TABLE,)))
        ids, rows = TensorShape("int64", (2,)), TensorShape("float64", (2, 2))
        holdings.check_push(push((ids, rows), pieces=(), tables=(0,)))
        for wrong in (
            push((ids, rows), pieces=(), tables=(1,)),
            push((ids, rows, ids, rows), pieces=(), tables=(0, 0)),
            push((ids,), pieces=(), tables=(0,)),
            push((TensorShape("int32", (2,)), rows), pieces=(), tables=(0,)),
            push((ids, TensorShape("float64", (3, 2))), pieces=(), tables=(0,)),
            push((ids, TensorShape("float64", (2, 3))), pieces=(), tables=(0,)),
            push((ids, TensorShape("float32", (2, 2))), pieces=(), tables=(0,)),
        ):
            with pytest.raises(MessageError):
                holdings.check_push(wrong)
        fits = push((ids, rows), pieces=(), tables=(0,))
        for wrong_ids in ([1, 11], [-1, 1], [1, 2]):
            with pytest.raises(MessageError, match="id"):
                holdings.gradients(fits, [torch.tensor(wrong_ids), torch.ones(2, 2, dtype=torch.float64)])

    def test_first_values_that_do_not_fit_are_refused(self) -> None:
        good = TensorShape("float64", (4,))
        check_tensors((PIECE,), (0,), (good,))
        for indexes, shapes in (((0,), (TensorShape("float64", (3,)),)), ((1,), (good,)), ((0, 0), (good, good))):
            with pytest.raises(MessageError):
                check_tensors((PIECE,), indexes, shapes)


def test_a_snapshot_of_it_all_goes_on_to_the_same_bits() -> None:
    def trained(holdings: ParameterStore, steps: range) -> ParameterStore:
        for step in steps:
            ids = torch.tensor([step, 3, step])
            rows = torch.full((3, 2), 0.5, dtype=torch.float64)
            holdings.apply(PushedGradients(1.0, 0.1, {0: torch.full((4,), float(step)).double()}, {0: (ids, rows)}))
        return holdings

    first = ParameterStore(0, 1)
    asked = register(PIECE, tables=(TABLE,), momentum=0.9)
    first.register(asked)
    first.fill((0,), [doubles(0, 1, 2, 3)])
    trained(first, range(3))
    second = ParameterStore(0, 1)
    second.load(first.state())
    assert second.mode is None
    second.register(asked)
    trained(first, range(3, 8))
    trained(second, range(3, 8))
    assert torch.equal(first.values()[0], second.values()[0])
    every = torch.arange(10)
    assert torch.equal(first.tables[0].rows(every), second.tables[0].rows(every))


def test_a_server_that_came_back_takes_another_mode_but_not_another_model() -> None:
    first = filled(PIECE)
    second = ParameterStore(0, 1)
    second.load(first.state())
    with pytest.raises(ModelMismatch):
        second.register(register(FROZEN))
    second.register(register(PIECE, mode=UpdateMode.SYNC))
    assert second.mode is UpdateMode.SYNC
