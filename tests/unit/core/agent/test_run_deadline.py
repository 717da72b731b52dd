"""Until when an agent lets its workers run, what it grants to others, and how it proposes and meets its store."""

from __future__ import annotations

import msgspec
import pytest

from elastic.core.agent.actions import ExtendRunDeadline, RevokeLease
from elastic.core.agent.events import (
    NodePrepared,
    NodeProvenDead,
    ProcessProvenDead,
    SessionLost,
    ViewChanged,
    WorkersGone,
)
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import Phase
from elastic.core.kv import KeyRange, Put
from elastic.core.membership.decision import Reason
from elastic.core.membership.memory import GONE_MAX
from elastic.core.model import ChangeReason, FinalStatus, MemberState, OutcomeKind, Predecessor
from elastic.core.run_deadline import margin_s
from elastic.core.view import StoredDocument, StoreView
from launcher.config.readers import np as read_np
from tests.support.agent_harness import Bench, gated, running, serving, spare, stopping, vouched
from tests.support.store_fixture import Shelf
from tests.support.strategies import KEYS

TTL_S = 5.0
OWN_S = TTL_S - margin_s(TTL_S)
"""How long a node may run after a good refresh, by its own lease."""
BOTH = Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST)

# --- the right to run ---------------------------------------------------------------------------------------------


def run_untils(bench: Bench) -> list[float]:
    """What the nursery was told."""
    return [action.t for action in bench.every(ExtendRunDeadline)]


def test_the_nursery_is_told_a_later_time_at_each_refresh() -> None:
    bench = running()
    assert bench.facts.workers.run_until == OWN_S
    bench.now = 1.25
    bench.refreshed()
    bench.now = 2.5
    bench.refreshed()
    assert run_untils(bench) == [1.25 + OWN_S, 2.5 + OWN_S]


def test_without_a_refresh_the_workers_are_killed_at_the_end_of_the_right() -> None:
    bench = running()
    bench.at(OWN_S - 0.01)
    assert bench.phase is Phase.RUNNING
    assert bench.core.wake_at == OWN_S
    bench.at(OWN_S)
    assert bench.stops == [(1, 0.0)]
    bench.gone()
    assert bench.outcomes[1].forced


def test_whose_lease_ends_while_its_workers_save_registers_again_and_who_drains_still_drains() -> None:
    for told_to_leave in (False, True):
        bench = running()
        if told_to_leave:
            bench.drain()
        bench.world(
            2,
            "a" if told_to_leave else "a b c",
            why=ChangeReason.DRAIN if told_to_leave else ChangeReason.SCALE_UP,
            before=BOTH,
        )
        assert bench.phase is Phase.STOPPING
        bench.now = 1.0
        bench.expire()
        assert run_untils(bench)[-1] == 1.0 + OWN_S
        state = MemberState.DRAINING if told_to_leave else MemberState.READY
        assert bench.shelf.view.members["b"].value.state is state


def test_whose_workers_are_stopped_because_of_a_loss_registers_again_when_they_are_gone() -> None:
    bench = stopping()
    bench.expire()
    assert not bench.registered
    bench.gone()
    assert bench.registered


def test_a_lease_that_ends_before_its_time_has_given_the_right_for_its_time_and_there_is_a_next_one() -> None:
    bench = running()
    bench.at(1.0)
    bench.expire()
    assert bench.phase is Phase.RUNNING
    assert bench.facts.workers.run_until == 1.0 + OWN_S
    assert bench.registered


def test_a_lease_that_ends_before_its_time_gives_no_more_than_its_time() -> None:
    bench = running()
    lost = bench.facts.registration.lease
    assert lost is not None
    bench.offline = True
    bench.tell(SessionLost(lost, "TTL 0"))
    bench.at(OWN_S)
    assert bench.stops == [(1, 0.0)]


def test_a_vouch_prolongs_the_right_of_a_member_whose_lease_is_lost_and_it_registers_again() -> None:
    bench = running()
    bench.tell(vouched(60.0))
    assert run_untils(bench) == [60.0]
    bench.expire()
    assert bench.phase is Phase.RUNNING
    assert bench.registered


def test_no_vouch_goes_beyond_the_last_refresh_plus_the_outage_limit() -> None:
    bench = running(etcd_outage_timeout_s=20.0)
    bench.tell(vouched(1e6))
    assert run_untils(bench) == [TTL_S + 20.0]
    bench.at(TTL_S + 20.0)
    assert bench.stops == [(1, 0.0)]


