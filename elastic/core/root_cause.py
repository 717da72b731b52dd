"""The root cause of a generation's end: the earliest failure that no other failure caused (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from elastic.core.model import (
    ANY_RANK,
    WORKER_ROLE,
    Cause,
    ChangeReason,
    JobSpec,
    OtherFailure,
    Outcome,
    OutcomeKind,
    Predecessor,
    WorkerExit,
)
from elastic.core.view import StoredDocument

OTHERS_MAX = 64
"""Failures on other nodes whose logs a root cause lists."""
OWN, RAISED, SECONDARY = range(3)
"""How much a failure says, in this order: the worker ended on its own, was about to, or only lost a peer."""


@dataclass(frozen=True, slots=True)
class _WorkerFailure:
    """One worker that failed; `order` is its index in its node's outcome."""

    weight: int
    revision: int
    node: str
    order: int
    host: str
    worker: WorkerExit


def root_cause_of(before: Predecessor, outcomes: Mapping[str, StoredDocument[Outcome]], spec: JobSpec) -> Cause | None:
    """Return the earliest failure that no other failure caused, with all other such failures; None without one.

    A worker that had raised an exception before it was stopped (`Outcome.also`) counts less than one that ended on its
    own: a large process takes longer to end than a secondary failure takes in another. It counts only if a failure
    ended the generation; otherwise our own signal may have made the script raise.
    """
    failures = _failures(before, outcomes)
    if not any(stored.value.ended is OutcomeKind.FAILED for stored in outcomes.values()) or not failures:
        return None
    first = failures[0]
    on_first = [failure for failure in failures if failure.node == first.node]
    named = [failure for failure in failures if failure.weight < SECONDARY] or on_first
    others = sorted((failure for failure in named if failure.node != first.node), key=lambda other: other.worker.rank)
    ranks = {failure.worker.rank for failure in named if failure.worker.role == WORKER_ROLE}
    return Cause(
        g=before.g,
        host=first.host,
        node=first.node,
        exits=tuple(failure.worker for failure in on_first),
        ranks=tuple(sorted(ranks - {ANY_RANK})),
        world_size=len(before.nodes) * spec.slots,
        others=tuple(_other_failure(other) for other in others[:OTHERS_MAX]),
    )


def _failures(before: Predecessor, outcomes: Mapping[str, StoredDocument[Outcome]]) -> list[_WorkerFailure]:
    """Every failure, those that say most first; among equal ones, the one that was recorded first."""
    found = [
        _WorkerFailure(weight, stored.create_revision, node, order, stored.value.host, worker)
        for node, stored in outcomes.items()
        for order, (weight, worker) in enumerate(_weighed(stored.value, before.why))
    ]
    return sorted(found, key=lambda failure: (failure.weight, failure.revision, failure.node, failure.order))


def _weighed(outcome: Outcome, why: ChangeReason) -> list[tuple[int, WorkerExit]]:
    exits = outcome.exits if outcome.ended is OutcomeKind.FAILED else ()
    also = outcome.also if why is ChangeReason.FAILURE else ()
    weighed = [(SECONDARY if worker.secondary else OWN, worker) for worker in exits]
    return weighed + [(RAISED, worker) for worker in also]


def _other_failure(failure: _WorkerFailure) -> OtherFailure:
    worker = failure.worker
    return OtherFailure(worker.rank, failure.host, worker.words, worker.log, worker.role)
