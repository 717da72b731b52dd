"""Forgetting a job, and listing jobs: what is read, and what is deleted when."""

from __future__ import annotations

import argparse
import asyncio
from typing import Any

import pytest

from elastic.core.kv import Put
from elastic.core.model import FinalStatus
from elastic.core.view import encode
from launcher.ctl import forget
from launcher.job import listing
from launcher.job.listing import jobs
from launcher.job.named_job import NamedJob, NoSuchJob
from tests.support.stored_job import MEMBER, Stored, awaited_code


@pytest.fixture
def stored() -> Stored:
    return Stored()


def forgotten(job: NamedJob) -> int:
    assert forget.COMMAND.run is not None
    return asyncio.run(awaited_code(forget.COMMAND.run(job, argparse.Namespace(yes=True))))


def test_an_ended_job_is_deleted_whole_and_one_whose_name_begins_the_same_is_not(
    stored: Stored, capsys: pytest.CaptureFixture[str]
) -> None:
    job = stored.put("j1", "incarnation", "spec", "generation", "go", "verdict")
    for at in (1.0, 2.0):
        stored.event("j1", at)
    stored.put("j10", "spec")
    assert forgotten(job) == 0
    assert stored.left() == ["/p/j10/spec"]
    assert capsys.readouterr().out == (
        "Deleted the record of job j1: 7 keys in etcd (2 events). Its logs and checkpoints stay.\n"
    )


def test_a_job_with_members_stays_and_they_are_named(stored: Stored) -> None:
    job = stored.put("j1", "incarnation", "verdict", nodes=("a", "b"))
    before = stored.left()
    with pytest.raises(forget.JobActive, match=r"2 registered nodes \(a, b\).* stop it first: elastic-ctl stop"):
        forgotten(job)
    assert stored.left() == before


def test_a_node_that_joins_in_that_moment_keeps_its_job(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    job = stored.put("j1", "incarnation", "spec")
    txn = stored.store.txn

    async def overtaken(*arguments: Any) -> Any:
        stored.core.txn((), (Put(job.keys.member("late"), encode(MEMBER)),))
        return await txn(*arguments)

    monkeypatch.setattr(stored.store, "txn", overtaken)
    with pytest.raises(forget.JobActive, match="1 registered node "):
        forgotten(job)
    assert job.keys.spec in stored.left()


@pytest.mark.parametrize("name", ["incarnation", "spec", "generation", "verdict", "members/a/b"])
def test_a_job_of_which_something_cannot_be_read_is_forgotten_if_no_key_of_a_member_is_there(
    stored: Stored, name: str
) -> None:
    job = stored.put("j1", "incarnation", "spec", "generation", "go", "verdict")
    stored.core.txn((), (Put(job.keys.root + name, b"{bad"),))
    if name.startswith("members/"):
        with pytest.raises(forget.JobActive, match=r"1 registered node \(a/b\)"):
            forgotten(job)
    else:
        assert forgotten(job) == 0
        assert stored.left() == []


def test_what_a_late_node_left_of_a_history_can_be_forgotten_too(stored: Stored) -> None:
    job = stored.put("j1")
    with pytest.raises(NoSuchJob):
        forgotten(job)
    stored.event("j1", 1.0)
    assert forgotten(job) == 0
    assert stored.left() == []


# The list of jobs


def test_each_job_is_a_line_with_its_state_in_words(stored: Stored) -> None:
    stored.put("ended", "incarnation", "spec", "generation", "go", "verdict")
    stored.put("runs", "incarnation", "spec", "generation", "go", nodes=("a", "b", "c"))
    stored.put("starts", "incarnation", "spec", "generation", nodes=("a", "b"))
    stored.put("waits", "incarnation", "spec", nodes=("a",))
    stored.put("left", "incarnation", "spec", "generation", "go")
    stored.event("runs", 7.0)
    stored.event("runs", 9.5)
    found = {line.job_id: line for line in asyncio.run(jobs(stored.store, "/p"))}
    assert {name: line.state for name, line in found.items()} == {
        "ended": "failed",
        "runs": "running",
        "starts": "starting",
        "waits": "waiting",
        "left": "no nodes",
    }
    runs = found["runs"]
    assert (runs.nodes, runs.of, runs.generation, runs.world_size, runs.np) == (3, 2, 3, 2, "2")
    assert (runs.last_event_at, runs.verdict, runs.reason) == (9.5, None, "c was lost")
    assert (found["ended"].verdict, found["ended"].reason) == (FinalStatus.FAILED, "no restart is left")


def test_what_is_no_job_is_no_line_and_damaged_documents_are_said(stored: Stored) -> None:
    for key in ("/p/plain", "/p/a b/spec", "/p/team/j1/spec", "/p0/x/spec"):
        stored.core.txn((), (Put(key, b"x"),))
    stored.event("forgotten", 1.0)
    stored.core.txn((), (Put("/p/bad/spec", b"\xff"),))
    (line,) = asyncio.run(jobs(stored.store, "/p/"))
    assert (line.job_id, line.state, line.np) == ("bad", "unreadable", None)


def test_a_list_of_many_pages_is_whole(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"j{number}" for number in range(12)] + ["j1-x", "j1.y"]
    for name in names:
        stored.put(name, "incarnation", "spec", nodes=("a", "b"))
    monkeypatch.setattr(listing, "PAGE", 5)
    found = asyncio.run(jobs(stored.store, "/p"))
    assert [line.job_id for line in found] == sorted(names)
    assert {line.nodes for line in found} == {2}
