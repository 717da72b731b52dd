"""Somebody deletes or damages what a node has written into the store: the node writes it once more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic.core.agent.actions import StopWorkers
from elastic.core.agent.events import LeaseRefreshed, ViewChanged
from elastic.core.agent.state import Phase
from elastic.core.kv import Put
from elastic.core.model import ChangeReason, OutcomeKind, Predecessor
from elastic.core.ps.model import Role
from tests.support.agent_harness import Bench, done, running, serving
from tests.support.strategies import KEYS

JUNK = b"\xff{"
BOTH = Predecessor(1, ("a", "b"), ChangeReason.SCALE_DOWN)


def junk(bench: Bench, key: str) -> None:
    """Somebody writes what nobody can read, without a lease."""
    bench.shelf.core.txn((), (Put(key, JUNK),))
    bench.look()


@pytest.mark.parametrize("how", ["deleted", "damaged", "taken from under its lease"])
def test_a_node_whose_key_is_taken_away_writes_it_again_and_its_workers_run_on(how: str) -> None:
    bench = running()
    key = KEYS.member("b")
    held = bench.shelf.entry(key)
    assert held is not None
    if how == "deleted":
        bench.unregister()
    elif how == "damaged":
        junk(bench, key)
    else:
        bench.shelf.core.txn((), (Put(key, held.value),))
        bench.look()
    now = bench.shelf.entry(key)
    assert now is not None
    assert (now.value, now.lease) == (held.value, bench.facts.registration.lease)
    assert now.lease != held.lease
    assert (bench.phase, bench.stops) == (Phase.RUNNING, [])
    assert bench.lines[-1] == "registered again; the workers kept running"


def test_a_node_whose_key_is_gone_has_no_longer_right_than_its_lease_had_given_then() -> None:
    bench = running()
    until, lease = bench.facts.workers.run_deadline.until(), bench.facts.registration.lease
    assert lease is not None
    bench.offline = True
    bench.tell(ViewChanged(replace(bench.facts.view, members={}, revision=bench.facts.view.revision + 1), 99))
    bench.now = 1.0
    bench.tell(LeaseRefreshed(lease, 5.0, 1.0, 99))
    assert bench.facts.workers.run_deadline.until() == until
    bench.at(until)
    assert (bench.phase, len(bench.stops)) == (Phase.STOPPING, 1)


@pytest.mark.parametrize("how", ["deleted", "damaged"])
def test_a_refresh_that_does_not_find_the_key_as_the_watch_has_shown_it_gives_no_right_and_the_job_is_listed(
    how: str,
) -> None:
    bench = running()
    key, until = KEYS.member("b"), bench.facts.workers.run_deadline.until()
    held = bench.shelf.entry(key)
    assert held is not None
    if how == "deleted":
        bench.shelf.delete(key)
    else:
        bench.shelf.core.txn((), (Put(key, JUNK, held.lease),))
    bench.now, bench.offline = 1.0, True
    bench.refreshed()
    assert bench.facts.workers.run_deadline.until() == until
    bench.offline = False
    bench.look()
    assert bench.registered
    bench.refreshed()
    assert bench.facts.workers.run_deadline.until() == until + 1.0
    assert (bench.phase, bench.stops) == (Phase.RUNNING, [])


def test_a_node_whose_lease_was_revoked_registers_with_another_one() -> None:
    bench = running()
    lease = bench.facts.registration.lease
    assert lease is not None
    bench.shelf.core.revoke(lease)
    bench.look()
    assert bench.phase is Phase.RUNNING
    assert bench.registered
    assert bench.facts.registration.lease != lease


def test_a_word_that_others_wait_for_is_said_again_after_a_while_and_then_less_often() -> None:
    bench = done()
    key = KEYS.outcome(1, "b")
    for at in (10.0, 30.0, 70.0):
        bench.shelf.delete(key)
        assert bench.core.wake_at == at
        bench.at(at)
        assert bench.shelf.entry(key) is not None


def test_that_the_workers_are_done_is_said_again_where_a_damaged_incarnation_refused_it() -> None:
    bench = serving()
    stood = bench.shelf.entry(KEYS.incarnation)
    assert stood is not None
    bench.shelf.core.txn((), (Put(KEYS.incarnation, JUNK),))  # The watch does not show it yet.
    bench.exit(0, role=Role.WORKER)
    assert bench.outcomes == {}
    bench.shelf.core.txn((), (Put(KEYS.incarnation, stood.value),))
    bench.look()
    assert (bench.outcomes[1].ended, bench.outcomes[1].over) == (OutcomeKind.OK, False)


def test_a_node_that_begins_to_lead_once_more_forgets_since_when_others_were_away() -> None:
    bench = serving()
    for now in (0.0, 50.0):
        bench.now = now
        bench.lose("a")
        bench.wake()
        assert bench.facts.leads
        assert bench.facts.memory.absent_since["a"] == bench.now
        bench.others("a")
        bench.lead("a")
        bench.look()


def test_whose_workers_save_while_the_others_go_on_stops_them_and_is_no_newcomer_until_they_are_gone() -> None:
    """They cannot meet the others any more; and a world with this node would wait for them."""
    bench = running()
    bench.world(2, "a", why=ChangeReason.SCALE_DOWN, before=BOTH)
    bench.unregister()
    assert bench.registered
    assert [stop.planned for stop in bench.every(StopWorkers)] == [True]
    bench.go(2)
    assert [stop.planned for stop in bench.every(StopWorkers)] == [True, False]
    bench.unregister()
    assert (bench.phase, bench.registered) == (Phase.STOPPING, False)
    bench.gone()
    assert (bench.phase, bench.registered) == (Phase.SPARE, True)
