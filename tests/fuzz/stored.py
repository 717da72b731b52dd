"""Documents of the store: whatever stands under any key, an agent goes on, and obeys nothing that it cannot read."""

from __future__ import annotations

import time
from collections.abc import Callable

from elastic.core.agent.actions import ExitAgent, StartWorkers, StopWorkers
from elastic.core.agent.events import WorkersGone
from elastic.core.agent.state import Phase
from elastic.core.decide import decide
from elastic.core.kv import Delete, KeyRange, KeyValue, Put
from elastic.core.membership.decision import DecisionPolicy, WaitDecision
from elastic.core.membership.memory import DecisionMemory
from elastic.core.model import Outcome, OutcomeKind, SavedCheckpoint
from elastic.core.view import StoreView
from elastic.core.view_reader import ViewReader
from launcher.doctor.job import standing_checks
from launcher.job import status, status_text
from launcher.job.absent_nodes import absent_nodes
from launcher.text import failure_report
from tests.fuzz.target import Target
from tests.support.agent_harness import Bench, gated, joining, running, serving, stopping
from tests.support.job_transcript import worker_exit
from tests.support.strategies import KEYS

SLOW_S = 5.0
DELETED = b"-"
STAGES: tuple[Callable[[], Bench], ...] = (running, serving, gated, stopping, joining, lambda: first())


def first() -> Bench:
    """The proposer, whose workers run beside those of another node."""
    bench = Bench(node="a", np="2")
    bench.others("b")
    assert bench.phase is Phase.RUNNING
    return bench


def documents() -> dict[str, bytes]:
    """A job's keys with their documents, each after the root."""
    bench = stopping()
    ended = Outcome(ended=OutcomeKind.FAILED, over=True, host="h", exits=(worker_exit(0, 1),))
    bench.shelf.put(KEYS.outcome(1, "a"), ended)
    bench.shelf.put(KEYS.saved, SavedCheckpoint(step=7, host="h", folder="/ckpt", run=1, g=1))
    found = {entry.key.removeprefix(KEYS.root): entry.value for entry in bench.shelf.contents}
    bench.verdict()
    bench.go(2)
    found |= {f"{name}": bench.shelf.entry(KEYS.root + name).value for name in ("verdict", "go")}  # type: ignore[union-attr]
    return found


def entries(data: bytes) -> dict[str, bytes]:
    """What is to be written: a key and its value on each line."""
    found = {}
    for line in data.split(b"\n")[1:]:
        name, _, value = line.partition(b" ")
        found[KEYS.root + name.decode(errors="replace")] = value
    return found


def store(data: bytes) -> None:
    """An agent at work sees the documents change, and then put right again.

    The first byte says in which state it is. What cannot be read alone makes no agent stop or start anything, but for
    the key of another member, which counts as lost where no link to it is up, and that of the leader, which another
    node takes.
    """
    begun = time.monotonic()
    stage = STAGES[data[0] % len(STAGES)] if data else running
    bench = stage()
    before = {entry.key: entry for entry in bench.shelf.contents}
    written = entries(data)
    asked = len(bench.asked)
    for key, value in written.items():
        lease = before[key].lease if key in before else 0
        core = bench.shelf.core
        core.txn((), (Delete(KeyRange.key(key)) if value == DELETED else Put(key, value, lease),))
    listing = bench.shelf.core.list(KEYS.everything[0])
    view = ViewReader(KEYS).read({entry.key: entry for entry in listing.entries}, listing.revision, complete=True)
    people(view)
    decision, _ = decide(view, DecisionMemory(), DecisionPolicy("a"), bench.now)
    if view.unreadable:
        assert isinstance(decision, WaitDecision), decision
    bench.look()
    bench.at(bench.now + 1)
    read = [key for key in written if key in view.damaged and not key.startswith((KEYS.members, KEYS.leader))]
    if written and len(read) == len(written):
        deeds = [one for one in bench.asked[asked:] if isinstance(one, StopWorkers | StartWorkers | ExitAgent)]
        assert not deeds or stage is joining, deeds
    put_right(bench, before, written)
    bench.at(bench.now + 2)
    if bench.phase is Phase.STOPPING:
        bench.tell(WorkersGone(bench.facts.workers.g, -1))
    assert time.monotonic() - begun < SLOW_S


def put_right(bench: Bench, before: dict[str, KeyValue], written: dict[str, bytes]) -> None:
    """A person writes what stood there, and deletes what did not."""
    for key in written:
        old = before.get(key)
        leases = {0, *(lease.id for lease in bench.shelf.core.leases)}
        if old is None:
            bench.shelf.core.txn((), (Delete(KeyRange.key(key)),))
        elif old.lease in leases:
            bench.shelf.core.txn((), (Put(key, old.value, old.lease),))
    bench.look()


def people(view: StoreView) -> None:
    """What people are told of it."""
    described = status.describe(view, KEYS.job_id)
    for line in [
        *status_text.head_lines(described, 1e9),
        *(text for node in described.nodes for text in status_text.cells(node, None)),
    ]:
        assert isinstance(line, str)
    standing_checks(view, KEYS.job_id)
    absent_nodes(view)
    if view.verdict is not None:
        failure_report.ended_lines(view.verdict.value, KEYS.job_id, 1e9)
    if view.go is not None and view.go.value.cause is not None:
        failure_report.failure_lines(view.go.value.cause)


def seeds() -> tuple[bytes, ...]:
    found = documents()
    one = [b"%c\n%s %s" % (65 + at % 6, name.encode(), value) for at, (name, value) in enumerate(found.items())]
    alone = [b"%c\n%s %s" % (65 + at, b"go", found["go"]) for at in range(len(STAGES))]
    everything = b"\n".join(b"%s %s" % (name.encode(), value) for name, value in found.items())
    return (*one, *alone, b"A\n" + everything, b"F\nmembers/b -\nmembers/a -", b"A\nspec -", b"A\nmembers/b -")


TARGETS = (Target("store", store, seeds()),)
