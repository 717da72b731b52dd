"""The schedule of a run: its worlds, how each one ends, and which nodes are in it (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

At = int | str
"""A step, or the string that replicas pass to `elastic.testing.reached`."""
How = Literal["planned", "node_failure", "failure"]


@dataclass(frozen=True, slots=True)
class End:
    """The world runs until every replica has returned."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A planned stop, as for a drain or joining nodes: the replicas save and exit with code 143.

    A replica that does not listen on the local channel gets SIGTERM instead.

    Attributes:
        at: The step, or the string passed to `reached`, at which the replicas get the request to stop.
        leave: The nodes that leave, by their node rank in this world, from 0. If the next world is even smaller,
            further nodes leave, from the end.
        may_fail: Whether a replica may fail on its own before it exits. The others are then stopped as after a failure.
    """

    at: At
    leave: tuple[int, ...] = ()
    may_fail: bool = False


@dataclass(frozen=True, slots=True)
class NodeFailure:
    """Nodes fail: their replicas get SIGKILL, and their memory is freed. The others get SIGTERM, then SIGKILL.

    Attributes:
        at: The step, or the string passed to `reached`. None: when the first replica of the world fails on its own, for
            example because the function kills its process.
        nodes: The failed nodes, by their node rank in this world, from 0. Default: the last nodes, as many as the next
            world has fewer, at least one.
    """

    at: At | None = None
    nodes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One replica fails, and its node stays. The other replicas are stopped.

    Attributes:
        at: The step, or the string passed to `reached`. None: the function makes a replica fail, and the first failure
            ends the world.
        rank: The rank of the replica that fails.
        by: "raise": it raises `Injected`. "kill": it gets SIGKILL.
    """

    at: At | None = None
    rank: int = 0
    by: Literal["raise", "kill"] = "raise"


Until = End | Planned | NodeFailure | Failure


@dataclass(frozen=True, slots=True)
class World:
    """A world and how it ends.

    Attributes:
        nodes: The number of nodes, 1 or more.
        until: How it ends; by default, when every replica has returned.
    """

    nodes: int
    until: Until = End()


def worlds_of(worlds: Sequence[int | World], change_at: Sequence[At], how: How | Sequence[How]) -> tuple[World, ...]:
    """Convert the short or the long form of a schedule to the long form.

    Raises `ValueError` if the arguments contradict each other.
    """
    if not worlds:
        raise ValueError("worlds is empty; write at least one, as in worlds=[2]")
    numbers = [world for world in worlds if isinstance(world, int)]
    full = [world for world in worlds if isinstance(world, World)]
    if full and (numbers or change_at):
        raise ValueError("worlds has World values: write all worlds as World, and no change_at")
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
    """Return the end of a world in the short form. A change to more nodes is planned: it needs no node failure."""
    if how == "failure":
        return Failure(at)
    return NodeFailure(at) if how == "node_failure" and after <= here else Planned(at)


def _check(worlds: Sequence[World]) -> None:
    for index, world in enumerate(worlds):
        if world.nodes < 1:
            raise ValueError(f"world {index} has {world.nodes} nodes; it needs 1 or more")
        last, until = index == len(worlds) - 1, world.until
        if isinstance(until, End) and not last:
            raise ValueError(f"world {index} runs to the end, but is not the last one; set how it ends")
        named = until.nodes if isinstance(until, NodeFailure) else until.leave if isinstance(until, Planned) else ()
        if any(not 0 <= place < world.nodes for place in named):
            raise ValueError(f"world {index} has {world.nodes} nodes, counted from 0, but names {named}")
        if isinstance(until, NodeFailure) and not until.nodes and world.nodes == 1 and not last:
            raise ValueError(
                f"the only node of world {index} fails; if that is intended, name it: NodeFailure(..., nodes=(0,))"
            )


def failed_nodes(worlds: Sequence[World], index: int) -> tuple[int, ...]:
    """Return the node ranks of the nodes that fail in world `index`."""
    until = worlds[index].until
    if not isinstance(until, NodeFailure):
        return ()
    if until.nodes:
        return tuple(sorted(set(until.nodes)))
    here = worlds[index].nodes
    after = worlds[index + 1].nodes if index + 1 < len(worlds) else here - 1
    return tuple(range(here - max(1, here - after), here))


def memberships(worlds: Sequence[World]) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of each world, in the order of their ranks. A node has one number in the whole run, from 0.

    Remaining nodes keep their order, and joining nodes are appended, so the node of rank 0 is a survivor if there is
    one.
    """
    unborn = itertools.count()
    members = tuple(itertools.islice(unborn, worlds[0].nodes))
    cluster_specs = [members]
    for index, after in enumerate(worlds[1:]):
        until = worlds[index].until
        gone = until.leave if isinstance(until, Planned) else failed_nodes(worlds, index)
        stay = tuple(number for place, number in enumerate(members) if place not in gone)[: after.nodes]
        members = stay + tuple(itertools.islice(unborn, after.nodes - len(stay)))
        cluster_specs.append(members)
    return tuple(cluster_specs)
