"""What the first tests of the core found: each of these failed once."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from elastic.core.agent.state import Phase
from elastic.core.kv import Put
from elastic.core.membership.decision import Reason
from elastic.core.model import SCHEMA, ChangeReason, FinalStatus, Predecessor
from elastic.core.view_reader import decode
from elastic.errors import DocumentError
from tests.support import admission
from tests.support.agent_harness import Bench, joining, running, spare
from tests.support.job_transcript import Job, nodes_of
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS


def test_a_deeply_nested_document_is_a_document_error() -> None:
    with pytest.raises(DocumentError):
        decode(KEYS, KEYS.verdict, b'{"x":' + b"[" * 2000)


def test_a_node_of_an_older_run_counts_in_the_next() -> None:
    job = Job("2")
    job.run("a b")
    job.ok("a b")
    job.vanish("b")
    assert job.view.spec is not None
    spec = replace(job.view.spec, value=msgspec.structs.replace(job.spec, run=2))
    job.view = replace(job.view, spec=spec, outcomes={})
    job.join("c")
    assert nodes_of(job.form(0, Reason.FORMED)) == ["a", "c"]


def test_a_rerun_does_not_read_the_verdict_that_it_replaced() -> None:
    bench = joining(rerun=True, np="1")
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.offline = False
    bench.verdict(FinalStatus.FAILED)
    bench.wake()
    assert bench.phase is Phase.RUNNING


def test_another_store_does_not_make_the_agent_send_without_pause() -> None:
    bench = spare()
    bench.shelf = Shelf(KEYS)
    bench.shelf.put(KEYS.incarnation, "i2")
    bench.look()
    assert bench.phase is not Phase.ENDED


def test_a_member_that_drained_records_its_outcome_although_its_lease_is_lost() -> None:
    bench = running()
    bench.drain()
    bench.world(2, "a", why=ChangeReason.DRAIN, before=Predecessor(1, ("a", "b"), ChangeReason.DRAIN))
    bench.expire()
    bench.gone()
    assert 1 in bench.outcomes


def test_a_stray_key_stops_nothing() -> None:
    bench = Bench("a", "1:2")
    bench.shelf.put(KEYS.root + "note", "hello")
    bench.look()
    assert bench.facts.succession.decision is not None
    assert bench.facts.succession.decision.code is Reason.TRAINING


def test_a_deleted_incarnation_is_said_and_not_taken_for_another_store() -> None:
    bench = Bench("a", "1")
    bench.shelf.delete(KEYS.incarnation)
    bench.look()
    assert bench.phase is Phase.RUNNING
    assert bench.facts.succession.decision is not None
    assert "incarnation" in bench.facts.succession.decision.reason


def test_a_spec_of_another_version_and_shape_is_refused_with_both_versions() -> None:
    shelf = admission.a_job("a")
    shelf.core.txn((), (Put(KEYS.spec, b'{"schema":99,"np":"1:4","slots":2}'),))
    refusal = admission.plan(shelf, admission.me(), True, fresh=True).refusal
    assert f"has schema 99, and this agent has schema {SCHEMA}" in refusal
