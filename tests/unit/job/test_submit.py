"""Giving an order to a job in a store: what is written, and what is refused."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.model import SCHEMA, DrainOrder, FinalStatus
from elastic.core.view import encode
from elastic.errors import StoreUnavailable
from launcher.config.readers import np
from launcher.ctl.orders import STOP
from launcher.history import events
from launcher.history.events import EventKind
from launcher.job import stop as stop_module
from launcher.job.named_job import NamedJob, OtherSchema
from launcher.job.stop import stop
from launcher.job.submit import OrderRejected, drain, scale
from tests.support.stored_job import MEMBER, SPEC, Stored, awaited_code

SAVES = "j1: the workers of 1 node will save and exit, then its agent exits"
"""The answer to `stop` while one node is registered."""

ORDERS: dict[str, Callable[[NamedJob], Awaitable[object]]] = {
    "scale": lambda job: scale(job, np("3")),
    "drain": lambda job: drain(job, ["a"], None),
    "stop": lambda job: stop(job, "why", at_once=False),
    "stop --now": lambda job: stop(job, "why", at_once=True),
}


def given(job: NamedJob, order: str) -> object:
    async def awaited() -> object:
        return await ORDERS[order](job)

    return asyncio.run(awaited())


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def job(stored: Stored) -> NamedJob:
    """A job that runs on `a b`."""
    return stored.put("j1", "incarnation", "spec", "generation", "go", nodes=("a", "b"))


# What the job must be


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("ended", [False, True])
def test_a_job_of_another_schema_is_told_nothing(stored: Stored, job: NamedJob, order: str, ended: bool) -> None:
    if ended:
        stored.put("j1", "verdict")
    stored.core.txn((), (Put(job.keys.spec, msgspec.json.encode(msgspec.structs.replace(SPEC, schema=SCHEMA - 1))),))
    before = stored.core.list(KeyRange.prefix("/")).entries
    with pytest.raises(OtherSchema):
        given(job, order)
    assert stored.core.list(KeyRange.prefix("/")).entries == before


# What cannot be read


@pytest.mark.parametrize("name", ["spec", "incarnation", "generation", "go", "verdict"])
def test_a_job_of_which_something_cannot_be_read_is_stopped_at_once_and_not_with_a_save(
    stored: Stored, job: NamedJob, name: str
) -> None:
    key = job.keys.root + name
    stored.core.txn((), (Put(key, b"{bad"),))
    with pytest.raises(
        OrderRejected, match=f"j1: cannot parse {key}, .* end the job immediately: elastic-ctl stop --now"
    ):
        given(job, "stop")
    given(job, "stop --now")
    verdict = asyncio.run(job.view()).verdict
    assert verdict is not None
    assert (verdict.value.status, verdict.value.run) == (FinalStatus.STOPPED, 1)


def test_a_job_whose_spec_is_gone_is_stopped_at_once_and_not_with_a_save(stored: Stored, job: NamedJob) -> None:
    stored.core.txn((), (Delete(KeyRange.key(job.keys.spec)),))
    with pytest.raises(OrderRejected, match=f"j1: {job.keys.spec} is missing, .* elastic-ctl stop --now"):
        given(job, "stop")
    given(job, "stop --now")
    assert job.keys.verdict in stored.left()


def test_a_job_that_never_began_is_not_stopped(stored: Stored) -> None:
    with pytest.raises(OrderRejected, match="j1 has never started"):
        given(stored.put("j1", "incarnation"), "stop --now")


@pytest.mark.parametrize("name", ["spec", "incarnation"])
def test_where_nothing_can_be_read_any_more_a_stop_is_waited_for_to_its_end(
    stored: Stored, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    job = stored.put("j1", "incarnation")
    stored.core.txn((), (Put(job.keys.root + name, b"{bad"), Delete(KeyRange.key(job.keys.generation))))
    assert STOP.run is not None
    assert asyncio.run(awaited_code(STOP.run(job, argparse.Namespace(now=True, no_wait=False, yes=True)))) == 0
    assert "Job j1 was stopped" in capsys.readouterr().out


def test_nodes_are_told_to_leave_and_np_is_changed_where_the_incarnation_cannot_be_read(
    stored: Stored, job: NamedJob
) -> None:
    stored.core.txn((), (Put(job.keys.incarnation, b"{bad"),))
    given(job, "drain")
    given(job, "scale")
    view = asyncio.run(job.view())
    assert list(view.leaves) == ["a"]
    assert view.spec is not None
    assert str(view.spec.value.np) == "3"


# What is told of it


@pytest.mark.parametrize("before", [0, events.KEPT])
def test_a_verdict_that_an_operator_writes_stands_in_the_history_after_the_order(
    stored: Stored, job: NamedJob, before: int
) -> None:
    for number in range(before):
        stored.event(job.job_id, float(number))
    given(job, "stop --now")
    listing = stored.core.list(KeyRange.prefix(job.keys.events))
    order, verdict = events.read(job.keys, listing.entries)[-2:]
    assert (order.what, order.g, order.text) == (EventKind.ACTION, 3, "why")
    assert (verdict.what, verdict.g, verdict.run, verdict.node) == (EventKind.VERDICT, 3, 1, order.node)
    assert (verdict.status, verdict.reason, verdict.text) == (FinalStatus.STOPPED, "why", "stopped: why")
    assert len(listing.entries) <= events.KEPT


def test_an_order_to_save_and_to_end_is_no_verdict_yet(stored: Stored, job: NamedJob) -> None:
    given(job, "stop")
    (event,) = events.read(job.keys, stored.core.list(KeyRange.prefix(job.keys.events)).entries)
    assert event.what is EventKind.ACTION


# Many nodes at once


def leaves(job: NamedJob) -> dict[str, int]:
    """Who is told to leave, and in which revision that was written."""
    return {node: one.mod_revision for node, one in asyncio.run(job.view()).leaves.items()}


@pytest.mark.parametrize(("count", "changes"), [(1, 1), (3, 1), (40, 1), (100, 3)])
def test_a_host_with_many_nodes_is_drained_in_as_few_changes_as_a_transaction_allows(
    stored: Stored, count: int, changes: int
) -> None:
    nodes = [f"n{number:03}" for number in range(count)]
    job = stored.put("j1", "incarnation", "spec", "generation", "go", nodes=tuple(nodes))
    for number in range(events.KEPT):
        stored.event("j1", float(number))
    old = encode(DrainOrder(reason="x", within_s=9.0))
    for name in [*(f"gone{number}" for number in range(200)), "n000"]:
        stored.core.txn((), (Put(job.keys.leave(name), old),))
    line, told = asyncio.run(drain(job, ["h"], None))
    assert told == nodes
    assert line.startswith(f"j1: draining {', '.join(nodes)}; ")
    found = {node: at for node, at in leaves(job).items() if node in nodes}
    assert sorted(found) == sorted(nodes)
    assert len(set(found.values())) == changes
    assert len(leaves(job)) < count + 200
    texts = [event.text for event in events.read(job.keys, stored.core.list(KeyRange.prefix(job.keys.events)).entries)]
    assert " ".join(text.removeprefix("elastic-ctl drain ") for text in texts[-changes:]) == " ".join(nodes)


def test_a_node_that_left_meanwhile_is_not_told_and_the_others_are(
    stored: Stored, job: NamedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = stored.store.txn

    async def overtaken(*arguments: Any) -> Any:
        stored.core.txn((), (Delete(KeyRange.key(job.keys.member("a"))),))
        return await txn(*arguments)

    monkeypatch.setattr(stored.store, "txn", overtaken)
    assert asyncio.run(drain(job, ["a", "b"], None))[1] == ["b"]
    assert list(leaves(job)) == ["b"]


# A job in which nobody is registered


@pytest.fixture
def empty(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> NamedJob:
    """A job that no node is registered in; leases are short."""
    monkeypatch.setattr(stop_module, "RETURN_SPARE_S", 0.05)
    job = stored.put("j1", "incarnation", "generation", "go")
    stored.core.txn((), (Put(job.keys.spec, encode(msgspec.structs.replace(SPEC, lease_ttl_s=0.0))),))
    return job


def stopped(job: NamedJob, tell: Callable[[str], object]) -> str:
    return asyncio.run(stop(job, "why", at_once=False, tell=tell))[0]


def test_it_ends_when_none_has_come_back_for_a_lease(stored: Stored, empty: NamedJob) -> None:
    told: list[str] = []
    before: list[list[str]] = []

    def tell(line: str) -> None:
        told.append(line)
        before.append(stored.left())

    assert stopped(empty, tell) == "j1 is stopped"
    assert told == ["no node is registered: j1 ends unless a node returns within 0.05 s"]
    assert empty.keys.halt in before[0]
    assert empty.keys.verdict not in before[0]
    assert empty.keys.verdict in stored.left()


def test_a_node_that_comes_back_meanwhile_saves(
    stored: Stored, empty: NamedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_module, "RETURN_SPARE_S", 60.0)
    back = Put(empty.keys.member("a"), encode(MEMBER))
    assert stopped(empty, lambda _: stored.core.txn((), (back,))) == SAVES
    assert empty.keys.verdict not in stored.left()


def test_a_node_that_comes_back_in_the_last_moment_saves(
    stored: Stored, empty: NamedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    txn = stored.store.txn
    back = Put(empty.keys.member("a"), encode(MEMBER))

    async def overtaken(compares: Any, then: Any, *more: Any) -> Any:
        if any(isinstance(one, Put) and one.key == empty.keys.verdict for one in then):
            stored.core.txn((), (back,))
        return await txn(compares, then, *more)

    monkeypatch.setattr(stored.store, "txn", overtaken)
    assert stopped(empty, lambda _: None) == SAVES
    assert empty.keys.verdict not in stored.left()


def test_time_in_which_etcd_does_not_answer_does_not_count(
    stored: Stored, empty: NamedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = stored.store.list
    back = Put(empty.keys.member("a"), encode(MEMBER))
    asked = 0

    async def away(*arguments: Any, **how: Any) -> Any:
        nonlocal asked
        if arguments[0] == KeyRange.key(empty.keys.spec):
            asked += 1
            if asked == 5:
                stored.core.txn((), (back,))
            raise StoreUnavailable("nobody answered")
        return await listing(*arguments, **how)

    monkeypatch.setattr(stored.store, "list", away)
    assert stopped(empty, lambda _: None) == SAVES
    assert asked == 5


def test_it_is_ended_at_once_where_that_is_ordered(stored: Stored, empty: NamedJob) -> None:
    assert asyncio.run(stop(empty, "why", at_once=True))[0] == "j1 is stopped"
    assert empty.keys.verdict in stored.left()


def test_a_key_of_a_member_that_cannot_be_read_is_named(stored: Stored, empty: NamedJob) -> None:
    key = empty.keys.member("a")
    stored.core.txn((), (Put(key, b"{bad"),))
    with pytest.raises(OrderRejected, match=f"cannot parse {key}, .* elastic-ctl stop --now"):
        stopped(empty, lambda _: None)
    assert empty.keys.verdict not in stored.left()