def test_a_vouch_for_one_generation_does_not_count_for_the_next() -> None:
    bench = running()
    bench.tell(vouched(60.0))
    bench.world(2, "a b", before=BOTH)
    bench.gone()
    bench.now = OWN_S
    bench.go(2)
    assert bench.starts == [1]


def leader(*heard: str) -> Bench:
    """Node `a` leads, and runs generation 1 as its M_id 0, with `b` and `c`."""
    bench = Bench("a", "3:3")
    bench.others("b c")
    assert bench.phase is Phase.RUNNING
    bench.links(" ".join(heard))
    return bench


def test_the_leader_vouches_for_the_members_of_the_generation_within_its_own_right() -> None:
    bench = leader()
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == OWN_S
    bench.at(1.0)
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == OWN_S - 1.0
    assert grantable_seconds(bench.facts, "stranger", 1, bench.now) == 0.0
    assert grantable_seconds(bench.facts, "b", 2, bench.now) == 0.0
    assert grantable_seconds(bench.facts, "b", 0, bench.now) == 0.0


def test_a_vouch_is_never_longer_than_a_leases_time() -> None:
    bench = leader("b", "c")
    bench.offline = True
    bench.at(3.0)
    assert bench.facts.workers.run_deadline.until() == 3.0 + TTL_S
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == TTL_S


def test_nobody_but_the_leader_of_a_running_generation_vouches() -> None:
    assert grantable_seconds(running().facts, "a", 1, 0.0) == 0.0
    assert grantable_seconds(stopping().facts, "a", 1, 0.0) == 0.0
    assert grantable_seconds(spare().facts, "a", 1, 0.0) == 0.0


def test_a_leader_whose_workers_are_being_stopped_vouches_for_nobody() -> None:
    bench = leader("b", "c")
    bench.exit(1)
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == 0.0


def test_the_leader_holds_its_right_beyond_its_lease_while_it_hears_every_member() -> None:
    bench = leader("b", "c")
    bench.offline = True
    for second in range(1, 60):
        bench.at(float(second))
    assert bench.phase is Phase.RUNNING
    assert bench.facts.workers.run_deadline.until() > 57 + TTL_S


def test_a_node_that_is_alone_in_its_world_holds_its_right_without_asking_anybody() -> None:
    bench = Bench("a", "1")
    bench.offline = True
    for second in range(1, 60):
        bench.at(float(second))
    assert bench.stops == []
    bench.at(120.0 + TTL_S)
    assert bench.stops == [(1, 0.0)]


def test_the_hold_ends_with_the_outage_limit() -> None:
    bench = leader("b", "c")
    bench.offline = True
    now = 0.0
    while bench.phase is Phase.RUNNING:
        assert bench.core.wake_at is not None
        now = bench.core.wake_at
        bench.at(now)
    assert now == TTL_S + 120.0
    assert bench.stops == [(1, 0.0)]


def test_the_hold_ends_when_one_member_is_not_heard_any_more() -> None:
    bench = leader("b", "c")
    bench.offline = True
    bench.at(3.0)
    bench.links("b")
    assert bench.facts.workers.run_deadline.until() == 3.0 + TTL_S
    bench.at(8.0)
    assert bench.stops == [(1, 0.0)]


# --- the store ----------------------------------------------------------------------------------------------------


def test_a_registration_that_the_store_has_lost_is_made_again_while_the_workers_run() -> None:
    bench = running()
    bench.tell(vouched(60.0))
    bench.unregister()
    assert bench.phase is Phase.RUNNING
    assert bench.registered


@pytest.mark.parametrize(
    ("np_given", "of_the_job", "brought"), [(False, "1+", "1+"), (True, "1+", "1"), (False, "1:3", "1")]
)
def test_a_node_without_an_np_of_its_own_brings_that_of_a_job_without_a_maximum_into_an_empty_store(
    np_given: bool, of_the_job: str, brought: str
) -> None:
    bench = Bench("b", "1", np_given=np_given, prepared=False)
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.shelf.put(KEYS.spec, msgspec.structs.replace(bench.spec, np=read_np(of_the_job)))
    bench.others("a")
    bench.tell(NodePrepared())
    assert bench.registered
    assert any("--np is 1+ there, 1 here" in line for line in bench.lines) == (np_given and of_the_job == "1+")
    bench.shelf = Shelf(KEYS)
    bench.look()
    assert bench.registered
    assert bench.shelf.view.spec is not None
    assert str(bench.shelf.view.spec.value.np) == brought


