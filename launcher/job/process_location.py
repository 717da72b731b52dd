"""Finds the node of a process of a job, from the store (pure)."""

from __future__ import annotations

import re
from typing import NamedTuple

from elastic.core.model import JobMode
from elastic.core.ps.model import ClusterSpec, Role, Task
from elastic.core.text import process_name
from elastic.core.view import StoreView
from elastic.errors import ConfigError

_NAMED = re.compile(r"(?:(?P<role>worker|server|heter)(?:log)?[.])?(?P<index>[0-9]{1,9})", re.ASCII)


class ProcessLocation(NamedTuple):
    """A node, and the start of the process there: its generation, and the revision of its cluster spec."""

    node: str
    host: str
    stamp: tuple[int, int]


def named(text: str) -> tuple[Role, int]:
    """Parse the name of a process on the command line: `3`, `server.0`, `heter.1`, or the name of its log.

    Raises `ConfigError`.
    """
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(f"{text!r} is not a worker; use its rank (3), or server.0, heter.0 in a parameter-server job")
    return Role(match["role"] or Role.WORKER), int(match["index"])


def locate(view: StoreView, role: Role, index: int) -> ProcessLocation | None:
    """Return the node of the newest start of a process; None if there is none.

    Before the start signal of the newest generation this is its place in the previous generation.
    """
    generation = view.current_generation
    if generation is None:
        return None
    if isinstance(generation, ClusterSpec):
        task = Task(role, index)
        places = [place for place in generation.members if task in place.tasks]
        return ProcessLocation(places[0].node, places[0].host, (generation.g, places[0].since)) if places else None
    if role is not Role.WORKER:
        return None
    m_id = index // generation.slots
    if view.go is not None and view.go.value.g == generation.g:
        if m_id >= len(generation.members):
            return None
        place = generation.members[m_id]
        return ProcessLocation(place.node, place.host, (generation.g, 0))
    before = generation.before
    if before is None or m_id >= len(before.nodes):
        return None
    node = before.nodes[m_id]
    return ProcessLocation(node, node.rpartition("-")[0], (before.g, 0))


def why_absent(view: StoreView, role: Role, index: int) -> str:
    """Return why no node has a process, as a sentence."""
    generation, name = view.current_generation, process_name(role, index)
    if generation is None:
        return f"there is no {name} yet: no generation has formed"
    if not generation.members:
        return f"there is no {name} now: generation {generation.g} has no nodes"
    if isinstance(generation, ClusterSpec):
        there = len(generation.task_assignments(role))
        return f"there is no {name} now: generation {generation.g} has {there} of that role"
    if role is not Role.WORKER:
        return f"there is no {name}: this job identifies its workers by rank, 0 to {generation.world_size - 1}"
    return f"there is no {name}: generation {generation.g} has the ranks 0 to {generation.world_size - 1}"


def elsewhere(view: StoreView) -> str:
    """Return a sentence about what runs the workers if the job's nodes do not; "" if they do."""
    if view.spec is None or view.spec.value.mode is not JobMode.TORCHRUN:
        return ""
    return "torchrun runs the workers of this job and has their logs: see its output on each node, or its --log-dir"
