"""The history of a job for users, in etcd: who changed the world, when, and why (pure).

The leader writes one short event for each generation, start signal, final status and eviction, after it was carried
out, and the node that reports a recovery writes one for it, once it is over. A final status set by a user is written
together with its event. In a parameter-server job the leader adds how the recovery of tasks began that start on another
node. Nothing depends on the history, and an event can be missing: its writer may have failed, or not know that its
proposal was accepted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec

from elastic._decode import UNREADABLE
from elastic._text import counted, joined
from elastic.core.agent.actions import NoteSilence
from elastic.core.keys import JobKeys
from elastic.core.kv import Delete, KeyRange, KeyValue, Operation, Put
from elastic.core.model import WORKER_ROLE, Cause, ChangeReason, FinalStatus, Generation, Go, Label, Verdict
from elastic.core.ps.model import ClusterSpec
from elastic.core.text import failed_processes_text
from elastic.core.transactions import Transaction
from elastic.core.view_reader import decode
from launcher.history.recorder_base import RecoveryBeginning
from launcher.history.recovery import Recovery

KEPT: Final = 200
"""Events that are kept; older ones are deleted."""
TEXT_MAX: Final = 1000
PHASES_MAX: Final = 32
NODES_MAX: Final = 64
"""Nodes of a generation that its event names; of the others it has the number."""
TAIL_MAX: Final = 20
LINE_MAX: Final = 400
"""Lines, and characters of a line, of the log of a process that failed."""
LOG_MAX: Final = 4096
AT_MAX: Final = 253_402_300_799
"""The last second of the year 9999, the last one that a calendar can name."""
_DIGITS: Final = 14
"""Digits of the milliseconds in a key, so that keys sort by time."""


LAST_MS: Final = 10**_DIGITS - 10**6
"""After the last milliseconds that fit there would be no room for further events."""


class EventKind(StrEnum):
    """The kinds of events."""

    GENERATION = "generation"
    GO = "go"
    VERDICT = "verdict"
    START = "start"
    RECOVERY = "recovery"
    TASKS = "tasks"
    ACTION = "action"
    EVICTION = "eviction"


At = Annotated[float, msgspec.Meta(ge=0, le=AT_MAX)]
"""A wall clock, seconds since the epoch."""
Steps = Annotated[int, msgspec.Meta(ge=-1, le=2**62)]
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MAX)]
Name = Annotated[str, msgspec.Meta(max_length=300)]


class FailureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The root cause of the failure of generation `g`: the process of that role and rank ended on `node`, with `code`.

    `words` say how, `log` is the path of its log there, `tail` has the log's last lines.
    """

    g: int
    host: Name
    node: Name
    rank: int
    code: int
    role: Label = WORKER_ROLE
    words: Text = ""
    log: Annotated[str, msgspec.Meta(max_length=LOG_MAX)] = ""
    tail: Annotated[tuple[Text, ...], msgspec.Meta(max_length=TAIL_MAX)] = ()


class HistoryEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event: `node` wrote it, `at` is that node's wall clock, `text` says everything in one sentence for users.

    The other fields are for programs. An event of an older version lacks them.

    ===================== =========================================================================================
    generation            `run`, `why`, `reason`, `nodes` (by M_id, at most `NODES_MAX`), `more` (further ones),
                          `world` (workers in all), `rev` (of a cluster spec), `failure` (which that revision fixes)
    go                    `charged` (restarts so far), `reason`, `failure` (of the generation before it)
    verdict               `run`, `status`, `reason`, `failure`
    start, recovery       `why`, `reason`, `before` (the generation that ended; 0 of a start), `began`, `phases`
                          (seconds, in their order), `complete`, `between_steps`, `last_step` and `restored_step`
                          (None: not reported), `last_at` (when that last step was made), `rev`
    tasks                 `phases`, `rev` in which the tasks start, `of`: the node that starts them
    eviction              `of`: the node that was evicted, its `host`, `silent_s`: for how long the writer had received
                          nothing from it, `by`: the other nodes that could not connect to it
    ===================== =========================================================================================
    """

    at: At
    node: Name
    what: EventKind
    g: int
    text: Text = ""
    phases: Annotated[Mapping[str, float], msgspec.Meta(max_length=PHASES_MAX)] = msgspec.field(default_factory=dict)
    rev: int = 0
    of: Name = ""
    run: int | None = None
    why: ChangeReason | None = None
    reason: Text = ""
    nodes: Annotated[tuple[Name, ...], msgspec.Meta(max_length=NODES_MAX)] = ()
    more: Annotated[int, msgspec.Meta(ge=0)] = 0
    world: int | None = None
    charged: int | None = None
    status: FinalStatus | None = None
    failure: FailureRecord | None = None
    before: int | None = None
    began: At | None = None
    complete: bool | None = None
    between_steps: bool | None = None
    last_step: Steps | None = None
    last_at: At | None = None
    restored_step: Steps | None = None
    host: Name = ""
    silent_s: float | None = None
    by: Annotated[tuple[Name, ...], msgspec.Meta(max_length=NODES_MAX)] = ()


def events_of(keys: JobKeys, transaction: Transaction, node: str, at: float) -> list[HistoryEvent]:
    """Return the events of a proposal that was carried out, none of any other transaction."""
    events = []
    for operation in transaction.then:
        if not isinstance(operation, Put) or operation.key not in (*keys.generations, keys.go, keys.verdict):
            continue
        match decode(keys, operation.key, operation.value):
            case Generation() as document:
                events.append(_of_generation(document, node, at))
            case Go() as go:
                parts = [*_words(go.cause), go.note, f"{counted(go.budget.charged, 'restart')} used"]
                text = "; ".join(filter(None, parts))
                fields = {"charged": go.budget.charged, "reason": go.note[:TEXT_MAX]}
                events.append(_event(EventKind.GO, go.g, text, node, at, **fields, failure=_failure(go.cause)))
            case Verdict() as end:
                text = "; ".join([f"{end.status}: {end.reason}", *_words(end.cause)])
                fields = {"run": end.run, "status": end.status, "reason": end.reason[:TEXT_MAX]}
                events.append(_event(EventKind.VERDICT, end.g, text, node, at, **fields, failure=_failure(end.cause)))
    return events


def of_recovery(recovery: Recovery, node: str, at: float, now: float) -> HistoryEvent:
    """Return the event of a recovery, or of a first start, at `at`, which is `now` on the clock of the recovery."""
    return _event(
        EventKind.START if recovery.start else EventKind.RECOVERY,
        recovery.g,
        recovery.line,
        node,
        at,
        phases=_lengths(recovery.phases),
        rev=recovery.rev,
        why=recovery.why,
        reason=recovery.text[:TEXT_MAX],
        before=recovery.before,
        began=_wall(recovery.began, at, now),
        complete=recovery.complete,
        between_steps=recovery.between_steps,
        last_step=recovery.last_step,
        last_at=_wall(recovery.last_at, at, now) if recovery.last_at is not None else None,
        restored_step=recovery.restored_step,
    )


def of_beginning(beginning: RecoveryBeginning, node: str, at: float) -> HistoryEvent:
    """Return the event of tasks that start on another node than `node`, which proposed it."""
    phases = _lengths(beginning.phases)
    return _event(
        EventKind.TASKS, beginning.g, beginning.text, node, at, phases=phases, rev=beginning.rev, of=beginning.node
    )


def of_eviction(note: NoteSilence, g: int, node: str, at: float) -> HistoryEvent:
    """Return the event of a silent node that `node`, the leader, has evicted from generation `g`."""
    others = f"{joined(note.by)} cannot connect to it"
    alone = f"there was no other node to ask, and {node} reached etcd meanwhile"
    text = f"{node} received nothing from {note.node} (host {note.host}) for {note.silent_s:.1f} s and cannot connect; "
    fields = {"of": note.node, "host": note.host, "silent_s": round(note.silent_s, 3), "by": note.by}
    return _event(EventKind.EVICTION, g, text + (f"{others} either" if note.by else alone), node, at, **fields)


def beginning(events: Iterable[HistoryEvent], recovery: Recovery, node: str) -> HistoryEvent | None:
    """Return what the leader noted of how a recovery of `node` began, None if it is missing."""
    at = (EventKind.TASKS, recovery.g, recovery.rev, node)
    return next((event for event in events if (event.what, event.g, event.rev, event.of) == at), None)


def remember(keys: JobKeys, event: HistoryEvent, present: Sequence[str]) -> tuple[Operation, ...]:
    """Return the operations that write an event, when these keys of events exist, in order; they delete the oldest.

    Keys keep the order of the events: if a clock is behind that of an earlier writer, the event is put right after the
    newest. A key with a time after which no key fits is ignored.
    """
    at_ms = int(event.at * 1000)
    times = (ms for key in present if (ms := _milliseconds(keys, key)) is not None)
    newest = max((ms for ms in times if ms < LAST_MS), default=-1)
    key = f"{keys.events}{max(at_ms, newest + 1, 0):0{_DIGITS}d}-{event.node}"
    put = Put(key, msgspec.json.encode(event))
    if len(present) < KEPT:
        return (put,)
    return put, Delete(KeyRange(keys.events, sorted(present)[-(KEPT - 1)]))


def written_at(keys: JobKeys, key: str) -> float | None:
    """Return when the event under a key was written, about: seconds since the epoch. None if it is no event's key."""
    at_ms = _milliseconds(keys, key)
    return at_ms / 1000 if at_ms is not None else None


