"""Nodes that were evicted for their silence: how long that counts for their hosts, and who learns of it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elastic.core.membership.decision import Reason
from elastic.core.membership.evictions import (
    EVICTIONS_MAX,
    SILENCE_COUNTS_AFTER_S,
    STEADY_S,
    WORKERS_GONE_S,
    evicted,
    listed_evictions,
    note_evicted,
    note_returned,
    silence_counts,
    silent_again,
)
from elastic.core.membership.memory import DecisionMemory
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import ChangeReason, EvictedNode, Generation
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.view import StoredDocument
from tests.support.job_transcript import Job, member, nodes_of

TTL_S = 5.0
GONE_S = TTL_S * (1 + CLOCK_ERROR) + WORKERS_GONE_S
"""Seconds after its eviction in which a node may still have workers, with this lease."""
AT = 10.0
"""When `b` is evicted in these tests."""
B = evicted("b", "host-b", 7, AT)
NAMED = EvictedNode("b", "host-b", 7, SILENCE_COUNTS_AFTER_S)
COUNTS_AT = AT + SILENCE_COUNTS_AFTER_S


def naming(*nodes: EvictedNode) -> Generation:
    """A generation that names these evictions."""
    return Generation(g=2, run=1, leader="a", why=ChangeReason.NODE_LOST, reason="", members=(), slots=1, evicted=nodes)


class Story(Job):
    """A job whose leader, `a`, hears its members, and evicts one of them."""

    def __init__(self, nodes: str = "a b c", np: str = "1:3", **spec: Any) -> None:
        super().__init__(np, join_window_s=0.0, lease_ttl_s=TTL_S, scale_up_interval_s=0.0, **spec)
        self.run(nodes)

    def evict(self, node: str = "b") -> None:
        """The leader evicts this member."""
        stored = self.view.members[node]
        known = (evicted(node, stored.value.host, stored.create_revision, AT, self.generation.g),)
        heard = self.memory.linked - {node}
        self.memory = replace(self.memory, evictions=known, silent=frozenset({node}), linked=heard)
        self.vanish(node)

    def go_on(self) -> None:
        """A generation without it is formed, and runs; the link of the evicted node is down by then."""
        self.form(AT, Reason.LOST)
        self.memory = replace(self.memory, silent=frozenset())
        self.stopped(" ".join(place.node for place in self.generation.members))
        self.open(AT)

    def heard_since(self, **since: float) -> None:
        """These are heard, each since this time."""
        self.hear(" ".join(since))
        self.memory = replace(self.memory, heard_since=since, silent=self.memory.silent - since.keys())


# --- for how long -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ttl_s", [2.0, 5.0, 60.0])
def test_an_evicted_node_may_have_workers_until_its_lease_and_a_kill_are_over(ttl_s: float) -> None:
    assert B.workers_gone_at(ttl_s) == AT + ttl_s * (1 + CLOCK_ERROR) + WORKERS_GONE_S


def test_the_silence_of_an_evicted_host_counts_again_after_an_hour() -> None:
    assert SILENCE_COUNTS_AFTER_S == 3600.0
    assert not silence_counts([B], "host-b", AT)
    assert not silence_counts([B], "host-b", COUNTS_AT - 0.1)
    assert silence_counts([B], "host-b", COUNTS_AT)
    assert silence_counts([B], "host-c", AT)
    assert silence_counts([], "host-b", AT)


def test_each_of_several_evictions_of_a_host_counts() -> None:
    later = evicted("b2", "host-b", 9, AT + 100.0)
    assert not silence_counts([B, later], "host-b", COUNTS_AT)
    assert silence_counts([B, later], "host-b", COUNTS_AT + 100.0)


def test_a_host_that_is_silent_again_begins_its_hour_again_and_others_do_not() -> None:
    other = evicted("c", "host-c", 8, AT)
    again = silent_again([B, other], frozenset({"host-b"}), 100.0)
    assert [one.silence_counts_at for one in again] == [100.0 + SILENCE_COUNTS_AFTER_S, COUNTS_AT]
    assert again[0].workers_gone_at(TTL_S) == B.workers_gone_at(TTL_S), "which it was evicted for once"


# --- whether it is there again ------------------------------------------------------------------------------------


def test_an_evicted_node_has_returned_once_it_is_registered_again() -> None:
    def registered(node: str, created: int) -> dict[str, StoredDocument[Any]]:
        return {node: StoredDocument(member(f"host-{node}"), created, created, 1)}

    assert note_returned([B], {}) == (B,)
    assert note_returned([B], registered("c", 9)) == (B,)
    assert note_returned([B], registered("b", 7)) == (B,), "the watch does not show yet that its key is deleted"
    returned = note_returned([B], registered("b", 9))
    assert returned == (replace(B, returned=True),)
    assert note_returned(returned, {}) == returned, "it left later, or its lease has ended"


# --- who knows of it ----------------------------------------------------------------------------------------------


def test_an_agent_learns_from_a_generation_who_was_evicted_and_counts_the_time_from_then() -> None:
    assert note_evicted([], naming(), 50.0, new=False) == ()
    assert note_evicted([], naming(NAMED), 50.0, new=False) == (evicted("b", "host-b", 7, 50.0),)


def test_an_agent_keeps_the_time_of_an_eviction_that_it_knows() -> None:
    assert note_evicted([B], naming(NAMED), 50.0, new=False) == (B,)
    returned = replace(B, returned=True)
    assert note_evicted([returned], naming(NAMED), 50.0, new=False) == (returned,)


def test_a_new_generation_that_names_a_longer_time_for_a_host_prolongs_it() -> None:
    longer = EvictedNode("b", "host-b", 7, 100.0)
    shorter = note_evicted([], naming(EvictedNode("b", "host-b", 7, 60.0)), 50.0, new=True)
    assert [one.silence_counts_at for one in shorter] == [110.0]
    assert [one.silence_counts_at for one in note_evicted(shorter, naming(longer), 60.0, new=False)] == [110.0]
    assert [one.silence_counts_at for one in note_evicted(shorter, naming(longer), 60.0, new=True)] == [160.0]
    assert note_evicted([B], naming(longer), 60.0, new=True) == (B,), "it knows of a longer time"


def test_another_eviction_of_the_same_node_is_another_one() -> None:
    second = EvictedNode("b", "host-b", 9, SILENCE_COUNTS_AFTER_S)
    assert note_evicted([B], naming(NAMED, second), 50.0, new=False) == (B, evicted("b", "host-b", 9, 50.0))


def test_an_eviction_that_no_generation_names_yet_is_kept_for_its_hour() -> None:
    assert note_evicted([B], naming(), COUNTS_AT - 0.1, new=False) == (B,)
    assert note_evicted([B], naming(), COUNTS_AT, new=False) == ()


def test_an_eviction_is_not_learned_again_from_a_generation_that_names_it_for_longer() -> None:
    assert note_evicted([B], naming(NAMED), COUNTS_AT + 100.0, new=False) == (B,)


def test_a_generation_names_the_evictions_of_the_last_hour_the_newest_of_them() -> None:
    assert listed_evictions([B], AT) == (NAMED,)
    assert listed_evictions([B], COUNTS_AT - 0.1) == (EvictedNode("b", "host-b", 7, 1.0),)
    assert listed_evictions([B], COUNTS_AT) == ()
    many = [evicted(f"n{number}", "host", number, AT) for number in range(EVICTIONS_MAX + 2)]
    listed = listed_evictions(many, AT)
    assert [one.create_revision for one in listed] == [*range(2, EVICTIONS_MAX + 2)]


def test_a_generation_names_an_hour_at_whatever_time_the_eviction_was() -> None:
    for at in (10.0, 13_436.4):
        [listed] = listed_evictions([evicted("b", "host-b", 7, at)], at)
        assert listed.left_s == SILENCE_COUNTS_AFTER_S


def test_the_leader_forgets_an_eviction_an_hour_later() -> None:
    job = Story()
    created = job.view.members["b"].create_revision
    job.evict()
    job.go_on()
    assert job.generation.evicted == (EvictedNode("b", "host-b", created, SILENCE_COUNTS_AFTER_S),)
    job.wait(COUNTS_AT - 1, Reason.TRAINING)
    assert [one.node for one in job.memory.evictions] == ["b"]
    job.vanish("c")
    assert job.form(COUNTS_AT, Reason.LOST).generation.evicted == ()
    job.stopped("a")
    job.open(COUNTS_AT)
    assert job.memory.evictions == ()


def test_the_next_leader_knows_it_from_the_generation() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.memory = DecisionMemory()
    job.wait(20.0, Reason.TRAINING)
    (eviction,) = job.memory.evictions
    assert (eviction.node, eviction.at, eviction.silence_counts_at) == ("b", 20.0, 20.0 + SILENCE_COUNTS_AFTER_S)


# --- the others go on ---------------------------------------------------------------------------------------------


def test_the_members_go_on_at_once_without_an_evicted_one_and_say_that_it_was_silent() -> None:
    job = Story()
    job.evict()
    formed = job.form(AT, Reason.LOST)
    assert nodes_of(formed) == ["a", "c"]
    assert formed.reason.startswith("b was lost (it was silent)")


def test_an_evicted_node_that_registered_again_and_whose_lease_ends_then_was_not_lost_for_its_silence() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("b")
    job.heard_since(b=12.0, c=0.0)
    assert nodes_of(job.form(15.0, Reason.SCALED_UP)) == ["a", "c", "b"]
    job.stopped("a c")
    job.open(15.0)
    job.vanish("b")
    job.hear("c")
    assert job.form(20.0, Reason.LOST).reason.startswith("b was lost (its lease ended)")


def test_an_evicted_member_is_not_given_the_time_to_register_that_a_lost_lease_has() -> None:
    job = Story()
    job.vanish("b", heard=False)
    job.wait(AT, Reason.RETURNING)
    job = Story()
    stored = job.view.members["b"]
    job.memory = replace(job.memory, evictions=(evicted("b", "host-b", stored.create_revision, AT),))
    job.vanish("b", heard=False)
    job.form(AT, Reason.LOST)


def test_an_evicted_member_is_not_waited_for_at_the_gate() -> None:
    job = Story()
    job.failed("c")
    job.form(AT, Reason.FAILED)
    job.stopped("a")
    assert job.wait(AT, Reason.STOPPING).reason == "waiting for b to stop its old workers"
    job.evict()
    formed = job.form(AT + 1, Reason.GATE_LOST)
    assert nodes_of(formed) == ["a", "c"]
    assert formed.reason.startswith("b was lost (it was silent) before the start")
    job.open(AT + 1)


# --- a node on that host joins later ------------------------------------------------------------------------------


def test_an_evicted_node_joins_after_it_was_heard_for_two_seconds_without_a_break() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("b")
    job.heard_since(b=12.0, c=0.0)
    assert job.wait(12.1, Reason.TRAINING).until == pytest.approx(12.0 + STEADY_S)
    job.wait(13.9, Reason.TRAINING)
    job.heard_since(b=13.9, c=0.0)
    assert job.wait(14.0, Reason.TRAINING).until == pytest.approx(13.9 + STEADY_S)
    assert nodes_of(job.form(13.9 + STEADY_S, Reason.SCALED_UP)) == ["a", "c", "b"]


def test_an_evicted_node_that_is_not_heard_does_not_join_until_its_silence_counts_again() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("b")
    job.heard_since(c=0.0)
    for now in (12.0, 60.0, COUNTS_AT - 0.1):
        job.wait(now, Reason.TRAINING)
    job.form(COUNTS_AT, Reason.SCALED_UP)


def test_another_node_on_the_host_of_an_evicted_one_is_to_be_heard_for_as_long() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("d", host="host-b")
    job.heard_since(c=0.0, d=20.0)
    job.wait(21.9, Reason.TRAINING)
    job.form(20.0 + STEADY_S, Reason.SCALED_UP)


def test_a_node_on_another_host_joins_at_once() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("d")
    job.heard_since(c=0.0, d=12.0)
    job.form(12.0, Reason.SCALED_UP)


def test_an_evicted_node_joins_at_once_where_the_others_are_below_the_minimum() -> None:
    job = Story(np="3:4")
    job.evict()
    job.form(AT, Reason.LOST)
    job.stopped("a c")
    job.wait(AT, Reason.BELOW_MIN)
    job.join("b")
    job.heard_since(c=0.0, b=12.0)
    assert nodes_of(job.form(12.0, Reason.GATE_JOINED, Reason.BELOW_MIN)) == ["a", "c", "b"]
    job.stopped("b")
    job.open(12.0 + BATCH_S)


def test_an_evicted_member_that_registers_again_before_the_next_generation_is_lost() -> None:
    job = Story(np="1:3")
    job.evict()
    job.join("b")
    job.memory = replace(job.memory, silent=frozenset({"b"}))
    formed = job.form(AT, Reason.LOST)
    assert nodes_of(formed) == ["a", "c"]
    assert formed.reason == "b was lost (it was silent)"


def test_a_leader_that_was_evicted_itself_once_is_as_heard() -> None:
    job = Story("b a c", np="1:3")
    job.evict("a")
    job.go_on()
    job.join("a")
    job.heard_since(c=0.0, b=0.0)
    job.form(12.0, Reason.SCALED_UP)


def test_a_silent_node_does_not_take_a_free_place() -> None:
    job = Story(np="1:4")
    job.join("d")
    job.memory = replace(job.memory, silent=frozenset({"d"}))
    job.wait(AT, Reason.TRAINING)
    job.memory = replace(job.memory, silent=frozenset())
    job.form(AT + 1, Reason.SCALED_UP)


def test_a_silent_node_joins_where_the_job_could_not_run_without_it() -> None:
    job = Story(np="3:4")
    job.join("d")
    job.memory = replace(job.memory, silent=frozenset({"d"}))
    job.vanish("b")
    assert nodes_of(job.form(AT, Reason.LOST)) == ["a", "c", "d"]


# --- workers of the evicted node may still run on that host -------------------------------------------------------


def test_another_node_on_that_host_joins_only_once_no_worker_of_the_evicted_one_can_be_left() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("d", host="host-b")
    job.heard_since(c=0.0, d=10.0)
    wait = job.wait(13.0, Reason.TRAINING)
    assert wait.until == pytest.approx(AT + GONE_S)
    job.wait(AT + GONE_S - 0.1, Reason.TRAINING)
    assert nodes_of(job.form(AT + GONE_S, Reason.SCALED_UP)) == ["a", "c", "d"]


def test_it_does_so_too_where_the_others_are_below_the_minimum() -> None:
    job = Story(np="3:4")
    job.evict()
    job.form(AT, Reason.LOST)
    job.stopped("a c")
    job.join("d", host="host-b")
    job.heard_since(c=0.0, d=10.0)
    job.wait(13.0, Reason.BELOW_MIN)
    assert nodes_of(job.form(AT + GONE_S, Reason.GATE_JOINED)) == ["a", "c", "d"]


def test_another_node_on_that_host_joins_earlier_if_the_machine_shows_that_nothing_of_the_evicted_one_is_left() -> None:
    job = Story()
    job.evict()
    job.go_on()
    job.join("d", host="host-b")
    job.heard_since(c=0.0, d=10.0)
    job.prove_dead("b")
    job.form(13.0, Reason.SCALED_UP)


def test_a_joining_node_at_the_gate_leaves_its_place_if_a_node_on_its_host_is_evicted() -> None:
    job = Story(np="1:4")
    job.join("d", host="host-b")
    job.heard_since(b=0.0, c=0.0, d=0.0)
    assert nodes_of(job.form(AT, Reason.SCALED_UP)) == ["a", "b", "c", "d"]
    job.stopped("a c")
    job.evict()
    formed = job.form(AT, Reason.GATE_LOST)
    assert nodes_of(formed) == ["a", "c"]
    assert formed.reason.startswith(
        "b was lost (it was silent) before the start; d waits for the workers of an evicted node on the same host"
    )
    job.open(AT)
    job.heard_since(c=0.0, d=0.0)
    job.wait(AT + GONE_S - 0.1, Reason.TRAINING)
    job.form(AT + GONE_S, Reason.SCALED_UP)
