"""Which node leads: who takes the leader's key, when, and what it does as long as it has it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from elastic.core.agent.actions import Action, RevokeLease, SendTransaction
from elastic.core.agent.candidates import OUTSIDE_S, RANK_S, RANKS_MAX, SPREAD_MAX_S, SPREAD_S, WATCHERS, watches_leader
from elastic.core.agent.events import NodeProvenDead, ProcessProvenDead, Tick, TransactionAnswered, ViewChanged
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import Phase
from elastic.core.agent.store import ASK_AGAIN_S
from elastic.core.agent.succession import lead_at
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import Leader
from elastic.core.transactions import Transaction
from tests.support.agent_harness import Bench, leaving, running, serving, spare
from tests.support.strategies import KEYS

NEVER = float("inf")


def member_of(nodes: str, node: str = "b") -> Bench:
    """A node of generation 1, which has these nodes in the order of their M_ids; `a` leads."""
    bench = Bench(node, "1:99", after="a")
    bench.world(1, nodes)
    return bench


def without_leader(bench: Bench) -> Bench:
    """The lease of the leader ends."""
    assert bench.shelf.view.leader is not None
    bench.lose(bench.shelf.view.leader.value.node)
    return bench


def patience_s(bench: Bench) -> float:
    """How long the node leaves the lead to others, from now on."""
    return lead_at(bench.facts) - bench.now


def leader_of(bench: Bench) -> str:
    """Which node has the leader's key; "" if nobody has."""
    stored = bench.shelf.view.leader
    return stored.value.node if stored is not None else ""


def named(count: int, *, last: str) -> str:
    """So many nodes, and `last` after them."""
    return " ".join([*(f"n{number:03}" for number in range(count)), last])


def sent(actions: Sequence[Action]) -> list[Transaction]:
    return [action.transaction for action in actions if isinstance(action, SendTransaction)]


# --- the first leader ---------------------------------------------------------------------------------------------


def test_the_first_node_of_an_empty_store_leads_and_sees_everything_and_decides() -> None:
    bench = Bench("a", "2")
    assert (leader_of(bench), bench.facts.leads, bench.mirrors_everything) == ("a", True, True)
    assert bench.facts.succession.decision is not None


def test_a_node_that_registers_later_does_not_lead_and_asks_for_nothing() -> None:
    bench = spare()
    assert (leader_of(bench), bench.facts.leads, bench.mirrors_everything) == ("a", False, False)
    assert lead_at(bench.facts) == NEVER
    bench.at(1000.0)
    assert leader_of(bench) == "a"


# --- who takes the lead, and when ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("nodes", "rank"), [("b a", 0), ("a b", 1), ("a c d b", 3), (named(9, last="b"), 9)])
def test_a_member_waits_10_ms_for_each_member_before_it(nodes: str, rank: int) -> None:
    bench = without_leader(member_of(nodes))
    if not rank:
        assert leader_of(bench) == "b"
        return
    at = rank * RANK_S
    assert lead_at(bench.facts) == pytest.approx(at)
    assert bench.core.wake_at == lead_at(bench.facts)
    bench.at(at - 0.001)
    assert leader_of(bench) == ""
    bench.at(at)
    assert (leader_of(bench), bench.facts.leads) == ("b", True)


def test_the_wait_begins_when_the_node_sees_that_nobody_leads_and_not_again_with_each_view() -> None:
    bench = member_of("a c b")
    bench.now = 1.0
    without_leader(bench)
    bench.now = 1.015
    bench.look()
    assert lead_at(bench.facts) == 1.0 + 2 * RANK_S


def test_a_member_does_not_wait_for_those_that_are_proven_dead() -> None:
    bench = member_of("a c d b")
    bench.tell(ProcessProvenDead("c", 99, "host-c"), NodeProvenDead("d"))
    without_leader(bench)
    assert patience_s(bench) == pytest.approx(1 * RANK_S), "for a alone, whose lease has ended"


