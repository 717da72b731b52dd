"""The course of training in the store: who has rank 0 writes it, and the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from elastic.channel.messages import Progress
from elastic.core.kv import Delete, KeyRange, Put
from elastic.core.view import encode
from elastic.errors import OutcomeUnknown, StoreUnavailable
from launcher.agent.publishers import CurvePublisher
from launcher.history import training_curve
from launcher.history.training_curve import CurvePoint, TrainingCurve
from launcher.workers.reports.states import TrackedProcess
from tests.support.single_job_store import OneJob
from tests.support.strategies import KEYS
from tests.support.worker_messages import tracked


class Job(OneJob):
    """A store with one job, and a node whose workers report."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.now = 1000.0
        self.back = 0.0
        """So far the wall clock has been set back."""

    def node(self, g: int = 1, incarnation: str = "i1") -> Node:
        """An agent that has just begun, with workers of generation `g`."""
        node = Node(self)
        node.begin(g, incarnation)
        return node

    @property
    def stored(self) -> TrainingCurve | None:
        entries = self.core.list(KeyRange.key(KEYS.curve)).entries
        return training_curve.read(entries[0].value) if entries else None

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Generation and step of what is stored."""
        return [(point.g, point.step) for point in self.stored.points] if self.stored else []


class Node:
    """One agent's writer, and its workers."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workers: dict[int, TrackedProcess] = {}
        self.writer = CurvePublisher(
            job.store, KEYS, job.agent_log, clock=lambda: job.now - job.back, steady=lambda: job.now
        )

    def begin(self, g: int, incarnation: str = "i1") -> None:
        self.workers = {rank: tracked(rank, g) for rank in range(2)}
        self.writer.begin(incarnation)

    def report(self, *steps: int, rank: int = 0, every_s: float = 1.0, **metrics: float | None) -> None:
        for step in steps:
            message = Progress(step, 2, metrics)
            self.workers[rank].heard(message, self.job.now)
            self.writer.on_message(self.workers[rank], message)
            self.job.now += every_s

    def run(self, body: Callable[[], Awaitable[None]] | None = None) -> None:
        """Do something while it writes; on return it has left."""

        async def main() -> None:
            running = asyncio.create_task(self.writer.run())
            if body is not None:
                await body()
            await self.writer.settle(10)
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(main())


@pytest.fixture
def job(tmp_path: Path) -> Any:
    it = Job(tmp_path)
    yield it
    it.console.close()


def test_no_agent_watches_it() -> None:
    assert not any(KEYS.curve in span for span in (*KEYS.everything, *KEYS.followed("a")))


def test_what_rank_0_reports_is_written_once_with_its_newest_step(job: Job) -> None:
    node, before = job.node(), job.core.revision
    node.report(1, 2, 3, loss=0.5, lr=0.1)
    node.report(4, every_s=0.0, loss=0.25)
    node.run()
    assert job.steps == [(1, 1), (1, 2), (1, 3), (1, 4)]
    assert job.stored is not None
    assert (job.stored.names, job.stored.points[-1]) == (("lr",), CurvePoint(4, 1003.0, 1, 0.25, 1.0, (0.1,)))
    assert job.core.revision == before + 1


def test_other_ranks_are_not_listened_to_and_who_has_none_writes_nothing(job: Job) -> None:
    node, before = job.node(), job.core.revision
    node.report(1, 2, 3, rank=1)
    node.run()
    assert job.core.revision == before


def test_a_thousand_reports_in_a_second_are_its_first_and_the_newest(job: Job) -> None:
    node = job.node()
    node.report(*range(1, 901), every_s=0.001)
    node.run()
    assert job.steps == [(1, 1), (1, 900)]


def test_the_course_goes_on_after_the_wall_clock_was_set_back(job: Job) -> None:
    node = job.node()
    node.report(1, 2, 3, 4)
    job.back = 500.0
    node.report(5, 6, 7, 8)
    node.run()
    assert {1, 2, 3, 4} < {step for _, step in job.steps}
    assert len(job.steps) == 8, "one point in each second, as before"


def test_who_takes_over_reads_what_is_there_and_goes_on(job: Job) -> None:
    first = job.node()
    first.report(1, 2, 3)
    first.run()
    second = job.node(g=2)
    second.report(2, 3)
    second.run()
    assert job.steps == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3)]


def test_the_end_of_a_generation_is_written_while_the_agent_goes_on(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.agent.publishers.ENDED_S", 0.0)
    node, written = job.node(), asyncio.Event()
    txn = job.store.txn

    async def told(*arguments: Any) -> Any:
        result = await txn(*arguments)
        written.set()
        return result

    monkeypatch.setattr(job.store, "txn", told)

    async def body() -> None:
        for g in (1, 2):
            node.begin(g)
            node.report(g * 10, g * 10 + 1)
            node.writer.hurry()
            await written.wait()
            written.clear()
            assert job.steps[-1] == (g, g * 10 + 1)

    node.run(body)


def test_a_write_that_another_node_came_before_has_what_both_know(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    other = training_curve.write(TrainingCurve(points=(CurvePoint(7, 900.0, 1),)))
    txn, others = job.store.txn, [other]

    async def overtaken(*arguments: Any) -> Any:
        if others:
            job.core.txn((), (Put(KEYS.curve, others.pop()),))
        return await txn(*arguments)

    monkeypatch.setattr(job.store, "txn", overtaken)
    node = job.node(g=2)
    node.report(8)
    node.run()
    assert job.steps == [(1, 7), (2, 8)]


def test_a_document_that_cannot_be_read_is_replaced(job: Job) -> None:
    job.core.txn((), (Put(KEYS.curve, b"junk"),))
    node = job.node()
    node.report(1)
    node.run()
    assert job.steps == [(1, 1)]


def test_a_store_that_came_back_empty_or_was_told_to_forget_the_job_gets_nothing(job: Job) -> None:
    node = job.node()
    job.core.txn((), (Delete(KeyRange.key(KEYS.incarnation)),))
    node.report(1)
    node.run()
    assert job.stored is None
    job.core.txn((), (Put(KEYS.incarnation, encode("i2")),))
    node = job.node()
    node.report(1)
    node.begin(1, "i2")
    node.report(5)
    node.run()
    assert job.steps == [(1, 5)]


@pytest.mark.parametrize("error", [StoreUnavailable("nobody is there"), OutcomeUnknown("perhaps")])
def test_a_store_that_does_not_answer_costs_a_line_of_detail_and_the_points_come_later(
    job: Job, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr("launcher.agent.publishers.ENDED_S", 0.0)
    node, asked = job.node(), asyncio.Event()

    async def silent(*_: Any, **__: Any) -> Any:
        asked.set()
        raise error

    async def body() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(job.store, "txn", silent)
            node.report(1)
            node.writer.hurry()
            await asked.wait()
        node.report(2)

    node.run(body)
    assert f"cannot write the training curve to etcd: {error}" in job.output.read_text()
    assert job.steps == [(1, 1), (1, 2)]
