"""What the end of a generation costs the job: the root cause, the charge and the back-off (pure).

The leader judges a generation once, at the gate of the next one, when every node has recorded its outcome or is lost.
A failure that a node failure caused is therefore recognised as secondary, however early its message arrived. The rules
are a table (`RULES`); the first rule that judges decides.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Final

import msgspec

from elastic.core.failure_class import FailureClass
from elastic.core.model import (
    Budget,
    Cause,
    ChangeReason,
    JobMode,
    JobSpec,
    Outcome,
    OutcomeKind,
    Predecessor,
    Quarantine,
    WorkerExit,
)
from elastic.core.partition import nodes_to_exclude, not_reached_by
from elastic.core.quarantine import (
    NAMED_MAX,
    UNREACHABLE_MAX,
    Blame,
    blame,
    quarantine,
    reset_failures,
    with_unreachable,
)
from elastic.core.root_cause import root_cause_of
from elastic.core.text import SPLIT, join_names
from elastic.core.view import StoredDocument

PROGRESS_RUN_S = 60.0
"""A generation whose script reports no steps made progress if it ran for this long."""
HEALTHY_S = 3600.0
"""After this time of training without a failure the restart budget is full again."""
CRASH_LOOP_MAX = 10
"""Failures in a row without progress that end the job, whatever the budget."""
RETRY = "not restarted; --retry-startup-errors restarts it anyway"
"""Follows the error of a script that fails at its start."""
NOT_CHARGED: Final = "does not count against --max-restarts"
"""Begins the note about a failure that is free; the cause follows."""
MACHINE_FAULTS_MAX = 3
"""Machine failures in a row without progress that are free."""
BACKOFF_MAX_S = 60.0


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the gate does next: open after `pause_s`, or end the job because of `fatal`.

    Before either, it quarantines the hosts in `suspects` if the job can run without them; the budget is then
    `budget_if_excluded`.
    """

    budget: Budget
    pause_s: float = 0.0
    cause: Cause | None = None
    note: str = ""
    fatal: str = ""
    suspects: tuple[str, ...] = ()
    budget_if_excluded: Budget = field(default_factory=Budget)


@dataclass(frozen=True)
class Evidence:
    """How generation `before` ended, and what the rules derive from it.

    `outcomes` are by node; `lost` are the nodes that disappeared without an outcome; `healthy` says that the generation
    had trained for `HEALTHY_S`.
    """

    before: Predecessor
    outcomes: Mapping[str, StoredDocument[Outcome]]
    lost: frozenset[str]
    budget: Budget
    spec: JobSpec
    healthy: bool

    @cached_property
    def ends(self) -> list[Outcome]:
        """The recorded outcomes."""
        return [stored.value for stored in self.outcomes.values()]

    @cached_property
    def failed(self) -> list[Outcome]:
        """The outcomes of nodes whose workers failed."""
        return [end for end in self.ends if end.ended is OutcomeKind.FAILED and end.exits]

    @cached_property
    def own(self) -> list[WorkerExit]:
        """Workers that failed for another reason than a lost peer."""
        return [worker for end in self.failed for worker in end.exits if not worker.secondary]

    def all_own(self, failure: FailureClass) -> bool:
        """Return whether workers failed on their own, and all of them in this way."""
        return bool(self.own) and all(worker.failure is failure for worker in self.own)

    @cached_property
    def cause(self) -> Cause | None:
        """The root cause."""
        return root_cause_of(self.before, self.outcomes, self.spec)

    @cached_property
    def ran_s(self) -> float:
        """For how long the workers ran, in seconds."""
        return max((end.ran_s for end in self.ends), default=0.0)

    @cached_property
    def step(self) -> int:
        """The highest step that a worker reported, -1 if none did."""
        return max((end.step for end in self.ends), default=-1)

    @cached_property
    def progress(self) -> bool:
        """Whether the job made progress; a script that reports no steps did if it ran for `PROGRESS_RUN_S`."""
        waited = any(worker.failure is FailureClass.PARTITION for end in self.ends for worker in end.exits)
        return self.step > self.budget.step or (self.step < 0 and self.ran_s >= PROGRESS_RUN_S and not waited)

    @cached_property
    def uncharged(self) -> Budget:
        """The budget if this end costs nothing."""
        budget = self.budget
        charged = 0 if self.healthy else budget.charged
        consecutive_failures, machine_faults = (
            (0, 0) if self.progress else (budget.consecutive_failures, budget.machine_faults)
        )
        hosts = reset_failures(budget.hosts, self.ends) if self.progress else budget.hosts
        return Budget(charged, consecutive_failures, max(self.step, budget.step), machine_faults, hosts)

    @property
    def free(self) -> bool:
        """Whether the machines are to blame, at most `MACHINE_FAULTS_MAX` times in a row."""
        machines = bool(self.own) and all(worker.failure.of_machine for worker in self.own)
        return machines and self.uncharged.machine_faults < MACHINE_FAULTS_MAX

    @property
    def consecutive_failures(self) -> int:
        """Failures in a row without progress, including this one."""
        before = self.uncharged.consecutive_failures
        return before if self.free else 0 if self.progress else before + 1

    @cached_property
    def blamed(self) -> Blame:
        """The hosts that this failure is attributed to."""
        per_host = self.spec.mode is JobMode.COLLECTIVE and self.spec.host_cooldown_s > 0
        return blame(self.uncharged.hosts, self.ends) if per_host else Blame(())

    @property
    def charged(self) -> int:
        """Restarts that count against `--max-restarts`, including this one."""
        return self.uncharged.charged + (not self.free)

    @property
    def machine_faults(self) -> int:
        """Machine failures in a row without progress, including this one."""
        return self.uncharged.machine_faults + self.free

    def excused(self, note: str) -> Judgement:
        """The failure costs nothing, because of `note`."""
        return Judgement(self.uncharged, cause=self.cause, note=f"{NOT_CHARGED}: {note}")

    def ends_the_job(self, why: str) -> Judgement:
        """The job fails because of `why`."""
        return Judgement(self.uncharged, cause=self.cause, fatal=why)

    def costs(self, *, pause_s: float = 0.0, note: str = "", fatal: str = "") -> Judgement:
        """The cost of a failure that nothing excuses, and the hosts that should be quarantined."""
        spent = Budget(
            self.charged, self.consecutive_failures, self.uncharged.step, self.machine_faults, self.blamed.hosts
        )
        suspects = () if self.progress or self.consecutive_failures >= CRASH_LOOP_MAX else self.blamed.suspects
        return Judgement(spent, pause_s, self.cause, note, fatal, suspects, self.excluding(spent, suspects))

    def excluding(self, budget: Budget, suspects: Collection[str]) -> Budget:
        """The budget if these hosts are quarantined. A broken host never uses up the last restart."""
        hosts = quarantine(budget.hosts, suspects, self.before.g, self.spec.host_cooldown_s)
        charged = min(budget.charged, self.spec.restarts_max)
        return msgspec.structs.replace(budget, charged=charged, hosts=hosts, judged_g=self.before.g)