def test_another_store_stops_the_workers_and_the_node_joins_there_anew() -> None:
    bench = running()
    bench.tell(vouched(60.0))
    old = bench.facts.registration.lease
    bench.shelf = Bench("z", after="y").shelf
    bench.shelf.put(KEYS.incarnation, "i2")
    bench.look()
    assert bench.stops == [(1, 2.0)]
    assert bench.lines[-1] == "etcd was replaced or lost its data: stopping this node's workers, the job forms again"
    assert old is not None
    bench.tell(SessionLost(old, "TTL 0"))
    bench.gone()
    assert bench.outcomes == {}
    assert (bench.phase, bench.registered) == (Phase.SPARE, True)
    assert bench.facts.memory.size_before == 2


def test_an_incarnation_that_cannot_be_read_starts_nothing_and_stops_nothing() -> None:
    bench = gated()
    bench.shelf.put(KEYS.incarnation, bench.spec)
    bench.go(1)
    assert (bench.phase, bench.starts) == (Phase.GATED, [])
    bench.shelf.put(KEYS.incarnation, "i1")
    bench.look()
    assert bench.starts == [1]
    bench.shelf.put(KEYS.incarnation, bench.spec)
    bench.look()
    assert bench.phase is Phase.RUNNING


# --- the leader ---------------------------------------------------------------------------------------------------


def test_only_the_leader_decides() -> None:
    assert leader().facts.succession.decision is not None
    assert running().facts.succession.decision is None


def test_the_next_member_takes_over_when_the_lease_of_the_leader_has_ended() -> None:
    bench = running()
    bench.links("a")
    bench.links("")
    bench.lose("a")
    bench.wake()
    generation = bench.shelf.view.generation
    assert generation is not None
    assert (generation.value.g, [place.node for place in generation.value.members]) == (2, ["b"])
    assert bench.stops == [(1, 2.0)]


def test_the_next_member_takes_over_when_the_leader_is_proven_dead() -> None:
    bench = running()
    a = bench.shelf.view.members["a"]
    bench.tell(ProcessProvenDead("a", a.create_revision, "host-a"))
    assert bench.every(RevokeLease) == [RevokeLease(a.lease)]
    assert bench.shelf.view.generation is not None
    assert bench.shelf.view.generation.value.g == 2


def test_a_host_that_spoke_again_after_its_proof_of_death_is_not_believed_dead_again() -> None:
    bench = leader()
    old = bench.shelf.view.members["b"].create_revision
    bench.now = 1.0
    bench.tell(ProcessProvenDead("b", old, "host-b"))
    assert bench.facts.generation is not None
    assert bench.facts.generation.index("b") is None
    bench.others("b")
    assert bench.facts.memory.distrusted == {"host-b"}
    new = bench.shelf.view.members["b"].create_revision
    bench.tell(ProcessProvenDead("b", new, "host-b"))
    assert ("b", new) not in bench.facts.memory.gone


def test_a_false_proof_is_known_as_false_also_when_the_revoked_key_was_seen_to_be_gone_first() -> None:
    bench = leader()
    old = bench.shelf.view.members["b"].create_revision
    bench.now = 1.0
    bench.tell(ProcessProvenDead("b", old, "host-b"))
    bench.look()
    assert "b" not in bench.facts.view.members
    bench.at(2.0)
    bench.others("b")
    assert bench.facts.memory.distrusted == {"host-b"}
    assert bench.facts.memory.gone == frozenset()


def test_of_proofs_whose_keys_are_gone_only_the_newest_are_kept() -> None:
    bench = leader()
    for number in range(2 * GONE_MAX):
        bench.tell(ProcessProvenDead(f"old-{number}", number + 1, "host"))
    assert bench.facts.memory.gone == {(f"old-{at}", at + 1) for at in range(GONE_MAX, 2 * GONE_MAX)}


def test_a_member_that_is_seen_dead_on_this_very_machine_is_lost_at_once() -> None:
    bench = leader()
    bench.tell(NodeProvenDead("b"))
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["a", "c"]


