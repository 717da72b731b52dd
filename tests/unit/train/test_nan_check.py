"""Where nan and inf come from."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from elastic.errors import ConfigError, NotFinite
from elastic.train import nan_check

NAN = torch.tensor([1.0, math.nan])
GOOD = torch.ones(3)


@pytest.mark.parametrize(
    ("environ", "on"),
    [
        ({}, False),
        ({"ELASTIC_CHECK_NAN": "1"}, True),
        ({"FLAGS_check_nan_inf": "1"}, True),
        ({"FLAGS_check_nan_inf": "True"}, True),
        ({"FLAGS_check_nan_inf": "0"}, False),
        ({"ELASTIC_CHECK_NAN": "no", "FLAGS_check_nan_inf": "1"}, False),
        ({"ELASTIC_CHECK_NAN": "", "FLAGS_check_nan_inf": "1"}, True),
    ],
)
def test_either_variable_switches_the_checks_on(environ: dict[str, str], on: bool) -> None:
    assert nan_check.enabled(environ) is on


def test_a_word_that_is_neither_yes_nor_no_is_an_error() -> None:
    with pytest.raises(ConfigError, match="FLAGS_check_nan_inf is 'maybe'; write 1"):
        nan_check.enabled({"FLAGS_check_nan_inf": "maybe"})


class TestTheFirstBadTensor:
    @pytest.mark.parametrize(
        "bad",
        [
            NAN,
            torch.tensor([3.0, math.inf]),
            torch.tensor(-math.inf),
            NAN.half(),
            NAN.bfloat16(),
            NAN.double(),
            NAN.to(torch.float8_e5m2),
            torch.complex(GOOD, torch.tensor([1.0, 1.0, math.nan])),
            torch.eye(2).to_sparse() * math.nan,
            nn.Parameter(NAN),
        ],
    )
    def test_is_named_whatever_its_type(self, bad: Tensor) -> None:
        assert nan_check.first_bad([("a", GOOD), ("b", bad), ("c", bad), ("d", NAN.double())]) == "b"

    @pytest.mark.parametrize(
        "good",
        [
            torch.full((4,), 60000.0, dtype=torch.float16),  # Its sum and its square are not finite.
            torch.full((4,), 3e38),
            torch.tensor([1, 2]),
            torch.tensor([True]),
            torch.empty(0),
            torch.empty(3, device="meta"),
            torch.zeros(3, dtype=torch.complex64),
            torch.zeros(2, 2).fill_(-math.inf).triu(1),
        ],
    )
    def test_is_none_where_all_are_finite(self, good: Tensor) -> None:
        assert nan_check.first_bad([("good", good), ("also", GOOD)]) is None

    def test_is_none_of_none(self) -> None:
        assert nan_check.first_bad([]) is None


class TestACommit:
    def test_names_the_tensor_the_step_the_rank_and_what_is_kept(self) -> None:
        model = {"layer1.weight": GOOD, "layer2.weight": NAN}
        with pytest.raises(NotFinite) as raised:
            nan_check.check_commit({"model": model}, 0.5, step=512, rank=1, kept_step=500)
        assert str(raised.value) == (
            "component model: layer2.weight has NaN at step 512 on rank 1; "
            "the newest checkpoint is step 500; --restore-step rolls back further"
        )

    def test_looks_into_an_optimizer(self) -> None:
        tree = {"state": {0: {"exp_avg": torch.tensor([2.0, math.inf])}}, "param_groups": [{"lr": 0.1}]}
        with pytest.raises(NotFinite, match=r"component optimizer: state.0.exp_avg has Inf .* no checkpoint has"):
            nan_check.check_commit({"optimizer": tree}, step=1)

    @pytest.mark.parametrize("loss", [math.nan, torch.tensor(math.nan), torch.tensor(math.nan, requires_grad=True)])
    def test_refuses_a_loss_that_is_nan(self, loss: Any) -> None:
        with pytest.raises(NotFinite, match="the loss is NaN at step 3 on rank 0"):
            nan_check.check_commit({}, loss, step=3)

    def test_lets_plain_numbers_be_what_they_are(self) -> None:
        nan_check.check_commit({"values": {"best": math.inf}, "model": {"weight": GOOD}}, torch.tensor(1.0))


class Divides(nn.Module):
    """Gives nan where its input is zero."""

    def forward(self, x: Tensor) -> Tensor:
        return x / x


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.inner = nn.Sequential(nn.Identity(), Divides())
        self.last = nn.Linear(2, 2)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        out: Tensor = self.last(self.inner(self.first(x) * scale))
        return out


SAID = (
    "module inner.1 (Divides) returned NaN at step 7 on rank 3 while its inputs were finite"
)  # fmt: skip


def said_by(module: nn.Module, *args: Any, **kwargs: Any) -> str:
    nan_check.watch(module, lambda: 7, 3)
    with pytest.raises(NotFinite) as raised:
        module(*args, **kwargs)
    return str(raised.value)


class TestAWatchedModule:
    def test_names_the_first_module_whose_output_is_bad_and_its_inputs_are_not(self) -> None:
        assert said_by(Net(), torch.ones(1, 2), scale=0.0) == SAID

    def test_says_nothing_while_all_is_finite(self) -> None:
        net = Net()
        nan_check.watch(net, lambda: 7, 3)
        assert net(torch.ones(1, 2)).isfinite().all()

    def test_says_that_a_parameter_was_bad_before(self) -> None:
        net = Net()
        net.last.weight.data[0, 0] = math.nan
        said = said_by(net, torch.ones(1, 2))
        assert said.startswith("module last (Linear) returned NaN at step 7")
        assert said.endswith("; its weight already had NaN")

    def test_says_that_the_data_is_bad(self) -> None:
        assert said_by(Net(), NAN.reshape(1, 2)) == "the input of the whole model (Net) has NaN at step 7 on rank 3"

    @pytest.mark.parametrize("kind", ["tuple", "dict", "dataclass"])
    def test_looks_into_nested_outputs(self, kind: str) -> None:
        assert said_by(Nested(kind), GOOD).startswith("the whole model (Nested) returned NaN")

    def test_under_autocast(self) -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert said_by(Net(), torch.ones(1, 2), scale=0.0) == SAID

    @pytest.mark.parametrize("reentrant", [True, False])
    def test_with_activation_checkpointing(self, reentrant: bool) -> None:
        net = Net()
        nan_check.watch(net, lambda: 7, 3)
        x = torch.ones(1, 2, requires_grad=True)
        checkpoint(net, x, use_reentrant=reentrant).sum().backward()
        assert x.grad is not None
        with pytest.raises(NotFinite, match=r"inner.1"):
            checkpoint(net, x, 0.0, use_reentrant=reentrant)

    def test_that_was_compiled_is_named_as_a_whole(self) -> None:
        torch.compiler.reset()
        compiled: Any = torch.compile(Net(), backend="eager")
        assert "returned NaN at step 7" in said_by(compiled, torch.ones(1, 2), scale=0.0)

    def test_that_is_compiled_in_one_piece_still_compiles(self) -> None:
        torch.compiler.reset()
        net = Net()
        nan_check.watch(net, lambda: 7, 3)
        assert torch.compile(net, backend="eager", fullgraph=True)(torch.ones(1, 2)).isfinite().all()

    def test_names_modules_as_the_script_does(self) -> None:
        wrapped = nn.Module()
        wrapped.module = Net()  # As DDP has it.
        nan_check.watch(wrapped, lambda: 7, 3)
        with pytest.raises(NotFinite, match=r"^module inner.1 \(Divides\)"):
            wrapped.module(torch.ones(1, 2), scale=0.0)


@dataclasses.dataclass
class Out:
    loss: Tensor
    more: list[Tensor]


class Nested(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: Tensor) -> Any:
        bad = x * math.nan
        if self.kind == "tuple":
            return x, ([x], (x, bad))
        return {"x": x, "deep": {"bad": bad}} if self.kind == "dict" else Out(x, [x, bad])
