"""What a generation's end costs the job: cause, charge, pause (pure).

Judged once, at the gate of the next generation, when all outcomes are in or their nodes are lost. So a failure that
was only the echo of a loss is seen as one, however early its message came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from elastic.core.model import (
    ANY_RANK,
    Budget,
    Cause,
    ChangeReason,
    JobMode,
    JobSpec,
    OtherFailure,
    Outcome,
    OutcomeKind,
    Predecessor,
    Quarantine,
    Role,
    WorkerExit,
)
from elastic.core.partition import SPLIT, nodes_to_exclude, not_reached_by
from elastic.core.quarantine import (
    NAMED_MAX,
    RESTART_ASKED,
    UNREACHABLE_MAX,
    Blame,
    blame,
    quarantine,
    quarantined_by,
    reset_failures,
    with_unreachable,
)
from elastic.core.view import StoredDocument

PROGRESS_RUN_S = 60.0
"""A generation whose script reports no steps made progress if it ran for this long."""
HEALTHY_S = 3600.0
"""After this time of training without a failure the budget is full again."""
CRASH_LOOP_MAX = 10
"""So many failures in a row without progress end the job, whatever the budget."""
CANNOT_START = "cannot start "
"""How a failure of the machine begins that keeps the worker's program from being started at all."""
RETRY = "no restart would fix that; --retry_startup_errors restarts it anyway"
"""What people read of an error that ends a script at its start."""
MACHINE_FAULTS_MAX = 3
"""So many failures of the machine in a row without progress are free."""
BACKOFF_MAX_S = 60.0
OTHERS_MAX = 64
"""Failures on other nodes whose logs a cause names."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate does next: open after `pause_s`, or end the job because of `fatal`.

    Before either of them it leaves the hosts of `suspects` out, if the job can do without; then the budget is
    `without`.
    """

    budget: Budget
    pause_s: float = 0.0
    cause: Cause | None = None
    note: str = ""
    fatal: str = ""
    suspects: tuple[str, ...] = ()
    budget_if_excluded: Budget = field(default_factory=Budget)


def judge(
    before: Predecessor,
    outcomes: Mapping[str, StoredDocument[Outcome]],
    lost: frozenset[str],
    budget: Budget,
    spec: JobSpec,
    *,
    healthy: bool,
) -> Judgement:
    """Judge how generation `before` ended.

    `outcomes` by node; `lost` are its nodes that vanished without one; `healthy` says that it had trained for
    `HEALTHY_S` under the eyes of this proposer.
    """
    ends = [stored.value for stored in outcomes.values()]
    waited = any(worker.machine_fault == SPLIT for end in ends for worker in end.exits)  # And did nothing in that time.
    step = max((end.step for end in ends), default=-1)
    ran_s = max((end.ran_s for end in ends), default=0.0)
    progress = step > budget.step or (step < 0 and ran_s >= PROGRESS_RUN_S and not waited)
    charged = 0 if healthy else budget.charged
    fruitless, machine_faults = (0, 0) if progress else (budget.fruitless, budget.machine_faults)
    hosts = reset_failures(budget.hosts, ends) if progress else budget.hosts
    uncharged = Budget(charged, fruitless, max(step, budget.step), machine_faults, hosts)

    if judged := quarantined_by(budget, before.g):  # And a host was left out then.
        return _judged_before(judged, budget, root_cause_of(before, outcomes, spec), spec)
    failures = [
        outcome.value
        for outcome in outcomes.values()
        if outcome.value.ended is OutcomeKind.FAILED and outcome.value.exits
    ]
    if not failures:
        return Judgement(uncharged)
    cause = root_cause_of(before, outcomes, spec)
    own = [worker for outcome in failures for worker in outcome.exits if not worker.secondary]

    fatal = next((worker for worker in own if worker.code in spec.fatal_exit_codes), None)
    if fatal is not None:
        return Judgement(
            uncharged, cause=cause, fatal=f"{fatal.words} of rank {fatal.rank} is one of --fatal_exit_codes"
        )
    unrecoverable = next((worker for worker in own if worker.unrecoverable), None)
    if unrecoverable is not None:
        return Judgement(uncharged, cause=cause, fatal=f"no restart would mend this: {unrecoverable.unrecoverable}")
    if cause is not None and ran_s < PROGRESS_RUN_S and own and all(worker.startup for worker in own):
        return Judgement(uncharged, cause=cause, fatal=f"the script cannot start: {cause.first.startup} ({RETRY})")
    if spec.mode is JobMode.COLLECTIVE and not lost and (nowhere := _startable_nowhere(ends)):
        return Judgement(uncharged, cause=cause, fatal=f"no restart would mend this: {nowhere}")
    split = nodes_to_exclude(before.nodes, {node: stored.value.unreached for node, stored in outcomes.items()}, lost)
    if split and all(worker.machine_fault == SPLIT for worker in own):
        return _split(uncharged, split, outcomes, cause, before.g, spec)
    if lost:
        return Judgement(
            uncharged,
            cause=cause if cause and not cause.first.secondary else None,
            note=f"not charged: {_names(lost)} was lost",
        )
    forced = frozenset(node for node, stored in outcomes.items() if stored.value.forced)
    if forced and not own:
        return Judgement(uncharged, note=f"not charged: {_names(forced)} had to stop its workers")
    if before.why is not ChangeReason.FAILURE and not own:
        return Judgement(uncharged, note="not charged: the workers were being stopped")
    if progress and own and all(worker.code == RESTART_ASKED for worker in own):
        return Judgement(uncharged, cause=cause, note="not charged: the script asked for it after progress")
    return _charged(uncharged, own, ends, cause, before.g, spec, progress=progress)


