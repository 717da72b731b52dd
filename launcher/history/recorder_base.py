"""The common base of the recorders of recoveries (pure): `recovery_recorder` and `ps_recovery_recorder`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Generic, NamedTuple, TypeVar

from elastic.core.model import Generation
from launcher.history.failure_signals import FailureSignals, ProposalTracker
from launcher.history.recovery import PhaseEnd, Recovery

PATIENCE_S: Final = 10.0
"""Seconds to wait for a further message, which may never arrive."""
START_PATIENCE_S: Final = 60.0
"""The same for a first start, whose first step may be slow, and until the first message of a worker."""


class RecoveryBeginning(NamedTuple):
    """How the recovery of `node` began, whose tasks start in revision `rev`; `phases` end when etcd has it."""

    g: int
    rev: int
    node: str
    text: str
    phases: tuple[tuple[PhaseEnd, float], ...]


@dataclass(kw_only=True)
class OngoingRecovery:
    """A recovery in progress.

    `asked` are the workers of this node that have requested their process group, by local rank, and `formed` those that
    have joined it.
    """

    generation: Generation
    began: float
    text: str
    start: bool = False
    tells: bool = True
    marks: dict[PhaseEnd, float] = field(default_factory=dict)
    asked: dict[int, float] = field(default_factory=dict)
    formed: dict[int, float] = field(default_factory=dict)
    restored_step: int | None = None

    def believed(self, at: float, now: float) -> float:
        """Return a moment that a worker reports: between the start signal and now, or now if it reports none."""
        return min(max(at, self.marks.get(PhaseEnd.HEARD_GO, at)), now) if at > 0 else now

    def continue_from(self, old: OngoingRecovery, began: float) -> None:
        """Join both into one recovery, which began then: `old` failed. The moments are those of the later one."""
        begins, self.began = self.began, min(self.began, began)
        self.start, self.text = old.start, f"{old.text}; {self.text}"
        if old.start:
            self.marks |= {mark: old.marks[mark] for mark in (PhaseEnd.JOINED, PhaseEnd.MET) if mark in old.marks}
        elif begins > self.began:
            self.marks.setdefault(PhaseEnd.EARLIER, begins)


Ongoing = TypeVar("Ongoing", bound=OngoingRecovery)


class RecorderBase(Generic[Ongoing]):
    """The records of one node. Nothing here raises on any order of events."""

    def __init__(self, node: str, command_at: float) -> None:
        """`command_at`: when this agent was started."""
        self._node = node
        self._command_at = command_at
        self._signs = FailureSignals(node)
        self._proposals = ProposalTracker()
        self._open: Ongoing | None = None
        self._gone_at: float | None = None
        self._due_at: float | None = None
        self._over: list[Recovery] = []
        self._beginnings: list[RecoveryBeginning] = []

    def spawned(self, g: int, at: float) -> None:
        """Note that this node's workers of `g` run."""
        record = self._open
        if record is not None and record.generation.g == g:
            record.marks.setdefault(PhaseEnd.SPAWNED, at)
            self._plan(at)

    def asked_for_group(self, g: int, local_rank: int, at: float, now: float) -> None:
        """Note that the script of a worker requested its process group at `at`, as it reports at `now`."""
        record = self._of(g)
        if record is not None:
            record.asked.setdefault(local_rank, record.believed(at, now))
            record.marks[PhaseEnd.ASKED_FOR_GROUP] = max(record.asked.values())

    def restored(self, g: int, step: int, at: float, now: float) -> None:
        """Note that a worker has its state, or a server its tables, of this step (-1: from the beginning)."""
        record = self._of(g)
        if record is not None:
            record.restored_step = step if record.restored_step is None else max(step, record.restored_step)
            at = record.believed(at, now)
            record.marks[PhaseEnd.RESTORED] = max(at, record.marks.get(PhaseEnd.RESTORED, 0.0))
            self._plan(now)

    def _of(self, g: int) -> Ongoing | None:
        """Return the record of `g`, if its workers may run here."""
        record = self._open
        return record if record is not None and record.generation.g == g and PhaseEnd.HEARD_GO in record.marks else None

    @property
    def due_at(self) -> float | None:
        """When to call `take`, None while nothing can be reported."""
        return self._due_at if not self._over else 0.0

    def take(self, now: float) -> Recovery | None:
        """Return the next finished recovery of this node, whichever node reports it, and close its record."""
        if self._due_at is not None and now >= self._due_at:
            self._learn()
            self._close()
        return self._over.pop(0) if self._over else None

    def end(self) -> Recovery | None:
        """Return the recovery in progress, even if it has not finished, because this agent exits."""
        self._close()
        return self._over.pop(0) if self._over else None

    def _close(self) -> None:
        """Close the one in progress."""
        record, self._open, self._due_at = self._open, None, None
        if record is not None and (recovery := self._recovery(record)) is not None:
            self._over.append(recovery)

    @property
    def beginnings(self) -> list[RecoveryBeginning]:
        """Return what this node noted of starts that it proposed for others; only once."""
        beginnings, self._beginnings = self._beginnings, []
        return beginnings

    def _plan(self, now: float) -> None:
        """Determine when this recovery can be reported."""
        raise NotImplementedError

    def _learn(self) -> None:
        """Note how far the workers of this script are known to come."""

    def _recovery(self, record: Ongoing) -> Recovery | None:
        """Return the recovery as a value; None if its workers never ran."""
        raise NotImplementedError