@pytest.mark.parametrize("count", [RANKS_MAX, 50, 90])
def test_no_member_waits_for_more_than_ten_others_and_those_behind_them_spread(count: int) -> None:
    waits = set()
    for node in ("x1", "x2", "x3"):
        wait_s = patience_s(without_leader(member_of(named(count, last=node), node)))
        assert RANKS_MAX * RANK_S <= wait_s <= RANKS_MAX * RANK_S + min((count + 1) * SPREAD_S, SPREAD_MAX_S)
        waits.add(wait_s)
    assert len(waits) == 3


def test_in_a_small_job_every_node_watches_the_leader() -> None:
    for place in (1, WATCHERS - 2):
        assert watches_leader(member_of(named(place, last="b")).facts)
    assert watches_leader(Bench("x1", "16", after="a").facts), "before the first generation"


def test_in_a_large_job_the_first_members_and_some_by_chance_watch_the_leader() -> None:
    generation = member_of(named(1000, last="b")).facts.generation
    assert generation is not None
    names = [member.node for member in generation.members]
    watching = [name for name in names if watches_leader(member_of(" ".join(names), name).facts)]
    assert names[:RANKS_MAX] == watching[:RANKS_MAX]
    assert RANKS_MAX + WATCHERS / 4 <= len(watching) <= RANKS_MAX + 4 * WATCHERS


def test_no_member_waits_for_more_than_five_seconds_however_large_the_job_is() -> None:
    for node in ("x1", "x2", "x3"):
        assert patience_s(without_leader(member_of(named(5000, last=node), node))) <= RANKS_MAX * RANK_S + SPREAD_MAX_S


def test_when_a_job_is_stopped_no_more_nodes_watch_the_leader_than_before() -> None:
    watching = 0
    for number in range(200):
        bench = Bench(f"x{number}", "1000", after="a")
        bench.world(1, "")
        watching += watches_leader(bench.facts)
    assert watching <= WATCHERS


