"""What the ranks do in the tests of the memory tier."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import msgspec
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils._python_dispatch import TorchDispatchMode

from elastic.channel.client import channel_client
from elastic.channel.messages import VARIABLE
from elastic.train.comm import byte_collectives
from elastic.train.memory.step_agreement import AgreedStep, RankStates
from elastic.train.memory.tier import MemoryTier
from elastic.train.statedict.sharded import Template


def tier(rank: int, world: int, path: str, g: int, local_world: int = 1, copies: int = 1) -> MemoryTier:
    """The tier of one rank in generation `g`, on the node that listens at `path`."""
    os.environ |= {
        VARIABLE: path,
        "RANK": str(rank),
        "LOCAL_RANK": str(rank % local_world),
        "ELASTIC_GENERATION": str(g),
    }
    return MemoryTier(
        channel_client(os.environ),
        rank=rank,
        local_rank=rank % local_world,
        world_size=world,
        local_world_size=local_world,
        mark=f"a/{g}",
        group=torch.distributed.group.WORLD if world > 1 else None,
        copies=copies,
    )


def trees(step: int) -> dict[str, Any]:
    """Replicated parts whose numbers tell the step."""
    weights = {"w": torch.full((5, 3), float(step)), "half": torch.full((7,), step, dtype=torch.bfloat16)}
    return {
        "model": weights,
        "values": {"step": step, "best": None, "list": [1.5, ("x", True)], "count": torch.tensor(step)},
    }


def is_step(found: dict[str, Any], step: int) -> bool:
    expected = trees(step)
    tensors = [(found["model"][key], expected["model"][key]) for key in ("w", "half")]
    tensors.append((found["values"].pop("count"), expected["values"].pop("count")))
    return all(a.dtype == b.dtype and torch.equal(a, b) for a, b in tensors) and found["values"] == expected["values"]


def commits(rank: int, world: int, *, steps: list[int], differing: bool = False, **given: Any) -> bool:
    """Commit some steps of replicated and own parts; `differing`: with a text and a tensor that are longer by rank."""
    mine = tier(rank, world, **given)
    further = {"differing": {"text": "x" * 100 * rank, "tensor": torch.ones(rank + 1)}} if differing else {}
    for step in steps:
        mine.commit(step, trees(step) | further, {"rng": {"rank": rank, "state": torch.full((3,), rank + step)}}, {})
    return mine.on


def agree(mine: MemoryTier, *, sharded: bool = False) -> tuple[AgreedStep | None, list[RankStates]]:
    """The step that all ranks go on from, and what each has; the group is the one of all ranks."""
    said = byte_collectives.gather(msgspec.json.encode(mine.readable_states(sharded=sharded)))
    holdings = [msgspec.json.decode(one, type=RankStates) for one in said]
    return mine.choose(holdings), holdings


def restores(rank: int, world: int, **given: Any) -> Any:
    """The step that is agreed, whether the parts are those of it, and this rank's own part."""
    mine = tier(rank, world, **given)
    agreed, holdings = agree(mine)
    if not isinstance(agreed, AgreedStep):
        return None
    replicated, own, _ = mine.fetch(agreed, holdings, {})
    return [agreed.step, is_step(replicated, agreed.step), own["rng"]["state"].tolist() if own is not None else None]


class Killed(TorchDispatchMode):  # type: ignore[no-untyped-call]  # Torch has no types for it.
    """Ends this process with SIGKILL once half of the tensors are copied."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_foreach_copy_" in str(func):
            targets, sources, *settings = args
            half = len(targets) // 2
            func(targets[:half], sources[:half], *settings, **(kwargs or {}))
            os.kill(os.getpid(), signal.SIGKILL)
        return func(*args, **(kwargs or {}))


def is_killed(rank: int, world: int, *, steps: list[int], **given: Any) -> None:
    """Commit some steps, then end in the middle of the commit of the next."""
    mine = tier(rank, world, **given)
    for step in steps:
        mine.commit(step, trees(step), {}, {})
    with Killed():  # type: ignore[no-untyped-call]
        mine.commit(steps[-1] + 1, trees(steps[-1] + 1), {}, {})
    sys.exit("it was not killed")


def model(world: int, *, trained: bool) -> dict[str, dict[str, Any]]:
    """The sharded parts of a small FSDP2 model and its Adam, after two steps or untouched with other numbers."""
    torch.manual_seed(0 if trained else 1)
    network = nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3), nn.LayerNorm(3))
    mesh = init_device_mesh("cpu", (world,))
    for layer in (network[0], network[2], network):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01 if trained else 0.5)
    for step in range(2 if trained else 0):
        x = torch.randn(4, 7, generator=torch.Generator().manual_seed(step))
        network(x).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    return {
        "model": dict(get_model_state_dict(network)),
        "optimizer": dict(get_optimizer_state_dict(network, optimizer, options=options)),
    }


def templates(parts: dict[str, dict[str, Any]]) -> dict[str, Template]:
    """These, whatever was saved."""

    def made(part: dict[str, Any]) -> Template:
        return lambda saved: part

    return {name: made(part) for name, part in parts.items()}


def full(parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Whole tensors and values by name, bit by bit as text."""
    found = {}
    for name, part in parts.items():
        for key, item in part.items():
            whole = item.full_tensor() if hasattr(item, "full_tensor") else item
            if isinstance(whole, torch.Tensor):
                whole = [str(whole.dtype), list(whole.shape), whole.contiguous().reshape(-1).view(torch.uint8).tolist()]
            found[f"{name}/{key}"] = whole
    return found


def commits_shards(rank: int, world: int, *, steps: list[int], **given: Any) -> Any:
    """Commit a sharded state; what it is as whole tensors."""
    mine, parts = tier(rank, world, **given), model(world, trained=True)
    for step in steps:
        mine.commit(step, {"values": {"step": step}}, {}, parts)
    return full(parts)


def restores_shards(rank: int, world: int, **given: Any) -> Any:
    """The step that is agreed and the state that was fetched, as whole tensors."""
    mine = tier(rank, world, **given)
    agreed, holdings = agree(mine, sharded=True)
    if agreed is None:
        return None
    replicated, _, sharded = mine.fetch(agreed, holdings, templates(model(world, trained=False)))
    return [replicated["values"]["step"], full(sharded)]
