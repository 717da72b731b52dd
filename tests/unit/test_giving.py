"""Giving an order to a job in a store: what is written, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from elastic.model import SCHEMA
from elastic.store.base import Put
from launcher.operate.drain import drain
from launcher.operate.job import Job
from launcher.operate.ordering import CannotOrder
from launcher.operate.scale import scale
from launcher.operate.stop import stop
from launcher.values import np
from tests.unit.test_forget import SPEC, Stored

ORDERS: dict[str, Callable[[Job], Awaitable[object]]] = {
    "scale": lambda job: scale(job, np("3")),
    "drain": lambda job: drain(job, ["a"], None),
    "stop": lambda job: stop(job, "why", at_once=False),
    "stop --now": lambda job: stop(job, "why", at_once=True),
}


def given(job: Job, order: str) -> object:
    async def awaited() -> object:
        return await ORDERS[order](job)

    return asyncio.run(awaited())


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def job(stored: Stored) -> Job:
    """A job that runs on `a b`."""
    return stored.put("j1", "incarnation", "spec", "generation", "go", nodes=("a", "b"))


# What the job must be


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("readable", [True, False])
def test_a_job_of_another_version_is_told_nothing(stored: Stored, job: Job, order: str, readable: bool) -> None:
    old = msgspec.json.encode(msgspec.structs.replace(SPEC, schema=SCHEMA - 1))
    stored.core.txn((), (Put(job.keys.spec, old if readable else old.replace(b'"slots":1', b'"slots":"1"')),))
    before = stored.left()
    words = f"job j1 runs schema {SCHEMA - 1}, this elastic-ctl has {SCHEMA}; use its version"
    with pytest.raises(CannotOrder, match=words):
        given(job, order)
    assert stored.left() == before


def test_of_a_job_that_has_ended_it_is_said_how_whatever_its_version(stored: Stored) -> None:
    job = stored.put("j1", "incarnation", "generation", "verdict")
    stored.core.txn((), (Put(job.keys.spec, msgspec.json.encode(msgspec.structs.replace(SPEC, schema=SCHEMA - 1))),))
    line, view = asyncio.run(stop(job, "why", at_once=False))
    assert "no restart is left" in line
    assert view is None