def _split(
    uncharged: Budget,
    split: Mapping[str, Sequence[str]],
    outcomes: Mapping[str, StoredDocument[Outcome]],
    cause: Cause | None,
    g: int,
    spec: JobSpec,
) -> Judgement:
    """Nodes did not reach each other: it costs nothing, and those that are cut off had better be left out."""
    note = f"not charged: {SPLIT}"
    if spec.mode is not JobMode.COLLECTIVE or not spec.host_cooldown_s:
        return Judgement(uncharged, cause=cause, note=note)
    out: dict[str, str] = {}
    for node, others in split.items():
        hosts = list(dict.fromkeys(outcomes[other].value.host for other in others))
        out.setdefault(outcomes[node].value.host, not_reached_by(hosts))
    suspects = tuple(sorted(list(out)[:UNREACHABLE_MAX]))
    without = quarantine(with_unreachable(uncharged, out), suspects, g, spec.host_cooldown_s)
    return Judgement(uncharged, cause=cause, note=note, suspects=suspects, budget_if_excluded=without)


def _charged(
    uncharged: Budget,
    own: Sequence[WorkerExit],
    ends: Sequence[Outcome],
    cause: Cause | None,
    g: int,
    spec: JobSpec,
    *,
    progress: bool,
) -> Judgement:
    """What a failure costs that nothing excuses, and which hosts had better be left out."""
    free = bool(own) and all(worker.machine_fault for worker in own) and uncharged.machine_faults < MACHINE_FAULTS_MAX
    per_host = spec.mode is JobMode.COLLECTIVE and spec.host_cooldown_s > 0
    blamed = blame(uncharged.hosts, ends, pays=not free) if per_host else Blame(())
    fruitless = uncharged.fruitless if free else 0 if progress else uncharged.fruitless + 1
    charged = uncharged.charged + blamed.owed + (0 if free else 1)
    machine_faults = uncharged.machine_faults + 1 if free else uncharged.machine_faults
    spent = Budget(charged, fruitless, uncharged.step, machine_faults, blamed.hosts)
    suspects = () if progress or fruitless >= CRASH_LOOP_MAX else blamed.suspects
    row = Budget(charged, fruitless, uncharged.step, uncharged.machine_faults, blamed.hosts)
    without = quarantine(row, suspects, g, spec.host_cooldown_s)
    judgement = Judgement(spent, cause=cause, suspects=suspects, budget_if_excluded=without)
    if charged > spec.restarts_max:  # Also if this one is free: those that are owed after all are not.
        return replace(judgement, budget=uncharged, fatal=f"no restart is left (--max_restarts {spec.restarts_max})")
    if free:
        return replace(judgement, note=f"not charged: {own[0].machine_fault}, {machine_faults} of {MACHINE_FAULTS_MAX}")
    if fruitless >= CRASH_LOOP_MAX:
        return replace(judgement, fatal=f"crash loop: {fruitless} failures in a row without progress")
    pause_s = min(2.0 ** (fruitless - 2), BACKOFF_MAX_S) if fruitless > 1 else 0.0
    return replace(judgement, pause_s=pause_s, note=f"restart {charged} of {spec.restarts_max}")


