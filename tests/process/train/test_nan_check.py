"""--check-nan in wrapped and sharded models: hooks and shards."""

from __future__ import annotations

import os

import pytest
import torch
from torch import Tensor, nn

from elastic.errors import NotFinite
from elastic.testing import run
from elastic.train import nan_check


class Divides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / x


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Identity(), Divides()), nn.Linear(4, 1))


def said_by(module: nn.Module) -> str:
    """One good step, and then one with nan."""
    import torch.distributed as dist

    nan_check.watch(module, lambda: 7, dist.get_rank())
    assert module(torch.ones(2, 4)).isfinite().all()
    for one in module.modules():
        if isinstance(one, nn.Identity):
            one.register_forward_hook(lambda *_: torch.zeros(2, 4))
    with pytest.raises(NotFinite) as raised:
        module(torch.ones(2, 4))
    return str(raised.value)


def distributed() -> str:
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    dist.init_process_group("gloo")
    said = said_by(DistributedDataParallel(net()))
    dist.destroy_process_group()
    return said


def sharded() -> list[str | None]:
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = net()
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    said = said_by(model)
    weight = dict(model.named_parameters())["0.weight"]
    if os.environ["RANK"] == "1":
        weight.data.to_local().fill_(float("nan"))  # type: ignore[attr-defined]
    found = nan_check.first_bad(model.named_parameters())
    dist.destroy_process_group()
    return [said, found]


SAID = "module 1.1 (Divides) returned NaN at step 7 on rank {} while its inputs were finite"


def test_the_first_bad_module_in_ddp_is_named_as_in_the_model() -> None:
    assert run(distributed, worlds=[2]).values == [SAID.format(rank) for rank in range(2)]


def test_the_first_bad_module_and_shard_of_a_sharded_model_are_named() -> None:
    assert run(sharded, worlds=[2]).values == [[SAID.format(0), None], [SAID.format(1), "0.weight"]]