def test_a_proposal_that_did_not_hold_is_decided_anew_from_a_newer_view() -> None:
    bench = leader("b", "c")
    bench.links("b")
    before = len(bench.proposals)
    bench.shelf.delete(KEYS.member("c"))
    stale = bench.seen()
    bench.shelf.put(KEYS.spec, bench.spec)
    bench.tell(stale)
    assert len(bench.proposals) == before + 2
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["a", "b"]


def test_a_leader_that_waits_asks_to_be_called_when_the_window_ends() -> None:
    bench = Bench("a", "1:3")
    decision = bench.facts.succession.decision
    assert decision is not None
    assert decision.code is Reason.TRAINING
    bench.exit(1)
    bench.tell(WorkersGone(1))
    assert bench.starts == [1, 2]
    bench.exit(1)
    bench.tell(WorkersGone(2))
    decision = bench.facts.succession.decision
    assert decision is not None
    assert decision.code is Reason.BACKOFF
    assert bench.core.wake_at == 1.0
    bench.at(1.0)
    assert bench.starts == [1, 2, 3]


def test_a_leaving_leader_proposes_nothing_more() -> None:
    bench = leader()
    bench.verdict(FinalStatus.FAILED)
    bench.offline = True
    bench.gone()
    assert bench.facts.succession.decision is None


def test_a_node_that_works_on_is_not_refused_for_a_document_that_may_be_put_right() -> None:
    bench = running()
    stood = bench.shelf.core.list(KeyRange.key(KEYS.incarnation)).entries[0].value
    bench.tell(vouched(1000.0))
    bench.shelf.core.txn((), (Put(KEYS.incarnation, b"\xff"),))
    bench.look()
    bench.expire()
    bench.look()
    bench.at(1.0)
    assert (bench.phase, bench.facts.registration.refusal, bench.registered) == (Phase.RUNNING, "", False)
    bench.shelf.core.txn((), (Put(KEYS.incarnation, stood),))
    bench.look()
    bench.at(2.0)
    assert (bench.phase, bench.registered) == (Phase.RUNNING, True)


def test_a_refresh_while_nothing_is_due_only_prolongs_the_right() -> None:
    bench = running()
    decided, asked = len(bench.proposals), len(bench.asked)
    bench.now = 0.5
    bench.refreshed()
    assert [type(action) for action in bench.asked[asked:]] == [ExtendRunDeadline]
    assert (len(bench.proposals), bench.core.wake_at) == (decided, bench.facts.wake_at)
    assert bench.core.wake_at is not None


def test_whose_lease_ends_while_its_workers_save_does_not_register_in_a_job_that_has_ended() -> None:
    bench = serving()
    bench.roster(1, "a b", leaving=True)
    bench.verdict(FinalStatus.FAILED)
    bench.expire()
    bench.look()
    assert (bench.phase, bench.registered, bench.facts.registration.lease) == (Phase.STOPPING, False, None)


def test_nobody_says_how_its_workers_ended_in_a_store_whose_incarnation_is_gone() -> None:
    bench = running()
    stood = bench.shelf.entry(KEYS.incarnation)
    assert stood is not None
    bench.shelf.delete(KEYS.incarnation)
    bench.look()
    bench.exits(0)
    assert bench.outcomes == {}
    bench.shelf.core.txn((), (Put(KEYS.incarnation, stood.value),))
    bench.look()
    assert bench.outcomes[1].ended is OutcomeKind.OK


def test_a_store_without_spec_and_incarnation_in_which_a_generation_stands_is_no_empty_one() -> None:
    bench = running()
    for key in (KEYS.spec, KEYS.incarnation, KEYS.member("b")):
        bench.shelf.delete(key)
    bench.look()
    assert (bench.phase, bench.registered, bench.stops) == (Phase.RUNNING, False, [])
    assert bench.shelf.entry(KEYS.incarnation) is None


def test_a_key_that_is_gone_from_another_store_is_missed_although_that_one_has_fewer_revisions() -> None:
    bench = running()
    assert bench.facts.registration.registered_at_revision > 1
    bench.offline = True
    other = StoreView(revision=1, incarnation=StoredDocument("i2", 1, 1), spec=StoredDocument(bench.spec, 1, 1))
    bench.tell(ViewChanged(other, 99))
    assert bench.facts.registration.registered_at_revision == 0
