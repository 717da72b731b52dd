"""The job's newest committed checkpoint in the store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from elastic.core.kv import KeyRange, Put
from elastic.core.model import SavedCheckpoint
from elastic.core.view import encode
from elastic.core.view_reader import decode
from elastic.errors import StoreUnavailable
from launcher.agent import publishers
from launcher.agent.publishers import CheckpointPublisher
from tests.support.single_job_store import OneJob
from tests.support.strategies import KEYS

OLD = SavedCheckpoint(step=500, host="a", folder="/data", run=1, g=2)


@pytest.mark.parametrize(
    ("run", "g", "step", "newer"),
    [(1, 2, 501, True), (1, 2, 500, False), (1, 2, 499, False), (1, 3, 10, True), (1, 1, 900, False), (2, 1, 0, True)],
)
def test_a_later_generation_counts_more_than_a_higher_step(run: int, g: int, step: int, newer: bool) -> None:
    assert SavedCheckpoint(step=step, host="b", folder="/data", run=run, g=g).replaces(OLD) is newer
    assert OLD.replaces(None)


class Job(OneJob):
    """A store with one job, and a node whose workers save."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.steps = self.another()

    def another(self) -> CheckpointPublisher:
        """The writer of an agent that has just begun."""
        return CheckpointPublisher(self.store, KEYS, "a", self.agent_log)

    def commit(self, step: int, *, g: int = 2, incarnation: str = "i1") -> None:
        self.steps.committed(step, f"/data/{step}", run=1, g=g, incarnation=incarnation)

    def run(self, body: Callable[[], Awaitable[None]]) -> None:
        """Do something while the writer runs; on return everything is written."""

        async def main() -> None:
            self.steps = self.another()
            running = asyncio.create_task(self.steps.run())
            await body()
            await self.steps.settle(10)
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(main())

    def say(self, *steps: int, **more: Any) -> None:
        async def body() -> None:
            for step in steps:
                self.commit(step, **more)

        self.run(body)

    @property
    def stored(self) -> SavedCheckpoint | None:
        entries = self.core.list(KeyRange.key(KEYS.saved)).entries
        found = decode(KEYS, KEYS.saved, entries[0].value) if entries else None
        assert found is None or isinstance(found, SavedCheckpoint)
        return found


@pytest.fixture
def job(tmp_path: Path) -> Any:
    it = Job(tmp_path)
    yield it
    it.console.close()


def test_the_newest_of_many_is_written_once(job: Job) -> None:
    before = job.core.revision
    job.say(10, 30, 20)
    assert job.stored is not None
    assert (job.stored.step, job.stored.folder, job.stored.host) == (30, "/data/30", "a")
    assert job.core.revision == before + 1


def test_a_lower_step_of_a_later_generation_is_written_and_one_of_an_earlier_is_not(job: Job) -> None:
    job.core.txn((), (Put(KEYS.saved, encode(OLD)),))
    job.say(900, g=1)
    assert job.stored == OLD
    job.say(10, g=3)
    assert job.stored is not None
    assert job.stored.step == 10


def test_a_word_that_cannot_be_read_is_replaced(job: Job) -> None:
    job.core.txn((), (Put(KEYS.saved, b"junk"),))
    job.say(10)
    assert job.stored is not None
    assert job.stored.step == 10


def test_a_store_that_came_back_empty_is_told_nothing(job: Job) -> None:
    job.say(10, incarnation="another")
    assert job.stored is None


def test_a_write_that_another_node_came_before_is_tried_again(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [5]
    ask = job.store.txn

    async def overtaken(compares: Any, then: Any) -> Any:
        if others:
            job.core.txn(
                (), (Put(KEYS.saved, encode(SavedCheckpoint(step=others.pop(), host="b", folder="", run=1, g=2))),)
            )
        return await ask(compares, then)

    monkeypatch.setattr(job.store, "txn", overtaken)
    job.say(10)
    assert job.stored is not None
    assert job.stored.step == 10


def test_what_workers_said_last_while_another_word_was_being_written_is_written_at_once(
    job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishers, "CHECKPOINT_PAUSE_S", 1000.0)
    ask, last = job.store.txn, [20]

    async def while_they_end(compares: Any, then: Any) -> Any:
        if last:
            job.commit(last.pop())
            job.steps.hurry()
        return await ask(compares, then)

    async def body() -> None:
        job.commit(10)
        await job.steps.settle(2)
        assert job.stored is not None
        assert job.stored.step == 20

    monkeypatch.setattr(job.store, "txn", while_they_end)
    job.run(body)


def test_a_store_that_does_not_answer_costs_a_line_of_detail(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(*_: Any, **__: Any) -> Any:
        raise StoreUnavailable("nobody is there")

    with monkeypatch.context() as patch:
        patch.setattr(job.store, "list", silent)
        job.say(10)
    job.say(20)
    assert job.stored is not None
    assert job.stored.step == 20
    assert "cannot write the checkpoint of step 10 to etcd: nobody is there" in job.output.read_text()


def test_workers_learn_the_newer_of_what_the_store_and_this_node_know(job: Job) -> None:
    assert job.steps.for_workers(None) == ""
    assert json.loads(job.steps.for_workers(OLD)) == {"step": 500, "host": "a", "folder": "/data"}
    job.commit(510)
    assert json.loads(job.steps.for_workers(OLD))["step"] == 510
    job.commit(20, g=4)
    assert json.loads(job.steps.for_workers(OLD))["step"] == 20
    later = msgspec.structs.replace(OLD, run=OLD.run + 1, step=3)
    assert json.loads(job.steps.for_workers(later))["step"] == 3


def test_after_the_store_came_back_as_another_one_its_first_generation_is_written(job: Job) -> None:
    async def body() -> None:
        job.commit(500, g=57)
        await job.steps.settle(10)
        job.core.txn((), (Put(KEYS.incarnation, encode("i2")), Put(KEYS.saved, b"")))
        job.commit(510, g=1, incarnation="i2")

    job.run(body)
    assert job.stored is not None
    assert (job.stored.g, job.stored.step) == (1, 510)
