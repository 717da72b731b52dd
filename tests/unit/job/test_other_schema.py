"""What programs that look at a job say of one of another schema: the two numbers, and nothing of its documents."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from elastic.core.kv import Put
from elastic.core.model import SCHEMA
from elastic.core.ps.model import Role
from elastic.core.view import encode
from launcher.config.readers import np
from launcher.ctl.events import COMMAND as EVENTS
from launcher.ctl.report import report
from launcher.ctl.status import COMMAND as STATUS
from launcher.doctor.job import job_checks
from launcher.job.inspect_client import node_of
from launcher.job.listing import JobLine, jobs
from launcher.job.named_job import NamedJob, OtherSchema
from launcher.job.stop import stop
from launcher.job.submit import drain, scale
from launcher.job.watch import JobWatch
from launcher.system.checks import Check, fail
from launcher.web.job_feed import JobFeeds
from tests.support.stored_job import SPEC, Stored

WORDS = f"job j1 has schema 99, and this elastic-ctl has schema {SCHEMA}"
FIX = "use the elastic-ctl of the job's version"


@pytest.fixture
def stored() -> Stored:
    return Stored()


@pytest.fixture
def job(stored: Stored) -> NamedJob:
    """A job of another schema: what its documents contain, this version does not know."""
    return foreign(stored)


def foreign(stored: Stored) -> NamedJob:
    job = stored.put("j1")
    keys = job.keys
    stored.core.txn((), (Put(keys.spec, b'{"schema":99,"nodes":"1-4"}'), Put(keys.incarnation, b"\xff")))
    stored.core.txn((), (Put(keys.verdict, b"{}"), Put(keys.generation, b"\x00"), Put(keys.member("a"), b"[]")))
    stored.core.txn((), (Put(keys.events + "00001000000000-a", b"{}"), Put(keys.curve, b"junk")))
    return job


def events(job: NamedJob) -> Awaitable[object]:
    assert EVENTS.run is not None
    return EVENTS.run(job, argparse.Namespace(output="text", follow=False))


def status(job: NamedJob) -> Awaitable[object]:
    assert STATUS.run is not None
    return STATUS.run(job, argparse.Namespace(output="text", watch=None))


READERS: dict[str, Callable[[NamedJob], Awaitable[object]]] = {
    "status": status,
    "status --watch": lambda job: JobWatch(job).__aenter__(),
    "events": events,
    "report": report,
    "scale": lambda job: scale(job, np("3")),
    "drain": lambda job: drain(job, ["a"], None),
    "stop": lambda job: stop(job, "why", at_once=False),
    "stop --now": lambda job: stop(job, "why", at_once=True),
    "logs, stacks": lambda job: node_of(job, Role.WORKER, 0, ""),
}


@pytest.mark.parametrize("reader", READERS)
def test_each_command_says_which_schemas_there_are_and_what_to_do(
    job: NamedJob, reader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def read() -> None:
        await READERS[reader](job)

    with pytest.raises(OtherSchema) as raised:
        asyncio.run(read())
    assert str(raised.value) == f"{WORDS}; {FIX}"
    assert raised.value.exit_code == 1
    assert capsys.readouterr() == ("", "")


def test_the_list_of_jobs_has_it_with_the_reason(stored: Stored, job: NamedJob) -> None:
    stored.put("j2", "incarnation", "spec")
    other, own = asyncio.run(jobs(stored.store, "/p"))
    assert other == JobLine(
        job_id="j1", state="unreadable", nodes=1, last_event_at=1_000_000.0, reason=f"{WORDS}; {FIX}"
    )
    assert (own.job_id, own.state) == ("j2", "no nodes")


def test_the_doctor_has_one_check_of_it(stored: Stored, job: NamedJob) -> None:
    async def checks() -> list[Check]:
        return [check async for check in job_checks(stored.store, job.keys)]

    assert asyncio.run(checks()) == [fail("job", WORDS, FIX)]


def test_who_watches_a_job_that_becomes_one_of_another_schema_is_told(stored: Stored) -> None:
    async def watched() -> None:
        job = stored.put("j1", "incarnation", "spec")
        async with JobWatch(job) as newest:
            stored.core.txn((), (Put(job.keys.spec, encode(msgspec.structs.replace(SPEC, schema=99))),))
            while newest.view.schema is None:
                await newest.changes(1.0)

    with pytest.raises(OtherSchema, match="has schema 99"):
        asyncio.run(watched())


def test_the_page_of_a_job_shows_the_reason_instead_of_its_documents(stored: Stored, job: NamedJob) -> None:
    async def shown() -> list[dict[str, bytes]]:
        feeds = JobFeeds(stored.store, "/p", ("h:1",))
        found = []
        try:
            async with feeds.of("j1") as feed:
                await feed.changed(0, 5.0)
                found.append(dict(feed.sections))
                stored.put("j1", "incarnation", "spec", "generation", "go")
                stored.core.txn((), (Put(job.keys.spec, encode(SPEC)),))
                while "head" not in feed.sections:
                    await feed.changed(feed.version, 5.0)
                found.append(dict(feed.sections))
                foreign(stored)
                while "head" in feed.sections:
                    await feed.changed(feed.version, 5.0)
                found.append(dict(feed.sections))
        finally:
            await feeds.close()
        return found

    first, readable, last = asyncio.run(shown())
    absent = msgspec.json.encode(f"{WORDS}; {FIX}")
    assert first == last == {"absent": absent, "outage": b"null"}
    assert readable["absent"] == b"null"