def read(keys: JobKeys, entries: Iterable[KeyValue]) -> list[HistoryEvent]:
    """Return the events of a listing, oldest first. Entries that cannot be parsed are left out."""
    own, found = [entry for entry in entries if entry.key.startswith(keys.events)], []
    for entry in sorted(own, key=lambda entry: entry.key):
        with suppress(*UNREADABLE):
            found.append(_DECODER.decode(entry.value))
    return found


def _of_generation(document: Generation, node: str, at: float) -> HistoryEvent:
    count = len(document.members)
    world = f"{counted(count, 'node')}, world size {document.world_size}" if count else "all workers stop"
    cluster_spec = document if isinstance(document, ClusterSpec) else None
    return _event(
        EventKind.GENERATION,
        document.g,
        f"{world}: {document.reason}",
        node,
        at,
        rev=cluster_spec.rev if cluster_spec is not None else 0,
        run=document.run,
        why=document.why,
        reason=document.reason[:TEXT_MAX],
        nodes=tuple(place.node for place in document.members[:NODES_MAX]),
        more=max(count - NODES_MAX, 0),
        world=document.world_size,
        failure=_failure(cluster_spec.cause) if cluster_spec is not None else None,
    )


def _failure(cause: Cause | None) -> FailureRecord | None:
    if cause is None:
        return None
    first = cause.first
    return FailureRecord(
        g=cause.g,
        host=cause.host,
        node=cause.node,
        rank=first.rank,
        code=first.code,
        role=first.role,
        words=first.words[:TEXT_MAX],
        log=first.log[:LOG_MAX],
        tail=tuple(line[:LINE_MAX] for line in first.tail[-TAIL_MAX:]),
    )


def _lengths(phases: Iterable[tuple[str, float]]) -> dict[str, float]:
    return {str(name): round(length, 4) for name, length in phases}


def _wall(moment: float, at: float, now: float) -> float:
    """Return a moment of the clock that shows `now`, as a wall clock that shows `at`."""
    return min(max(round(at - (now - moment), 3), 0.0), AT_MAX)


def _event(what: EventKind, g: int, text: str, node: str, at: float, **fields: Any) -> HistoryEvent:
    return HistoryEvent(at=round(at, 3), node=node, what=what, g=g, text=text[:TEXT_MAX], **fields)


def _words(cause: Cause | None) -> list[str]:
    return [failed_processes_text([cause.first], cause.host)] if cause is not None else []


def _milliseconds(keys: JobKeys, key: str) -> int | None:
    text = key[len(keys.events) :].partition("-")[0]
    return int(text) if len(text) == _DIGITS and text.isascii() and text.isdigit() else None


_DECODER = msgspec.json.Decoder(HistoryEvent)
