"""One recovery as a value: its phases, how long each took, and the line for users (pure).

A recovery lasts from the first symptom (or, in a planned restart, from the last step of the old world) to the first
step of the new one. Its phases follow each other without a gap, so that they add up to its length:

======== ==============================================================================================
earlier  another recovery that had begun and failed
join     the command until this node is registered (of a first start only)
rendezvous until the required nodes have joined (of a first start only)
detect   from the first symptom until the one that decided
assign   until the tasks of a lost or failed node can start again (of parameter-server jobs only)
decide   until the proposal is sent
publish  until etcd has it
stop     until all of this node's old workers have exited
barrier  until this node receives the start signal: the other nodes have also stopped their old workers
spawn    until its workers run
script   until all of them request their process group: the imports and the initialisation of the script
group    until all of them are in the process group
restore  until they have their state (`state.restore`)
serve    until its servers listen (of a node that has only servers)
step     until the first step is done
======== ==============================================================================================
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf
from typing import Final

from elastic._text import counted
from elastic.core.model import ChangeReason

NOTICEABLE_S: Final = 0.01
"""A lesser phase that is shorter is counted in the next one, in the line for users; the numbers have it."""
ROUNDING_S: Final = 1e-6
"""Sums of phases equal the moments between them up to this difference."""
TEXT_MAX: Final = 300
"""Characters of `text` in the line."""


class PhaseEnd(StrEnum):
    """The moments that end the phases, in their order; each has the name of the phase that it ends."""

    EARLIER = "earlier"
    JOINED = "join"
    MET = "rendezvous"
    DETECTED = "detect"
    ASSIGNED = "assign"
    DECIDED = "decide"
    PUBLISHED = "publish"
    STOPPED = "stop"
    HEARD_GO = "barrier"
    SPAWNED = "spawn"
    ASKED_FOR_GROUP = "script"
    GROUPED = "group"
    RESTORED = "restore"
    SERVED = "serve"
    STEPPED = "step"


PS_ORDER: Final = (
    PhaseEnd.EARLIER,
    PhaseEnd.JOINED,
    PhaseEnd.MET,
    PhaseEnd.DETECTED,
    PhaseEnd.STOPPED,
    PhaseEnd.ASSIGNED,
    PhaseEnd.DECIDED,
    PhaseEnd.PUBLISHED,
    PhaseEnd.HEARD_GO,
    PhaseEnd.SPAWNED,
    PhaseEnd.ASKED_FOR_GROUP,
    PhaseEnd.GROUPED,
    PhaseEnd.RESTORED,
    PhaseEnd.SERVED,
    PhaseEnd.STEPPED,
)
"""The phases of a parameter-server job, in which the processes of a node end before its tasks start again."""
LESSER: Final = frozenset({PhaseEnd.ASSIGNED, PhaseEnd.HEARD_GO})
"""Phases that the line shows only when they are long."""
ENDS: Final = {
    PhaseEnd.SPAWNED: "workers run again in",
    PhaseEnd.GROUPED: "process group up again in",
    PhaseEnd.RESTORED: "state restored in",
    PhaseEnd.SERVED: "back in",
    PhaseEnd.STEPPED: "back in",
}
STARTS: Final = {
    PhaseEnd.SPAWNED: "workers run",
    PhaseEnd.GROUPED: "process group up",
    PhaseEnd.RESTORED: "state restored",
    PhaseEnd.SERVED: "serves",
    PhaseEnd.STEPPED: "first step",
}
"""Words for the last known phase: a script that reports no steps is observed only up to its process group."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """The result of one recovery, or of a first start. Times are in seconds.

    `before` is the generation that ended, 0 of a first start, `g` the one that replaced it. `text` says what happened,
    in words. `began` is on the clock of the node that reports it. `between_steps`: it is counted from the last step.
    `tells`: this node reports it to users. `last_step`, which was made at `last_at`, and `restored_step` are None if
    they were not reported. In a parameter-server job `rev` is the revision that started the tasks; `foreign` says that
    another node proposed it and knows how it began, and `asked_at` is when this node received it.
    """

    why: ChangeReason
    text: str
    before: int
    g: int
    began: float
    phases: tuple[tuple[PhaseEnd, float], ...]
    between_steps: bool = False
    start: bool = False
    tells: bool = True
    last_step: int | None = None
    restored_step: int | None = None
    last_at: float | None = None
    rev: int = 0
    foreign: bool = False
    asked_at: float = 0.0

    @property
    def total_s(self) -> float:
        """The length of the recovery."""
        return sum(length for _, length in self.phases)

    @property
    def end(self) -> PhaseEnd | None:
        """Its last known moment."""
        return self.phases[-1][0] if self.phases else None

    @property
    def complete(self) -> bool:
        """Whether its end is known."""
        return self.end in ENDS

    @property
    def redone(self) -> int | None:
        """Steps that are repeated, None if that is not known."""
        if self.last_step is None or self.restored_step is None:
            return None
        return max(self.last_step - max(self.restored_step, 0), 0)

    @property
    def line(self) -> str:
        """One line for users: what happened, how long it took, and the time of each phase."""
        parts = [f"{name} {length * 1000:.0f}" for name, length in shown(self.phases)]
        if parts:
            parts[0] += " ms"
        redone = f"; at least {counted(self.redone, 'step')} repeated" if self.redone else ""
        text = self.text if len(self.text) <= TEXT_MAX else f"{self.text[: TEXT_MAX - 1]}…"
        return f"{text}: {self._how_long}: {' · '.join(parts)}{redone}"

    @property
    def _how_long(self) -> str:
        total = f"{self.total_s:.2f} s"
        end = self.end if self.end in ENDS else PhaseEnd.SPAWNED
        assert end is not None
        if not self.complete:
            return f"not back after {total}"
        if self.start:
            return f"{STARTS[end]} {total} after the command"
        if self.between_steps and end is PhaseEnd.STEPPED:
            return f"{total} between steps"
        return f"{ENDS[end]} {total}"

    @property
    def fields(self) -> dict[str, object]:
        """The recovery for programs."""
        values: dict[str, object] = {
            "why": str(self.why),
            "reason": self.text,
            "before": self.before or None,
            "total_s": round(self.total_s, 4),
            "phases": {str(name): round(length, 4) for name, length in self.phases},
            "between_steps": self.between_steps,
            "complete": self.complete,
            "last_step": self.last_step,
            "restored_step": self.restored_step,
        }
        return {**values, "revision": self.rev} if self.rev else values


def begun(recovery: Recovery, text: str, lengths: Mapping[str, float]) -> Recovery:
    """Add what the leader noted of a recovery's beginning: `text` says what happened, `lengths` are its phases.

    The node that proposed it detected a node failure before the node that takes over, which may have joined later. A
    worker failure was detected first by its own node, which stopped the processes: then only the leader's last phases
    are not known.
    """
    known = [(mark, lengths[mark]) for mark in PS_ORDER if mark in lengths]
    own, asked_at = _moments(recovery.began, recovery.phases), recovery.asked_at + ROUNDING_S
    if own.get(PhaseEnd.STOPPED, inf) > asked_at:
        began, since_at = recovery.asked_at - _total(known), recovery.asked_at
        later = {mark: at for mark, at in own.items() if at > asked_at}
        if PhaseEnd.EARLIER in later or {mark for mark, _ in known} & later.keys():
            since_at = later.pop(PhaseEnd.EARLIER, since_at)
            known = [(PhaseEnd.EARLIER, since_at - began)]
        since = phases(since_at, later, PS_ORDER)
        return replace(recovery, text=text or recovery.text, began=began, phases=(*known, *since), start=False)
    last = [(mark, length) for mark, length in known if mark in (PhaseEnd.DECIDED, PhaseEnd.PUBLISHED)]
    assigned_at = own.get(PhaseEnd.ASSIGNED, inf)
    if assigned_at > asked_at or dict(recovery.phases)[PhaseEnd.ASSIGNED] < _total(last):
        return recovery
    decided_at = assigned_at - _total(last)
    marks = own | {PhaseEnd.ASSIGNED: decided_at} | _moments(decided_at, last)
    return replace(recovery, phases=phases(recovery.began, marks, PS_ORDER))


def _moments(began: float, lengths: Iterable[tuple[PhaseEnd, float]]) -> dict[PhaseEnd, float]:
    """Return when each phase ended."""
    moments, at = dict[PhaseEnd, float](), began
    for mark, length in lengths:
        at += length
        moments[mark] = at
    return moments


def _total(lengths: Sequence[tuple[PhaseEnd, float]]) -> float:
    return sum(length for _, length in lengths)


def phases(
    began: float, marks: Mapping[PhaseEnd, float], order: Sequence[PhaseEnd] = tuple(PhaseEnd)
) -> tuple[tuple[PhaseEnd, float], ...]:
    """Return the time between the marks, in their order.

    A phase that ended before its predecessor took no time and is left out, except for the last, which shows how far
    the recovery came.
    """
    lengths, at = [], began
    present = [mark for mark in order if mark in marks]
    for mark in present:
        if marks[mark] >= at or mark is present[-1]:
            lengths.append((mark, max(marks[mark] - at, 0.0)))
            at = max(at, marks[mark])
    return tuple(lengths)


def shown(lengths: Sequence[tuple[PhaseEnd, float]]) -> list[tuple[PhaseEnd, float]]:
    """Return the phases that the line shows: a short lesser one is counted in the one after it."""
    kept, more = [], 0.0
    for index, (mark, length) in enumerate(lengths):
        if mark in LESSER and length + more < NOTICEABLE_S and index + 1 < len(lengths):
            more += length
            continue
        kept.append((mark, length + more))
        more = 0.0
    return kept