def test_the_wait_of_a_node_is_the_same_each_time() -> None:
    first, second = (patience_s(without_leader(member_of(named(50, last="b")))) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("nodes", ["", "a", "a c d", named(500, last="a")])
def test_a_node_without_an_m_id_comes_after_the_members_within_50_ms(nodes: str) -> None:
    waits = set()
    for node in ("x1", "x2", "x3"):
        bench = Bench(node, "1:99", after="a")
        if nodes:
            bench.world(1, nodes)
        wait_s = patience_s(without_leader(bench))
        rank = min(len(nodes.split()), RANKS_MAX)
        assert rank * RANK_S <= wait_s <= rank * RANK_S + OUTSIDE_S
        waits.add(wait_s)
    assert len(waits) == 3


def test_a_spare_leads_when_no_member_does() -> None:
    bench = spare()
    bench.world(1, "a c")
    without_leader(bench)
    bench.wake()
    assert (leader_of(bench), bench.facts.leads) == ("b", True)


def test_a_leader_that_is_proven_dead_is_replaced_at_once_though_its_key_stands() -> None:
    bench = member_of("a b")
    stored = bench.shelf.view.leader
    assert stored is not None
    bench.tell(ProcessProvenDead("a", stored.value.created, "host-a"))
    assert leader_of(bench) == "b"


def test_a_proof_of_an_older_registration_of_the_leader_replaces_nobody() -> None:
    bench = member_of("a b")
    stored = bench.shelf.view.leader
    assert stored is not None
    bench.tell(ProcessProvenDead("a", stored.value.created - 1, "host-a"))
    assert lead_at(bench.facts) == NEVER


def test_a_first_leader_whose_key_names_no_revision_is_proven_dead_by_that_of_the_key_itself() -> None:
    bench = member_of("a b")
    bench.shelf.delete(KEYS.leader)
    at = bench.shelf.put(KEYS.leader, Leader(node="a", host="host-a"), leased=True)
    bench.look()
    bench.tell(ProcessProvenDead("a", at, "host-a"))
    assert leader_of(bench) == "b"


def test_a_damaged_key_of_the_leader_counts_as_none() -> None:
    bench = member_of("a b")
    bench.shelf.put(KEYS.leader, "junk")
    bench.look()
    assert patience_s(bench) == RANK_S
    bench.wake()
    assert leader_of(bench) == "b"


def test_a_key_of_this_node_under_another_lease_does_not_make_it_the_leader_and_is_replaced() -> None:
    bench = spare()
    bench.shelf.put(KEYS.leader, Leader(node="b", host="host-b"), leased=True)
    bench.look()
    assert (leader_of(bench), bench.facts.leads, bench.mirrors_everything) == ("b", False, False)
    bench.wake()
    assert bench.facts.leads
    assert bench.shelf.view.leader is not None
    assert bench.shelf.view.leader.lease == bench.facts.registration.lease


def test_a_leader_whose_lease_ends_does_not_lead_until_it_takes_the_key_with_its_next_lease() -> None:
    bench = Bench("a", "2")
    bench.expire()
    assert (bench.registered, bench.facts.leads, leader_of(bench)) == (True, False, "")
    assert bench.facts.succession.decision is None
    bench.wake()
    assert bench.facts.leads


def test_a_node_that_is_not_registered_or_leaves_takes_nothing() -> None:
    bench = leaving()
    bench.shelf.delete(KEYS.leader)
    bench.tell(bench.seen())
    assert lead_at(bench.facts) == NEVER
    bench = member_of("b a")
    bench.offline = True
    bench.expire()
    bench.shelf.delete(KEYS.leader)
    bench.tell(bench.seen())
    assert lead_at(bench.facts) == NEVER


def refused_candidate() -> Bench:
    """Node b tries to lead at 0.01, and another node has done so a moment before."""
    bench = without_leader(member_of("a b"))
    (transaction,) = sent(bench.core.handle(Tick(), RANK_S))
    bench.core.handle(TransactionAnswered(transaction, False, 99), RANK_S)
    return bench


def test_a_candidate_that_is_refused_waits_for_its_watch_to_show_the_winner() -> None:
    bench = refused_candidate()
    assert sent(bench.core.handle(bench.seen(), 0.02)) == []
    assert lead_at(bench.facts) == RANK_S + ASK_AGAIN_S
    bench.others("c")
    bench.lead("c")
    bench.core.handle(bench.seen(), 0.03)
    assert lead_at(bench.facts) == NEVER
    assert not bench.facts.leads


def test_a_candidate_that_is_refused_and_sees_no_winner_tries_again_after_a_while() -> None:
    bench = refused_candidate()
    assert sent(bench.core.handle(Tick(), ASK_AGAIN_S)) == []
    assert [one.kind for one in sent(bench.core.handle(Tick(), RANK_S + ASK_AGAIN_S))] == ["lead"]


# --- what the leader does, and nobody else ------------------------------------------------------------------------


def test_a_leader_follows_everything_and_decides_until_another_node_leads() -> None:
    bench = without_leader(member_of("b a"))
    assert (bench.facts.leads, bench.mirrors_everything) == (True, True)
    assert bench.facts.succession.decision is not None
    bench.others("a")
    bench.lead("a")
    bench.look()
    assert (bench.facts.leads, bench.mirrors_everything) == (False, False)
    assert bench.facts.succession.decision is None


def test_a_leader_decides_nothing_before_it_sees_everything() -> None:
    bench = member_of("b a")
    bench.lead("b")
    actions = bench.core.handle(bench.seen(), bench.now)
    assert bench.facts.leads
    assert bench.facts.succession.decision is None
    assert sent(actions) == []


@pytest.mark.parametrize("leads", [True, False])
def test_only_the_leader_revokes_the_lease_of_a_node_that_is_proven_dead(leads: bool) -> None:
    bench = running(np="1:3")
    bench.others("c")
    if leads:
        bench.lead("b")
        bench.look()
    stored = bench.shelf.view.members["c"]
    bench.tell(ProcessProvenDead("c", stored.create_revision, "host-c"))
    assert bench.every(RevokeLease) == ([RevokeLease(stored.lease)] if leads else [])
    assert bool(bench.proposals) is leads


def test_a_leader_that_lost_the_lead_without_seeing_it_changes_nothing() -> None:
    bench = Bench("a", "1:3")
    bench.others("b", link=9000)
    bench.lead("b")  # The watch of a does not show it.
    before = bench.shelf.view.generation
    bench.exits(1)
    assert bench.shelf.view.generation == before


# --- giving it up -------------------------------------------------------------------------------------------------


def test_a_leader_that_leaves_the_generation_gives_up_the_lead_with_it() -> None:
    bench = Bench("a", "1:2", scale_up_interval_s=0.0)
    bench.others("b")
    bench.gone()
    assert (bench.starts, leader_of(bench)) == ([1, 2], "a")
    bench.drain()
    bench.at(BATCH_S)
    assert bench.shelf.view.generation is not None
    assert [place.node for place in bench.shelf.view.generation.value.members] == ["b"]
    assert (leader_of(bench), bench.registered) == ("", True)


def test_a_leader_that_leaves_the_job_deletes_its_key() -> None:
    bench = Bench("a", "2")
    assert leader_of(bench) == "a"
    bench.drain()
    assert (bench.phase, bench.registered, leader_of(bench)) == (Phase.ENDED, False, "")


def test_another_node_that_leaves_the_job_does_not_delete_the_leaders_key() -> None:
    bench = spare()
    bench.drain()
    assert (bench.phase, bench.registered, leader_of(bench)) == (Phase.ENDED, False, "a")


# --- vouching -----------------------------------------------------------------------------------------------------


def test_m_id_0_does_not_vouch_unless_it_leads() -> None:
    bench = spare()
    bench.world(1, "b a")
    bench.go(1)
    assert bench.phase is Phase.RUNNING
    assert grantable_seconds(bench.facts, "a", 1, bench.now) == 0.0
    bench.lead("b")
    bench.look()
    assert grantable_seconds(bench.facts, "a", 1, bench.now) > 0


def leading_spare() -> Bench:
    """Node b leads and is a spare of generation 1, which has a and c."""
    bench = spare(np="2:2")
    bench.others("c")
    bench.lead("b")
    bench.world(1, "a c")
    assert (bench.phase, bench.facts.leads) == (Phase.SPARE, True)
    return bench


def test_a_leader_that_is_a_spare_vouches_for_the_members_once_they_run() -> None:
    bench = leading_spare()
    waits = ViewChanged(replace(bench.facts.view, go=None), 99)
    bench.core.handle(waits, bench.now)
    assert grantable_seconds(bench.facts, "a", 1, bench.now) == 0.0
    bench.go(1)
    assert grantable_seconds(bench.facts, "a", 1, bench.now) > 0
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == 0.0, "it is no member"


def test_a_leader_that_is_a_spare_vouches_on_while_the_store_is_silent_and_it_hears_all_members() -> None:
    bench = leading_spare()
    bench.go(1)
    bench.links("a c")
    bench.offline = True
    for second in range(1, 31):
        bench.at(float(second))
    assert grantable_seconds(bench.facts, "a", 1, bench.now) > 0
    bench.links("a")
    bench.at(60.0)
    assert grantable_seconds(bench.facts, "a", 1, bench.now) == 0.0


def test_nobody_vouches_in_a_parameter_server_job() -> None:
    bench = serving()
    bench.lead("b")
    bench.look()
    assert bench.facts.leads
    assert grantable_seconds(bench.facts, "a", 1, bench.now) == 0.0
