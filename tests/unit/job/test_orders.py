"""What an operator writes into the store."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Put
from elastic.core.model import DrainOrder, JobMode, JobSpec
from elastic.core.ps.model import PsLayout
from elastic.core.transactions import Transaction
from elastic.core.view import StoredDocument, encode
from elastic.core.view_reader import decode
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.config.readers import np
from launcher.history.events import EventKind, HistoryEvent, remember
from launcher.job import orders
from launcher.job.named_job import NamedJob
from launcher.job.submit import scale
from launcher.workers.reports.stacks import stacks_in
from tests.support.job_specs import with_fields
from tests.support.job_transcript import Job

KEYS = JobKeys("j1")
NOW = 1000.0


def job_with(order: DrainOrder | None = None, of: str = "b") -> Job:
    """A job that runs on `a b`; one of them was told to leave before."""
    job = Job("2")
    job.run("a b")
    if order is not None:
        job.view = replace(job.view, leaves={of: StoredDocument(order, 9, 9)})
    return job


def order_of(transaction: Transaction, node: str = "b") -> DrainOrder:
    (put,) = [one for one in transaction.then if isinstance(one, Put)]
    leave = decode(KEYS, KEYS.leave(node), put.value)
    assert isinstance(leave, DrainOrder)
    return leave


@pytest.mark.parametrize(
    ("before", "said", "left"),
    [
        (None, None, None),
        (None, 8.0, 8.0),
        (DrainOrder(reason="x", within_s=60.0, at=NOW - 20), None, 60.0),
        (DrainOrder(reason="x", within_s=60.0, at=NOW - 20), 8.0, 8.0),
        (DrainOrder(reason="x", within_s=60.0, at=NOW - 20), 600.0, 60.0),
        (DrainOrder(reason="x", within_s=60.0, at=NOW - 3600), None, 60.0),
        (DrainOrder(reason="x", within_s=60.0, at=NOW + 3600), None, 60.0),
        (DrainOrder(reason="x", at=NOW - 20), 8.0, 8.0),
    ],
)
def test_the_shorter_of_two_deadlines_holds_whatever_the_clocks_of_those_who_gave_them(
    before: DrainOrder | None, said: float | None, left: float | None
) -> None:
    assert order_of(orders.order_drain(KEYS, job_with(before).view, ["b"], "y", said, NOW)).within_s == left


def test_an_order_takes_away_those_of_nodes_that_are_gone() -> None:
    transaction = orders.order_drain(KEYS, job_with(DrainOrder(reason="x"), of="gone").view, ["b"], "y", None, NOW)
    assert [one.range.start for one in transaction.then if not isinstance(one, Put)] == [KEYS.leave("gone")]


@pytest.mark.parametrize(
    ("spec", "wanted", "words"),
    [
        ({"ips": ("a", "b")}, "3", "the job's --ips lists 2; use at most 2"),
        ({"ips": ("a", "b")}, "2", ""),
        (
            {"layout": PsLayout(server_num=1, worker_num=1)},
            "2",
            "tasks of this parameter-server job",
        ),
        ({"layout": PsLayout(server_num=1, worker_num=1, separate=True)}, "2", ""),
        ({"mode": JobMode.TORCHRUN}, "2", ""),
    ],
)
def test_an_np_that_the_job_cannot_have_is_refused_with_the_mend(
    spec: dict[str, object], wanted: str, words: str
) -> None:
    unfit = orders.why_np_impossible(with_fields(JobSpec(np=np("2"), slots=1), **spec), np(wanted))
    assert (words in unfit) if words else unfit == ""


def in_words(job: Job, wanted: str) -> str:
    """What follows where the job gets that np."""
    core = MemoryCore()
    documents = (("spec", job.spec), ("generation", job.view.generation), ("go", job.view.go))
    found = {name: one.value if isinstance(one, StoredDocument) else one for name, one in documents if one is not None}
    core.txn((), [Put(KEYS.root + name, encode(document)) for name, document in found.items()])
    core.txn((), [Put(KEYS.member(node), encode(one.value)) for node, one in job.view.members.items()])
    said = asyncio.run(scale(NamedJob("j1", KEYS, MemoryStore(core, lambda: NOW), ("h:1",)), np(wanted)))
    return said.partition("; ")[2]


def test_a_world_that_runs_trains_on_where_more_are_wanted_than_there_are() -> None:
    job = job_with()
    assert in_words(job, "3:3") == (
        "training continues with 2; after the next change the job waits until 1 more node joins"
    )
    job.join("c")
    assert in_words(job, "3:3") == "2 nodes run: 1 waiting node will join"


def test_a_job_that_has_no_world_holds_where_more_are_wanted_than_there_are() -> None:
    job = Job("2")
    job.join("a")
    assert in_words(job, "3:3") == "1 node registered: the job waits until 2 more nodes join"


def test_an_event_of_a_time_after_which_no_key_has_room_moves_no_others() -> None:
    event = HistoryEvent(at=NOW, node="n", what=EventKind.ACTION, g=1)
    (put,) = remember(KEYS, event, [f"{KEYS.events}99999999999999-x"])
    assert isinstance(put, Put)
    assert put.key == f"{KEYS.events}00000001000000-n"


def test_stacks_steer_no_terminal_whatever_a_function_is_called() -> None:
    said = b'Thread 0x00 [\x1b]0;x\x07] (most recent call first):\n  File "a.py", line 1 in \x1b[31mf\n'
    assert "\x1b" not in stacks_in(said)
    assert 'File "a.py", line 1 in \ufffd[31mf' in stacks_in(said)