def _judged_before(out: Sequence[Quarantine], budget: Budget, cause: Cause | None, spec: JobSpec) -> Judgement:
    """These hosts were left out for the failure. Where one was taken back, the failure has its price after all."""
    if any(one.charged for one in out):
        return Judgement(budget, cause=cause, note=f"restart {budget.charged} of {spec.restarts_max}")
    named = ", ".join(one.host for one in out) if len(out) <= NAMED_MAX else f"{len(out)} hosts"
    still = any(one.left_s > 0 for one in out)
    verb = ("is" if still else "was") if len(out) == 1 else ("are" if still else "were")
    return Judgement(budget, cause=cause, note=f"not charged: {named} {verb} kept out")


def _startable_nowhere(ends: Sequence[Outcome]) -> str:
    """Why no host could start the program, "" if one could."""
    found = [
        next((one.machine_fault for one in end.exits if one.machine_fault.startswith(CANNOT_START)), "") for end in ends
    ]
    return found[0] if all(found) else ""


def root_cause_of(before: Predecessor, outcomes: Mapping[str, StoredDocument[Outcome]], spec: JobSpec) -> Cause | None:
    """The earliest failure that is not the echo of another, with all that failed by themselves; None without a failure.

    A worker that had raised an exception before it was stopped (`Outcome.also`) is asked after those that ended by
    themselves: the end of a large process takes longer than the echo of it in another. It counts only where a failure
    was what ended the generation; otherwise our own signal may have made the script raise.
    """
    failures = sorted(
        (_WorkerFailure(weight, stored.create_revision, node, order, stored.value.host, worker)
         for node, stored in outcomes.items()
         for order, (weight, worker) in enumerate(_weighed(stored.value, before.why))),
        key=lambda failure: (failure.weight, failure.revision, failure.node, failure.order),
    )  # fmt: skip
    if not any(stored.value.ended is OutcomeKind.FAILED for stored in outcomes.values()) or not failures:
        return None
    first = failures[0]
    named = [failure for failure in failures if failure.weight < SECONDARY] or [
        failure for failure in failures if failure.node == first.node
    ]
    others = sorted((failure for failure in named if failure.node != first.node), key=lambda other: other.worker.rank)
    return Cause(
        g=before.g,
        host=first.host,
        node=first.node,
        exits=tuple(failure.worker for failure in failures if failure.node == first.node),
        ranks=tuple(
            sorted({failure.worker.rank for failure in named if failure.worker.role is Role.WORKER} - {ANY_RANK})
        ),
        world_size=len(before.nodes) * spec.slots,
        others=tuple(
            OtherFailure(other.worker.rank, other.host, other.worker.words, other.worker.log, other.worker.role)
            for other in others[:OTHERS_MAX]
        ),
    )


@dataclass(frozen=True, slots=True)
class _WorkerFailure:
    """One worker that failed; `order` is its place in its node's outcome."""

    weight: int
    revision: int
    node: str
    order: int
    host: str
    worker: WorkerExit


OWN, RAISED, SECONDARY = range(3)
"""How much a failure tells: it ended by itself, it was about to, it only lost a peer."""


def _weighed(outcome: Outcome, why: ChangeReason) -> list[tuple[int, WorkerExit]]:
    exits = outcome.exits if outcome.ended is OutcomeKind.FAILED else ()
    also = outcome.also if why is ChangeReason.FAILURE else ()
    return [(SECONDARY if worker.secondary else OWN, worker) for worker in exits] + [
        (RAISED, worker) for worker in also
    ]


def _names(nodes: frozenset[str]) -> str:
    return ", ".join(sorted(nodes))
