"""Copies of trees of tensors in host buffers that are used again."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import pytest
import torch

from elastic.errors import CheckpointError
from elastic.train.statedict.host_copy import HostCopy, require_replicated


def test_a_copy_has_the_values_of_the_moment_and_keeps_them() -> None:
    weight, steps = torch.arange(6.0).reshape(2, 3), [1, 2]
    copied = HostCopy().take({"w": weight, "steps": steps, "none": None, "text": "x"})
    weight.zero_()
    steps.append(3)
    assert torch.equal(copied["w"], torch.arange(6.0).reshape(2, 3))
    assert (copied["steps"], copied["none"], copied["text"]) == ([1, 2], None, "x")


def test_only_the_first_copy_allocates() -> None:
    copies, weight = HostCopy(), torch.zeros(100)
    first = copies.take([weight])[0].data_ptr()
    weight.fill_(1)
    again = copies.take([weight])[0]
    assert again.data_ptr() == first
    assert torch.equal(again, torch.ones(100))


def test_buffers_follow_a_state_that_changes_its_shape() -> None:
    copies = HostCopy()
    for state in ([torch.ones(3)], [torch.ones(5), torch.zeros(2)], [torch.full((2,), 7.0)]):
        assert all(torch.equal(one, other) for one, other in zip(copies.take(state), state, strict=True))


def test_what_shares_memory_is_copied_once_and_shares_it_in_the_copy() -> None:
    base = torch.arange(12.0)
    state = {"all": base.reshape(3, 4), "tied": base.reshape(3, 4), "column": base.reshape(3, 4)[:, 1]}
    copied = HostCopy().take(state)
    assert all(torch.equal(copied[key], state[key]) for key in state)
    copied["all"][0, 1] = 100.0
    assert copied["tied"][0, 1] == 100.0
    assert copied["column"][0] == 100.0
    assert base[1] == 1.0


def test_a_tensor_that_is_in_its_memory_twice_comes_back() -> None:
    tensor = torch.arange(8.0).as_strided((2, 2), (3, 0))
    assert torch.equal(HostCopy().take(tensor), tensor)


def test_the_versions_that_a_module_writes_into_its_state_are_kept() -> None:
    state = torch.nn.BatchNorm1d(2).state_dict()
    assert HostCopy().take(state)._metadata == state._metadata  # type: ignore[attr-defined]


def test_a_copy_follows_tensors_that_moved() -> None:
    copies, first = HostCopy(), torch.ones(4)
    assert torch.equal(copies.take([first])[0], first)
    other = torch.full((4,), 2.0)
    assert torch.equal(copies.take([other])[0], other)


def test_a_small_view_of_large_memory_is_copied_without_the_rest() -> None:
    copied = HostCopy().take(torch.zeros(1 << 20)[1000:1010])
    assert copied.untyped_storage().nbytes() < 100


@pytest.mark.parametrize(
    "tensor",
    [
        torch.empty(0, 3),
        torch.tensor(2.5),
        torch.arange(24).reshape(2, 3, 4).permute(2, 0, 1),
        torch.ones(3).expand(4, 3),
        torch.tensor([True, False]),
        torch.arange(5, dtype=torch.bfloat16)[1:],
        torch.tensor([1 + 2j]).conj(),
        torch.arange(3, dtype=torch.uint8)[1:],
    ],
)
def test_a_tensor_of_any_form_comes_back_equal(tensor: torch.Tensor) -> None:
    copied = HostCopy().take(tensor)
    assert torch.equal(copied, tensor)
    assert copied.dtype == tensor.dtype


def test_tensors_of_several_types_in_one_memory_come_back() -> None:
    memory = torch.arange(64, dtype=torch.uint8)
    state = [memory[4:8].view(torch.float32), memory[32:48].view(torch.float64), memory[1:3]]
    assert all(torch.equal(one, other) for one, other in zip(HostCopy().take(state), state, strict=True))


def test_a_sparse_tensor_comes_back() -> None:
    tensor = torch.eye(3).to_sparse()
    assert torch.equal(HostCopy().take({"s": tensor})["s"].to_dense(), torch.eye(3))


def test_parameters_come_back_as_plain_tensors_and_containers_as_what_they_are() -> None:
    tree: Any = OrderedDict(w=torch.nn.Parameter(torch.ones(2)), milestones=Counter([3, 3]), pair=(1, torch.ones(1)))
    copied = HostCopy().take(tree)
    assert type(copied) is OrderedDict
    assert type(copied["w"]) is torch.Tensor
    assert not copied["w"].requires_grad
    assert copied["milestones"] == Counter([3, 3])
    assert type(copied["milestones"]) is Counter


def test_a_sharded_tensor_in_a_replicated_part_is_refused() -> None:
    from torch.distributed import HashStore  # type: ignore[attr-defined]
    from torch.distributed import destroy_process_group as end
    from torch.distributed import init_process_group as begin
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    begin("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        piece = distribute_tensor(torch.ones(4), init_device_mesh("cpu", (1,)), [Shard(0)])
        with pytest.raises(
            CheckpointError, match=r"component 'model' contains sharded tensors .* save it as a sharded component"
        ):
            require_replicated("model", {"w": [piece]})
    finally:
        end()
