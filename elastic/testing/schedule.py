"""The schedule of a run: its worlds, how each one ends, and which nodes are in it (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

At = int | str
"""A step, or the word that replicas pass to `elastic.testing.reached`."""
How = Literal["planned", "loss", "failure"]


@dataclass(frozen=True, slots=True)
class End:
    """The world runs until every replica has returned."""


@dataclass(frozen=True, slots=True)
class Planned:
    """The replicas are asked to stop, as on a drain or for joining nodes; they save and leave with 143.

    A replica that does not listen on the local channel gets SIGTERM instead.

    Attributes:
        at: The step, or the word passed to `reached`, at which they are asked.
        leave: The nodes that are not in the next world, by their place in this one, from 0. If the next world is
            smaller still, further ones leave from the end.
        may_fail: Whether a replica may also fail on its own before it has left. The others are then stopped as after a
            failure.
    """

    at: At
    leave: tuple[int, ...] = ()
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class Loss:
    """Nodes are lost: their replicas are killed, and their memory is gone. The others get SIGTERM, then SIGKILL.

    Attributes:
        at: The step, or the word passed to `reached`. None: when the first replica of the world fails on its own, for
            instance because the function kills its process.
        nodes: The lost nodes, by their place in this world, from 0. Without any: the last ones, as many as the next
            world has fewer, at least one.
    """

    at: At | None = None
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One replica fails and its node stays. The other replicas are stopped.

    Attributes:
        at: The step, or the word passed to `reached`. None: the function lets a replica fail, and the first one that
            does ends the world.
        rank: The replica that fails.
        by: "raise": it raises `Injected`. "kill": it gets SIGKILL.
    """

    at: At | None = None
    rank: int = 0
    by: Literal["raise", "kill"] = "raise"


Until = End | Planned | Loss | Failure


@dataclass(frozen=True, slots=True)
class World:
    """A world and how it ends.

    Attributes:
        nodes: How many nodes it has, at least 1.
        until: How it ends; by default when every replica has returned.
    """

    nodes: int
    until: Until = End()


def worlds_of(worlds: Sequence[int | World], change_at: Sequence[At], how: How | Sequence[How]) -> tuple[World, ...]:
    """The worlds in full, from the short form or from the long one.

    Raises `ValueError` if the parts do not fit together.
    """
    if not worlds:
        raise ValueError("worlds is empty; name at least one, as in worlds=[2]")
    numbers = [world for world in worlds if isinstance(world, int)]
    full = [world for world in worlds if isinstance(world, World)]
    if full and (numbers or change_at):
        raise ValueError("worlds has World values: give every world as one, and no change_at")
    if not full:
        changes = len(numbers) - 1
        hows = [how] * changes if isinstance(how, str) else list(how)
        if len(change_at) != changes or len(hows) != changes:
            raise ValueError(
                f"{len(numbers)} worlds have {changes} changes between them, but change_at has {len(change_at)} "
                f"and how has {len(hows)}"
            )
        full = [
            World(nodes, _until(nodes, after, at, kind))
            for nodes, after, at, kind in zip(numbers, numbers[1:], change_at, hows, strict=False)
        ]
        full.append(World(numbers[-1]))
    _check(full)
    return tuple(full)


def _until(here: int, after: int, at: At, how: How) -> Until:
    """The short form's end. A world that grows is stopped as planned: nobody needs to be lost for it."""
    if how == "failure":
        return Failure(at)
    return Loss(at) if how == "loss" and after <= here else Planned(at)


def _check(worlds: Sequence[World]) -> None:
    for index, world in enumerate(worlds):
        if world.nodes < 1:
            raise ValueError(f"world {index} has {world.nodes} nodes; one is the least")
        last, until = index == len(worlds) - 1, world.until
        if isinstance(until, End) and not last:
            raise ValueError(f"world {index} runs to the end, so that nothing comes after it; say how it ends")
        named = until.nodes if isinstance(until, Loss) else until.leave if isinstance(until, Planned) else ()
        if any(not 0 <= place < world.nodes for place in named):
            raise ValueError(f"world {index} has {world.nodes} nodes, counted from 0, and not {named}")
        if isinstance(until, Loss) and not until.nodes and world.nodes == 1 and not last:
            raise ValueError(
                f"world {index} has one node and loses it; if that is meant, name it: Loss(..., nodes=(0,))"
            )


def lost(worlds: Sequence[World], index: int) -> tuple[int, ...]:
    """The places of the nodes that are lost in world `index`."""
    until = worlds[index].until
    if not isinstance(until, Loss):
        return ()
    if until.nodes:
        return tuple(sorted(set(until.nodes)))
    here = worlds[index].nodes
    after = worlds[index + 1].nodes if index + 1 < len(worlds) else here - 1
    return tuple(range(here - max(1, here - after), here))


def memberships(worlds: Sequence[World]) -> tuple[tuple[int, ...], ...]:
    """The nodes of each world, in the order of their ranks. A node has one number for its life, from 0.

    Who stays keeps the order, newcomers are appended: so rank 0 is a survivor whenever there is one.
    """
    unborn = itertools.count()
    members = tuple(itertools.islice(unborn, worlds[0].nodes))
    cluster_specs = [members]
    for index, after in enumerate(worlds[1:]):
        until = worlds[index].until
        gone = until.leave if isinstance(until, Planned) else lost(worlds, index)
        stay = tuple(number for place, number in enumerate(members) if place not in gone)[: after.nodes]
        members = stay + tuple(itertools.islice(unborn, after.nodes - len(stay)))
        cluster_specs.append(members)
    return tuple(cluster_specs)
