"""What is used of torch's internals, and what happens where a version of torch does not have it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import FileStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from elastic.errors import ConfigError
from elastic.train import torch_internals


@pytest.mark.parametrize("is_there", [True, False])
def test_tensors_are_copied_with_and_without_the_call_for_many(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    if not is_there:
        monkeypatch.delattr(torch, "_foreach_copy_")
    sources = [torch.arange(3), torch.ones(2, 2)]
    targets = [torch.empty_like(source) for source in sources]
    torch_internals.copy_all(targets, sources)
    assert all(torch.equal(target, source) for target, source in zip(targets, sources, strict=True))


def test_a_compiled_module_is_looked_into_and_another_one_is_not() -> None:
    module = torch.nn.Linear(2, 2)
    compiled: Any = torch.compile(module, backend="eager")
    assert torch_internals.uncompiled(compiled) is module
    assert torch_internals.uncompiled(module) is module


def test_a_compiled_module_that_hides_its_own_is_an_error_that_says_what_to_give() -> None:
    class OptimizedModule(torch.nn.Module):
        """As a later version of torch may make it."""

    with pytest.raises(ConfigError, match=r"pass the module before compilation"):
        torch_internals.uncompiled(OptimizedModule())


def test_a_shard_on_the_host_lies_in_the_mesh_also_without_the_spec_of_a_tensor(tmp_path: Path) -> None:
    store = FileStore(str(tmp_path / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = init_device_mesh("cpu", (1,))
        whole = torch.arange(6.0).view(3, 2)
        like = distribute_tensor(whole, mesh, [Shard(0)])
        hidden = SimpleNamespace(device_mesh=mesh, placements=like.placements, shape=like.shape, stride=like.stride)
        for model in (like, hidden):
            made: Any = torch_internals.dtensor_on_host(whole * 2, model)
            assert (made.device_mesh, made.placements, made.shape) == (mesh, like.placements, like.shape)
            assert torch.equal(made.to_local(), whole * 2)
    finally:
        torch.distributed.destroy_process_group()
