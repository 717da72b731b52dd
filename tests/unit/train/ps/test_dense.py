"""A model's parameters, cut for the servers and joined again."""

from __future__ import annotations

import pytest
import torch

from elastic.train.ps.dense import DenseParameters
from elastic.train.ps.framing import TensorShape
from elastic.train.ps.parameter_placement import CUT_BYTES


class Net(torch.nn.Module):
    """A large parameter, a small one, one that lies across memory, one of no dimension, an empty and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.arange(CUT_BYTES, dtype=torch.float32).reshape(-1, 8))
        self.small = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.across = torch.nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
        self.single = torch.nn.Parameter(torch.tensor(5.0))
        self.empty = torch.nn.Parameter(torch.zeros(0, 4))
        self.frozen = torch.nn.Parameter(torch.arange(4), requires_grad=False)
        self.tied = self.small


def every(dense: DenseParameters, servers: int) -> list[list[torch.Tensor]]:
    return [dense.values(server, range(len(dense.specs[server]))) for server in range(servers)]


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_what_is_cut_and_joined_is_the_model_again(servers: int) -> None:
    ours, theirs = Net(), Net()
    for value in theirs.parameters():
        value.data.zero_()
    values = every(DenseParameters(ours, servers), servers)
    dense = DenseParameters(theirs, servers)
    for server in range(servers):
        assert tuple(map(TensorShape.of, values[server])) == dense.shapes(server)
    dense.take(values)
    for name, value in ours.state_dict().items():
        assert torch.equal(theirs.state_dict()[name], value), name


def test_every_worker_registers_the_same() -> None:
    assert DenseParameters(Net(), 2).specs == DenseParameters(Net(), 2).specs
    specs = {spec.name: spec for held in DenseParameters(Net(), 2).specs for spec in held}
    assert not specs["frozen"].trained
    assert specs["across"].sizes == (3, 2)
    assert "tied" not in specs, "it is small under another name"


def test_only_parameters_with_a_gradient_are_pushed_and_then_they_have_none() -> None:
    model = Net()
    model.small.grad = torch.full((3,), 2.0, dtype=torch.float64)
    model.across.grad = torch.arange(6.0).reshape(2, 3).t()
    dense = DenseParameters(model, 1)
    indexes, gradients = dense.gradients(0)
    assert [dense.specs[0][index].name for index in indexes] == ["small", "across"]
    assert [gradient.tolist() for gradient in gradients] == [[2, 2, 2], [0, 3, 1, 4, 2, 5]]
    dense.clear()
    assert dense.gradients(0) == ([], [])