def judge(
    before: Predecessor,
    outcomes: Mapping[str, StoredDocument[Outcome]],
    lost: frozenset[str],
    budget: Budget,
    spec: JobSpec,
    *,
    healthy: bool,
) -> Judgement:
    """Judge how generation `before` ended: see `Evidence` for the arguments."""
    evidence = Evidence(before, outcomes, lost, budget, spec, healthy)
    return next(judgement for rule in RULES if (judgement := rule(evidence)) is not None)


def already_judged(e: Evidence) -> Judgement | None:
    """The failure was already judged when hosts were quarantined for it: it costs nothing more."""
    if e.budget.judged_g != e.before.g:
        return None
    out = [entry for entry in e.budget.hosts if entry.g == e.before.g]
    text = _quarantined_text(out)
    if all(entry.unreachable for entry in out):
        return Judgement(e.budget, cause=e.cause, note=f"{NOT_CHARGED}: {text}")
    return Judgement(e.budget, cause=e.cause, note=f"{text}; {e.budget.charged} of {e.spec.restarts_max} restarts used")


def no_failure(e: Evidence) -> Judgement | None:
    """No worker failed: it costs nothing."""
    return None if e.failed else Judgement(e.uncharged)


def fatal_exit_code(e: Evidence) -> Judgement | None:
    """A worker exited with one of `--fatal-exit-codes`: the job fails."""
    worker = next((worker for worker in e.own if worker.code in e.spec.fatal_exit_codes), None)
    return e.ends_the_job(f"{worker.words} of rank {worker.rank} is one of --fatal-exit-codes") if worker else None


def unrecoverable(e: Evidence) -> Judgement | None:
    """A worker reported that its error is permanent: the job fails."""
    worker = next((worker for worker in e.own if worker.failure is FailureClass.UNRECOVERABLE), None)
    return e.ends_the_job(f"permanent error: {worker.why}") if worker else None


def script_cannot_start(e: Evidence) -> Judgement | None:
    """Every worker failed at the start of the script: the job fails."""
    at_start = e.ran_s < PROGRESS_RUN_S and e.all_own(FailureClass.STARTUP)
    if e.cause is None or not at_start:
        return None
    return e.ends_the_job(f"the script cannot start: {e.cause.first.why} ({RETRY})")


def no_host_can_start(e: Evidence) -> Judgement | None:
    """No host could start the program: the job fails."""
    cannot = FailureClass.CANNOT_START
    faults = [next((worker.why for worker in end.exits if worker.failure is cannot), "") for end in e.ends]
    if e.spec.mode is not JobMode.COLLECTIVE or e.lost or not all(faults):
        return None
    return e.ends_the_job(f"permanent error: {faults[0]}")


