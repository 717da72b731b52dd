"""Silent nodes: whom an agent suspects, who tries to reach a suspect, and what comes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elastic.core.agent.actions import (
    LinkTarget,
    NoteSilence,
    RefreshLease,
    SetHeartbeats,
    SilenceStep,
    TryPeer,
)
from elastic.core.agent.candidates import watches_leader
from elastic.core.agent.events import (
    LinksChanged,
    PeerTried,
    SilenceChanged,
)
from elastic.core.agent.links.silence import (
    BEATS_MIN,
    BEATS_PER_TIMEOUT,
    GIVEN_UP_S,
    HEARTBEAT_S,
    HELPERS_MAX,
    REACHED_TIMEOUTS,
    TRIAL_MIN_S,
    interval_s,
)
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import SilentPeer
from elastic.core.membership.evictions import SILENCE_COUNTS_AFTER_S, evicted
from elastic.core.membership.memory import DecisionMemory
from tests.support.agent_harness import Bench
from tests.support.silence_harness import (
    LINK,
    NOTICED,
    REFRESHED,
    TIMEOUT_S,
    following,
    heard,
    is_registered,
    leading,
    refreshed,
    silent,
    steps,
    suspects,
    tried,
)

# --- heartbeats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_s", "nodes", "expected"),
    [
        (1.0, 1, HEARTBEAT_S),
        (5.0, 1, HEARTBEAT_S),
        (0.4, 1, 0.4 / BEATS_PER_TIMEOUT),
        (0.1, 50, 0.1 / BEATS_PER_TIMEOUT),
        (1.0, 500, HEARTBEAT_S),
        (1.0, 501, 550 / 2000),
        (1.0, 1000, 1000 / 2000),
        (0.4, 1000, 1000 / 2000),
        (1.0, 8000, 8000 / 2000),
    ],
)
def test_a_quarter_of_the_timeout_lies_between_heartbeats_at_most_250_ms_and_longer_for_more_than_500_nodes(
    timeout_s: float, nodes: int, expected: float
) -> None:
    assert interval_s(timeout_s, nodes) == expected


def test_as_a_job_grows_the_interval_changes_with_every_50_nodes_only() -> None:
    assert len({interval_s(1.0, nodes) for nodes in range(501, 1001)}) == 10


def test_the_leader_sends_heartbeats_and_another_node_answers_them_and_watches_the_leader() -> None:
    assert leading().every(SetHeartbeats)[-1] == SetHeartbeats(HEARTBEAT_S, TIMEOUT_S)
    assert following().every(SetHeartbeats)[-1] == SetHeartbeats(0.0, TIMEOUT_S)


def test_with_a_shorter_timeout_heartbeats_are_more_frequent() -> None:
    assert leading(silence_timeout_s=0.3).every(SetHeartbeats)[-1] == SetHeartbeats(0.3 / BEATS_PER_TIMEOUT, 0.3)


def test_in_a_large_job_the_timeout_is_as_long_as_three_intervals() -> None:
    bench = leading()
    target = LinkTarget("host", LINK, 1, dialable=True)
    bench.facts.links.targets = {f"n{number}": target for number in range(1000)}
    bench.facts.links.watched_for = (bench.facts.view, bench.facts.memory.gone)
    bench.at(2.6)
    assert bench.every(SetHeartbeats)[-1] == SetHeartbeats(0.5, BEATS_MIN * 0.5)


def test_a_node_that_does_not_watch_the_leader_watches_for_no_silence() -> None:
    bench = Bench("b", "1000", after="a")
    assert not watches_leader(bench.facts)
    assert bench.every(SetHeartbeats) == []


def test_with_timeout_0_there_are_no_heartbeats_and_nobody_is_watched_for_silence() -> None:
    assert leading(silence_timeout_s=0.0).every(SetHeartbeats) == []
    assert following(silence_timeout_s=0.0).every(SetHeartbeats) == []


def test_a_leader_that_has_lost_its_registration_continues_as_it_was_told() -> None:
    bench = leading()
    known = bench.every(SetHeartbeats)
    bench.offline = True
    bench.expire()
    assert not bench.registered
    assert bench.every(SetHeartbeats) == known


def test_a_node_that_takes_the_lead_sends_heartbeats() -> None:
    bench = following()
    bench.lose("a")
    bench.wake()
    assert bench.facts.leads
    assert bench.every(SetHeartbeats)[-1].every_s == HEARTBEAT_S


# --- a silent node is not heard -----------------------------------------------------------------------------------


def test_a_silent_node_counts_as_unheard_although_its_link_is_up() -> None:
    bench = leading()
    silent(bench)
    assert bench.facts.memory.linked == {"c"}
    assert bench.facts.memory.unheard == {"b"}
    assert bench.facts.links.up == {"b", "c"}
    heard(bench, "b")
    assert bench.facts.memory.linked == {"b", "c"}


def test_the_time_for_which_a_node_is_heard_begins_again_after_its_silence() -> None:
    bench = leading()
    assert bench.facts.memory.heard_since == {"b": 0.0, "c": 0.0}
    silent(bench)
    bench.now = 3.2
    heard(bench, "b")
    assert bench.facts.memory.heard_since == {"b": 3.2, "c": 0.0}


def test_the_time_for_which_a_node_is_heard_begins_again_when_it_is_watched_again() -> None:
    bench = leading()
    bench.others("d", link=LINK)
    bench.links("b c d")
    assert bench.facts.memory.heard_since["d"] == REFRESHED
    bench.lose("d")
    bench.now = 3.0
    bench.others("d", link=LINK)
    bench.links("b c d")
    assert bench.facts.memory.heard_since == {"b": 0.0, "c": 0.0, "d": 3.0}


def test_a_silent_node_gets_no_vouch() -> None:
    bench = leading()
    assert grantable_seconds(bench.facts, "b", 1, bench.now) > 0.0
    silent(bench)
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == 0.0
    assert grantable_seconds(bench.facts, "c", 1, bench.now) > 0.0
    heard(bench, "b")
    assert grantable_seconds(bench.facts, "b", 1, bench.now) > 0.0


def test_what_is_known_of_silent_nodes_outlives_the_store_and_evictions_do_not() -> None:
    bench = leading()
    silent(bench)
    bench.facts.memory = replace(bench.facts.memory, evictions=(evicted("b", "host-b", 1, 3.0),))
    before = bench.facts.memory
    bench.facts.forget_store()
    after = bench.facts.memory
    assert (after.silent, after.heard_since, after.linked) == (before.silent, before.heard_since, before.linked)
    assert after.evictions == DecisionMemory().evictions == ()


# --- who suspects whom --------------------------------------------------------------------------------------------


def test_the_leader_suspects_a_silent_member_asks_the_others_and_refreshes_its_lease() -> None:
    bench = leading("b c d")
    silent(bench)
    created = bench.shelf.view.members["b"].create_revision
    target = LinkTarget("host-b", LINK, created, dialable=True)
    (trial,) = bench.every(TryPeer)
    assert (trial.node, trial.target, sorted(trial.helpers)) == ("b", target, ["c", "d"])
    assert trial.limit_s == TIMEOUT_S / 4
    assert bench.every(RefreshLease) == [RefreshLease()]
    assert bench.every(NoteSilence) == [NoteSilence(SilenceStep.SUSPECTED, "b", "host-b", 1.0, trial.helpers)]


def test_a_suspicion_is_told_in_one_sentence() -> None:
    bench = leading()
    silent(bench)
    assert bench.lines[-1] == "b (host host-b) has sent nothing for 1.0 s; c also tries to reach it"


def test_with_a_short_timeout_a_trial_has_150_ms() -> None:
    bench = leading(silence_timeout_s=0.3)
    bench.now = 2.6
    bench.tell(SilenceChanged({"b": SilentPeer(2.3, 0.3, 2.3)}))
    assert bench.every(TryPeer)[0].limit_s == TRIAL_MIN_S


def test_the_leader_does_not_suspect_a_silent_spare() -> None:
    bench = leading(np="3")
    bench.others("d", link=LINK)
    bench.links("b c d")
    silent(bench, "d")
    assert suspects(bench) == []


def test_another_node_suspects_only_the_leader() -> None:
    bench = following()
    silent(bench, "c")
    assert suspects(bench) == []
    silent(bench, "a c")
    assert suspects(bench) == ["a"]


def test_without_a_generation_no_node_is_suspected() -> None:
    bench = Bench("a", "4")
    bench.others("b c", link=LINK)
    bench.links("b c")
    silent(bench)
    assert suspects(bench) == []
    bench = Bench("b", "4", after="a")
    bench.others("a", link=LINK)
    bench.links("a")
    silent(bench, "a")
    assert suspects(bench) == []


def test_an_agent_that_was_held_up_itself_suspects_nobody_before_a_refresh_that_it_sent_afterwards() -> None:
    bench = leading()
    before = len(bench.every(RefreshLease))
    silent(bench, at=4.0, since=3.0, held_up_at=2.9)
    assert suspects(bench) == []
    assert len(bench.every(RefreshLease)) == before + 1
    refreshed(bench, 4.1)
    assert suspects(bench) == ["b"]


def test_an_answer_to_what_it_asked_before_it_was_held_up_counts_for_nothing() -> None:
    bench = leading()
    silent(bench)
    silent(bench, at=3.4, held_up_at=3.3)
    tried(bench, unreached_by="c")
    refreshed(bench, 3.5)
    assert suspects(bench) == ["b", "b"]
    assert is_registered(bench, "b")
    tried(bench, unreached_by="c")
    assert not is_registered(bench, "b")


def test_a_node_that_is_not_registered_suspects_nobody() -> None:
    bench = following()
    bench.offline = True
    bench.expire()
    silent(bench, "a")
    assert suspects(bench) == []


def test_in_a_job_that_has_ended_nobody_is_suspected() -> None:
    bench = following()
    bench.verdict()
    bench.tell()
    assert bench.facts.view.verdict is not None
    silent(bench, "a")
    assert suspects(bench) == []


def test_a_node_whose_host_was_evicted_lately_is_not_suspected() -> None:
    bench = leading("b c d e f")
    bench.facts.memory = replace(bench.facts.memory, evictions=(evicted("x", "host-b", 1, 0.0),))
    silent(bench, "b c")
    assert suspects(bench) == ["c"]


def test_each_silence_of_an_evicted_host_restarts_its_hour() -> None:
    bench = leading()
    bench.facts.memory = replace(bench.facts.memory, evictions=(evicted("x", "host-b", 1, 0.0),))
    silent(bench)
    assert bench.facts.memory.evictions[0].silence_counts_at == NOTICED + SILENCE_COUNTS_AFTER_S
    silent(bench, at=4.0)
    assert bench.facts.memory.evictions[0].silence_counts_at == NOTICED + SILENCE_COUNTS_AFTER_S, "the same silence"


# --- who tries to reach it ----------------------------------------------------------------------------------------


def test_three_others_are_asked_and_next_time_those_that_were_not() -> None:
    bench = leading("b c d e f g h")
    silent(bench)
    first = bench.every(TryPeer)[0].helpers
    tried(bench)
    bench.at(NOTICED + TIMEOUT_S)
    second = bench.every(TryPeer)[1].helpers
    assert len(first) == len(second) == HELPERS_MAX
    assert len({*first, *second}) == 2 * HELPERS_MAX
    assert not {"a", "b"} & {*first, *second}


def test_first_those_on_other_hosts_than_this_node_and_the_silent_one_are_asked() -> None:
    bench = Bench("a", "7")
    hosts = {"b": "host-b", "c": "host-b", "d": "host-a", "e": "host-e", "f": "host-f", "g": "host-g"}
    for node, host in hosts.items():
        bench.others(node, link=LINK, host=host)
    bench.links("b c d e f g")
    refreshed(bench, 1.25)
    refreshed(bench, REFRESHED)
    silent(bench)
    tried(bench)
    bench.at(NOTICED + TIMEOUT_S)
    assert [sorted(trial.helpers) for trial in bench.every(TryPeer)] == [["e", "f", "g"]] * 2


def test_the_leader_asks_only_nodes_that_it_hears() -> None:
    bench = leading("b c d e f")
    bench.links("b d e f")
    silent(bench)
    (trial,) = bench.every(TryPeer)
    assert sorted(trial.helpers) == ["d", "e", "f"]


def test_another_node_asks_members_of_the_generation() -> None:
    bench = following("a b c d")
    bench.others("x", link=LINK)
    silent(bench, "a")
    assert set(bench.every(TryPeer)[0].helpers) == {"c", "d"}


def test_a_node_that_is_proven_dead_is_asked_again_only_when_it_has_registered_again() -> None:
    bench = leading("b c d")
    created = bench.shelf.view.members["d"].create_revision
    bench.facts.memory = replace(bench.facts.memory, gone=frozenset({("c", 1), ("d", created)}))
    silent(bench)
    assert bench.every(TryPeer)[0].helpers == ("c",)


def test_a_node_that_does_not_lead_asks_also_one_that_was_proven_dead() -> None:
    bench = following()
    bench.facts.memory = replace(bench.facts.memory, gone=frozenset({("c", 99)}))
    silent(bench, "a")
    assert bench.every(TryPeer)[0].helpers == ("c",), "it does not know whether c has registered again"


# --- what comes of it ---------------------------------------------------------------------------------------------


def test_a_suspect_that_another_node_reaches_is_cleared_and_tried_again_some_timeouts_later() -> None:
    bench = leading()
    silent(bench)
    bench.now = 3.2
    tried(bench, reached_by="c")
    assert steps(bench) == [(SilenceStep.SUSPECTED, "b", ("c",)), (SilenceStep.CLEARED, "b", ("c",))]
    assert bench.lines[-1] == "b (host host-b) is alive: c reached it"
    again = 3.2 + REACHED_TIMEOUTS * TIMEOUT_S
    for sent_at in (3.75, 5.0, 6.25, 7.5):
        refreshed(bench, sent_at)
    assert suspects(bench) == ["b"]
    assert bench.core.wake_at == pytest.approx(again)
    bench.wake()
    assert suspects(bench) == ["b", "b"]
    assert is_registered(bench, "b")


def test_each_trial_after_a_node_was_cleared_is_a_suspicion_of_its_own() -> None:
    bench = leading()
    silent(bench)
    tried(bench, reached_by="c")
    bench.at(NOTICED + REACHED_TIMEOUTS * TIMEOUT_S)
    tried(bench, reached_by="a")
    heard(bench, "b")
    assert [step for step, _, _ in steps(bench)] == [SilenceStep.SUSPECTED, SilenceStep.CLEARED] * 2


def test_a_trial_that_has_led_to_nothing_is_repeated_and_that_is_no_further_suspicion() -> None:
    bench = leading("b c d e", np="5:5")
    silent(bench)
    tried(bench, unreached_by="c d e")
    assert is_registered(bench, "b"), "five nodes are needed"
    bench.at(NOTICED + TIMEOUT_S)
    assert suspects(bench) == ["b", "b"]
    assert [step for step, _, _ in steps(bench)] == [SilenceStep.SUSPECTED]


def test_a_trial_without_an_answer_is_repeated() -> None:
    bench = leading()
    silent(bench)
    refreshed(bench, 3.75)
    again_at = NOTICED + TIMEOUT_S / 4 + GIVEN_UP_S
    bench.at(again_at - 0.01)
    assert suspects(bench) == ["b"]
    bench.at(again_at)
    assert suspects(bench) == ["b", "b"]


def test_the_answer_to_a_former_trial_is_ignored() -> None:
    bench = leading()
    silent(bench)
    refreshed(bench, 3.75)
    bench.at(NOTICED + TIMEOUT_S / 4 + GIVEN_UP_S)
    bench.tell(PeerTried(bench.every(TryPeer)[0].number, "b", (), ("c",)))
    assert is_registered(bench, "b")
    tried(bench, unreached_by="c")
    assert not is_registered(bench, "b")


def test_a_suspect_that_is_heard_again_is_cleared() -> None:
    bench = leading()
    silent(bench)
    heard(bench, "b")
    assert steps(bench)[1:] == [(SilenceStep.CLEARED, "b", ())]
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")


def test_a_suspect_whose_link_is_down_is_not_cleared_by_that() -> None:
    bench = leading()
    silent(bench)
    heard(bench)
    bench.tell(LinksChanged(frozenset({"c"})))
    assert [step for step, _, _ in steps(bench)] == [SilenceStep.SUSPECTED]


def test_the_next_silence_of_a_node_is_another_suspicion() -> None:
    bench = leading()
    silent(bench)
    heard(bench, "b")
    silent(bench, at=4.5, since=3.5)
    assert suspects(bench) == ["b", "b"]
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b"), "the lease was refreshed before this silence began"