def network_split(e: Evidence) -> Judgement | None:
    """Nodes could not reach each other: this is free, and the nodes that are cut off should be left out."""
    unreached = {node: stored.value.unreached for node, stored in e.outcomes.items()}
    apart = nodes_to_exclude(e.before.nodes, unreached, e.lost)
    if not apart or any(worker.failure is not FailureClass.PARTITION for worker in e.own):
        return None
    if e.spec.mode is not JobMode.COLLECTIVE or not e.spec.host_cooldown_s:
        return e.excused(SPLIT)
    out: dict[str, str] = {}
    for node, others in apart.items():
        hosts = list(dict.fromkeys(e.outcomes[other].value.host for other in others))
        out.setdefault(e.outcomes[node].value.host, not_reached_by(hosts))
    suspects = tuple(sorted(list(out)[:UNREACHABLE_MAX]))
    without = e.excluding(
        msgspec.structs.replace(e.uncharged, hosts=with_unreachable(e.uncharged.hosts, out)), suspects
    )
    note = f"{NOT_CHARGED}: {SPLIT}"
    return Judgement(e.uncharged, cause=e.cause, note=note, suspects=suspects, budget_if_excluded=without)


def node_lost(e: Evidence) -> Judgement | None:
    """A node was lost: failures of other nodes in the same generation are free."""
    if not e.lost:
        return None
    cause = e.cause if e.cause is not None and not e.cause.first.secondary else None
    return Judgement(e.uncharged, cause=cause, note=f"{NOT_CHARGED}: {join_names(sorted(e.lost))} was lost")


def forced_stop(e: Evidence) -> Judgement | None:
    """A node had to stop its workers, so that others lost a peer: this is free."""
    forced = [node for node, stored in e.outcomes.items() if stored.value.forced]
    if not forced or e.own:
        return None
    return Judgement(e.uncharged, note=f"{NOT_CHARGED}: {join_names(sorted(forced))} had to stop its workers")


def being_stopped(e: Evidence) -> Judgement | None:
    """Workers lost a peer while all were being stopped: this is free."""
    if e.before.why is ChangeReason.FAILURE or e.own:
        return None
    return Judgement(e.uncharged, note=f"{NOT_CHARGED}: the workers were being stopped")


def restart_requested(e: Evidence) -> Judgement | None:
    """The script asked for a restart after progress: this is free."""
    asked = e.progress and e.all_own(FailureClass.RESTART_REQUESTED)
    return e.excused("the script asked for it after progress") if asked else None


def exhausted(e: Evidence) -> Judgement | None:
    """No restart is left: the job fails."""
    if e.charged <= e.spec.restarts_max:
        return None
    judgement = e.costs(fatal=f"no restart is left (--max-restarts {e.spec.restarts_max})")
    return replace(judgement, budget=e.uncharged)


def machine_fault(e: Evidence) -> Judgement | None:
    """The machine is to blame, for the first few times in a row: this is free."""
    if not e.free:
        return None
    return e.costs(note=f"{NOT_CHARGED}: {e.own[0].why}, {e.machine_faults} of {MACHINE_FAULTS_MAX}")


def crash_loop(e: Evidence) -> Judgement | None:
    """Too many failures in a row without progress: the job fails."""
    if e.consecutive_failures < CRASH_LOOP_MAX:
        return None
    return e.costs(fatal=f"crash loop: {e.consecutive_failures} failures in a row without progress")


def charged(e: Evidence) -> Judgement:
    """Any other failure costs one restart, and a back-off that doubles with each failure in a row without progress."""
    pause_s = min(2.0 ** (e.consecutive_failures - 2), BACKOFF_MAX_S) if e.consecutive_failures > 1 else 0.0
    return e.costs(pause_s=pause_s, note=f"restart {e.charged} of {e.spec.restarts_max}")


RULES: Final[tuple[Callable[[Evidence], Judgement | None], ...]] = (
    already_judged, no_failure, fatal_exit_code, unrecoverable, script_cannot_start, no_host_can_start, network_split,
    node_lost, forced_stop, being_stopped, restart_requested, exhausted, machine_fault, crash_loop, charged,
)  # fmt: skip
"""The rules for what a failure costs; the first rule that judges decides."""


def _quarantined_text(entries: Sequence[Quarantine]) -> str:
    named = ", ".join(entry.host for entry in entries) if len(entries) <= NAMED_MAX else f"{len(entries)} hosts"
    still = any(entry.left_s > 0 for entry in entries)
    verb = ("is" if still else "was") if len(entries) == 1 else ("are" if still else "were")
    return f"{named} {verb} quarantined"
