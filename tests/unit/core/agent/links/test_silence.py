"""Silent nodes: whom an agent suspects, who tries to reach a suspect, and which members the leader evicts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from elastic.core.agent.actions import (
    Action,
    LinkTarget,
    NoteSilence,
    RefreshLease,
    RevokeLease,
    SendTransaction,
    SetHeartbeats,
    SilenceStep,
    TryPeer,
)
from elastic.core.agent.candidates import RANK_S, watches_leader
from elastic.core.agent.events import (
    Event,
    LinksChanged,
    PeerTried,
    SessionLost,
    SilenceChanged,
    TransactionAnswered,
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
    is_confirmed,
)
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.agent.state import AgentState, Phase, SilentPeer
from elastic.core.kv import Compare, Delete, KeyRange
from elastic.core.membership.evictions import SILENCE_COUNTS_AFTER_S, evicted
from elastic.core.membership.memory import DecisionMemory
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import ChangeReason, EvictedNode, JobMode, Predecessor
from elastic.core.ps.model import ClusterSpec, PsLayout
from elastic.core.run_deadline import CLOCK_ERROR
from elastic.core.transactions import Transaction
from tests.support.agent_harness import Bench
from tests.support.job_transcript import member
from tests.support.strategies import KEYS

TIMEOUT_S = 1.0
LINK = 9000
BEGAN = 2.0
"""When a silent node was heard last."""
NOTICED = BEGAN + TIMEOUT_S
REFRESHED = 2.5
"""When the lease was refreshed last before that is noticed; the silence had begun."""


class Transcript:
    """Every event with what the core made of it."""

    def __init__(self) -> None:
        self.rows: list[tuple[Event, list[Action]]] = []

    def __call__(self, _: AgentState, event: Event, actions: list[Action]) -> None:
        self.rows.append((event, actions))

    @property
    def sent(self) -> list[Transaction]:
        """The transactions that were sent."""
        return [act.transaction for _, actions in self.rows for act in actions if isinstance(act, SendTransaction)]

    @property
    def kinds(self) -> list[str]:
        """Their kinds."""
        return [transaction.kind for transaction in self.sent]

    def made_of(self, kind: type[Action]) -> list[Event]:
        """The events after which the core asked for something of this kind."""
        return [event for event, actions in self.rows if any(isinstance(action, kind) for action in actions)]


def refreshed(bench: Bench, now: float) -> None:
    """The lease is refreshed then."""
    bench.now = now
    bench.refreshed()


def leading(nodes: str = "b c", np: str = "", **options: Any) -> Bench:
    """Node `a` leads generation 1, which runs on it and on these nodes; it hears them, and its lease is refreshed."""
    bench = Bench("a", np or f"{1 + len(nodes.split())}", **options)
    bench.others(nodes, link=LINK)
    bench.links(nodes)
    assert bench.phase is Phase.RUNNING
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    return bench


def following(nodes: str = "a b c", **options: Any) -> Bench:
    """Node `b` watches `a`, which leads generation 1; this runs on these nodes."""
    bench = Bench("b", f"{len(nodes.split())}", after="a", **options)
    bench.others("a", link=LINK)
    bench.lead("a")
    bench.others(" ".join(node for node in nodes.split() if node not in "ab"), link=LINK)
    bench.world(1, nodes, why=ChangeReason.FIRST)
    bench.go(1)
    assert bench.phase is Phase.RUNNING
    bench.links("a")
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    return bench


def silent(
    bench: Bench, nodes: str = "b", *, at: float = NOTICED, since: float = BEGAN, held_up_at: float = 0.0
) -> None:
    """These nodes, and no others, are silent: nothing was heard from them since then."""
    bench.now = at
    peers = {node: SilentPeer(since, TIMEOUT_S, since) for node in nodes.split()}
    bench.tell(SilenceChanged(peers, held_up_at))


def heard(bench: Bench, *nodes: str) -> None:
    """These nodes, which were silent, are heard again; no other node is silent."""
    bench.tell(SilenceChanged({}, heard=frozenset(nodes)))


def tried(bench: Bench, node: str = "b", *, reached_by: str = "", unreached_by: str = "", unheard: str = "") -> None:
    """The answer of the newest trial of a node comes: these reach it, and these do not."""
    number = [action.number for action in bench.every(TryPeer) if action.node == node][-1]
    answer = PeerTried(number, node, tuple(reached_by.split()), tuple(unreached_by.split()), frozenset(unheard.split()))
    bench.tell(answer)


def suspects(bench: Bench) -> list[str]:
    """Whom the agent has tried so far, in this order."""
    return [action.node for action in bench.every(TryPeer)]


def steps(bench: Bench) -> list[tuple[SilenceStep, str, tuple[str, ...]]]:
    """What was noted so far: the step, the node and the others."""
    return [(note.step, note.node, note.by) for note in bench.every(NoteSilence)]


def evictions(bench: Bench) -> list[str]:
    """The nodes whose eviction the agent remembers."""
    return [eviction.node for eviction in bench.facts.memory.evictions]


def is_registered(bench: Bench, node: str) -> bool:
    """Whether the store has this node."""
    return node in bench.shelf.view.members


# --- heartbeats ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout_s", "nodes", "expected"),
    [
        (1.0, 1, HEARTBEAT_S),
        (5.0, 1, HEARTBEAT_S),
        (0.4, 1, 0.4 / BEATS_PER_TIMEOUT),
        (1.0, 500, HEARTBEAT_S),
        (1.0, 501, 600 / 2000),
        (1.0, 1000, 1000 / 2000),
    ],
)
def test_a_quarter_of_the_timeout_lies_between_heartbeats_at_most_250_ms_and_longer_for_more_than_500_nodes(
    timeout_s: float, nodes: int, expected: float
) -> None:
    assert interval_s(timeout_s, nodes) == expected


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
    silent(bench, at=4.0, since=3.0, held_up_at=2.9)
    assert suspects(bench) == []
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
    bench = leading()
    bench.offline = True
    bench.expire()
    silent(bench)
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


def test_another_node_asks_members_of_the_generation_without_those_that_are_gone() -> None:
    bench = following("a b c d")
    bench.others("x", link=LINK)
    bench.facts.memory = replace(bench.facts.memory, gone=frozenset({("d", 99)}))
    silent(bench, "a")
    assert bench.every(TryPeer)[0].helpers == ("c",)


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


# --- eviction -----------------------------------------------------------------------------------------------------


def test_a_member_that_nobody_reaches_is_evicted_and_the_others_go_on() -> None:
    bench = leading()
    silent(bench)
    bench.now = 3.3
    tried(bench, unreached_by="c")
    assert not is_registered(bench, "b")
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["a", "c"]
    assert evictions(bench) == ["b"]
    (note,) = [note for note in bench.every(NoteSilence) if note.step is SilenceStep.EVICTED]
    assert (note.node, note.host, note.by) == ("b", "host-b", ("c",))
    assert note.silent_s == pytest.approx(1.3)
    said = "b (host host-b) has sent nothing for 1.3 s, and c does not reach it: evicted"
    assert said in bench.lines


def test_an_eviction_is_one_transaction_and_only_its_success_ends_the_lease() -> None:
    transcript = Transcript()
    bench = leading(watch=transcript)
    view = bench.shelf.view
    assert view.leader is not None
    own, other = view.members["a"], view.members["b"]
    before = len(transcript.kinds)
    silent(bench)
    tried(bench, unreached_by="c")
    assert transcript.kinds[before:] == ["evict", "form"], "nothing is decided before its answer has come"
    (sent,) = [transaction for transaction in transcript.sent if transaction.kind == "evict"]
    assert set(sent.compares) >= {
        Compare.created(KEYS.member("a"), own.create_revision),
        Compare.modified(KEYS.leader, view.leader.mod_revision),
        Compare.created(KEYS.member("b"), other.create_revision),
        Compare.absent(KEYS.verdict),
    }
    assert KeyRange.key(KEYS.incarnation) in [compare.range for compare in sent.compares]
    assert sent.then == (Delete(KeyRange.key(KEYS.member("b"))),)
    (ended,) = transcript.made_of(RevokeLease)
    assert isinstance(ended, TransactionAnswered)
    assert (ended.transaction, ended.succeeded) == (sent, True)
    assert bench.every(RevokeLease) == [RevokeLease(other.lease)]


def test_a_leader_that_was_replaced_meanwhile_evicts_nobody() -> None:
    bench = leading()
    silent(bench)
    bench.lead("c")
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")
    assert (bench.every(RevokeLease), evictions(bench)) == ([], [])
    assert [step for step, _, _ in steps(bench)] == [SilenceStep.SUSPECTED]


def test_a_member_that_has_registered_again_meanwhile_is_not_evicted() -> None:
    bench = leading()
    silent(bench)
    bench.shelf.delete(KEYS.member("b"))
    bench.shelf.put(KEYS.member("b"), member("host-b", link=LINK), leased=True)
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")
    assert (bench.every(RevokeLease), evictions(bench)) == ([], [])


def test_if_the_answer_is_lost_the_host_is_remembered_and_no_lease_ends() -> None:
    bench = leading()
    silent(bench)
    bench.offline = True
    tried(bench, unreached_by="c")
    assert evictions(bench) == ["b"]
    assert bench.every(RevokeLease) == []
    assert SilenceStep.EVICTED not in [step for step, _, _ in steps(bench)]


def test_a_silence_is_confirmed_only_after_a_refresh_that_was_sent_after_it_began() -> None:
    bench = leading()
    silent(bench, at=3.6, since=2.6)
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")
    refreshed(bench, 3.7)
    assert not is_registered(bench, "b")


def test_where_no_other_node_could_try_it_nothing_is_confirmed() -> None:
    bench = leading()
    silent(bench)
    tried(bench)
    assert is_registered(bench, "b")


def test_two_of_five_that_are_silent_at_once_are_left_to_their_leases() -> None:
    bench = leading("b c d e")
    silent(bench, "b")
    assert suspects(bench) == ["b"]
    silent(bench, "b c", at=3.1)
    tried(bench, unreached_by="d e")
    bench.at(NOTICED + 3 * TIMEOUT_S)
    assert suspects(bench) == ["b"]
    assert is_registered(bench, "b")
    assert is_registered(bench, "c")


def test_two_of_six_that_are_silent_at_once_are_evicted_one_after_the_other() -> None:
    bench = leading("b c d e f")
    silent(bench, "b c")
    tried(bench, unreached_by="d e f")
    tried(bench, "c", unreached_by="d e f")
    assert not is_registered(bench, "b")
    assert not is_registered(bench, "c")
    assert evictions(bench) == ["b", "c"]


def test_members_that_are_about_to_be_silent_count_as_silent() -> None:
    bench = leading("b c d e")
    silent(bench)
    tried(bench, unreached_by="d e", unheard="b c")
    assert is_registered(bench, "b")
    bench.at(NOTICED + TIMEOUT_S)
    tried(bench, unreached_by="d e", unheard="b")
    assert not is_registered(bench, "b")


def test_no_member_is_evicted_where_the_others_are_below_the_minimum() -> None:
    bench = leading(np="3:4")
    silent(bench)
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")


def test_a_spare_that_is_heard_makes_up_the_minimum() -> None:
    bench = leading(np="3:3")
    bench.others("d", link=LINK)
    bench.links("b c d")
    silent(bench)
    tried(bench, unreached_by="c d")
    assert not is_registered(bench, "b")
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["a", "c", "d"]


def test_a_silent_spare_does_not_make_up_the_minimum() -> None:
    bench = leading(np="3:3")
    bench.others("d", link=LINK)
    bench.links("b c d")
    silent(bench, "b d")
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")


def test_no_member_is_evicted_where_none_remains_that_is_in_the_world_whose_workers_run() -> None:
    bench = Bench("a", "2", after="x")
    bench.others("b", link=LINK)
    bench.world(1, "x b", why=ChangeReason.FIRST)
    bench.go(1)
    bench.lose("x")
    bench.at(1.0)
    assert bench.facts.leads
    bench.links("b")
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["b", "a"]
    assert bench.facts.generation.before == Predecessor(1, ("x", "b"), ChangeReason.LOSS, broken=True)
    silent(bench)
    tried(bench)
    assert suspects(bench) == ["b"]
    assert is_registered(bench, "b")


# --- a job of two nodes -------------------------------------------------------------------------------------------


def test_in_a_job_of_two_nodes_the_own_lease_refreshed_after_the_silence_began_takes_the_place_of_the_others() -> None:
    bench = leading("b")
    silent(bench, at=3.6, since=2.6)
    assert bench.every(TryPeer)[0].helpers == ()
    assert bench.lines[-1] == "b (host host-b) has sent nothing for 1.0 s"
    tried(bench)
    assert is_registered(bench, "b")
    refreshed(bench, 3.7)
    assert not is_registered(bench, "b")
    assert steps(bench)[-1] == (SilenceStep.EVICTED, "b", ())


def test_the_second_of_two_nodes_leaves_the_lead_a_moment_longer_to_the_first() -> None:
    bench = following("a b")
    silent(bench, "a")
    tried(bench, "a")
    assert bench.core.wake_at == pytest.approx(NOTICED + RANK_S + TIMEOUT_S / BEATS_PER_TIMEOUT)
    bench.wake()
    assert bench.facts.leads


# --- a silent leader ----------------------------------------------------------------------------------------------


def test_a_silent_leader_is_replaced_and_evicted_by_its_successor() -> None:
    transcript = Transcript()
    bench = following(watch=transcript)
    before = len(transcript.kinds)
    silent(bench, "a")
    assert bench.every(TryPeer)[0].helpers == ("c",)
    tried(bench, "a", unreached_by="c")
    assert is_registered(bench, "a")
    assert bench.core.wake_at == pytest.approx(NOTICED + RANK_S)
    bench.links("a c")
    bench.wake()
    assert bench.facts.leads
    assert transcript.kinds[before:] == ["lead", "evict", "form"]
    assert not is_registered(bench, "a")
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["b", "c"]
    assert steps(bench)[-1] == (SilenceStep.EVICTED, "a", ("c",))


def test_a_leader_that_others_reach_keeps_the_lead() -> None:
    bench = following()
    silent(bench, "a")
    tried(bench, "a", reached_by="c")
    bench.at(NOTICED + 0.5)
    assert not bench.facts.leads


def test_a_node_outside_the_generation_leaves_a_silent_leader_to_its_lease() -> None:
    bench = Bench("b", "1:3", after="a")
    bench.others("a c", link=LINK)
    bench.lead("a")
    bench.world(1, "a c", why=ChangeReason.FIRST)
    bench.go(1)
    bench.links("a")
    for now in (1.25, REFRESHED):
        refreshed(bench, now)
    silent(bench, "a")
    assert "a" in bench.facts.links.targets
    assert suspects(bench) == []


def test_a_node_whose_own_host_was_evicted_lately_leaves_a_silent_leader_to_its_lease() -> None:
    bench = following()
    bench.facts.memory = replace(bench.facts.memory, evictions=(evicted("b", "host-b", 1, 0.0),))
    silent(bench, "a")
    assert suspects(bench) == []


def test_a_node_that_has_not_heard_the_leader_since_it_leads_leaves_it_to_its_lease() -> None:
    bench = following()
    bench.now = BEGAN + 0.1
    bench.lead("c")
    bench.look()
    bench.links("c")
    silent(bench, "c")
    assert suspects(bench) == []
    silent(bench, "c", at=3.6, since=2.6)
    assert suspects(bench) == ["c"]


def test_a_leader_is_left_to_its_lease_while_many_of_those_that_are_asked_do_not_answer_either() -> None:
    bench = following("a b c d e f g h")
    silent(bench, "a")
    first = bench.every(TryPeer)[0].helpers
    tried(bench, "a", unreached_by=" ".join(first[:2]))
    assert not is_confirmed(bench.facts, "a")
    refreshed(bench, NOTICED + TIMEOUT_S)
    second = bench.every(TryPeer)[1].helpers
    assert not {*first} & {*second}
    tried(bench, "a", unreached_by=" ".join(second))
    assert is_confirmed(bench.facts, "a"), "one of six did not answer"


def test_a_leader_that_is_heard_before_the_successors_turn_keeps_the_lead() -> None:
    bench = following()
    silent(bench, "a")
    tried(bench, "a", unreached_by="c")
    heard(bench, "a")
    bench.at(NOTICED + 0.5)
    assert not bench.facts.leads


def test_a_node_that_gets_another_lease_does_not_count_what_it_has_not_heard_before() -> None:
    bench = following("a b")
    silent(bench, "a")
    tried(bench, "a")
    refreshed(bench, NOTICED)
    assert is_confirmed(bench.facts, "a")
    lease = bench.facts.registration.lease
    assert lease is not None
    bench.now = NOTICED + 0.005
    bench.tell(SessionLost(lease, "its time ran out"))
    refreshed(bench, NOTICED + 0.01)
    assert bench.facts.registration.registered
    assert not is_confirmed(bench.facts, "a")


# --- the store does not answer ------------------------------------------------------------------------------------


def test_while_the_store_does_not_answer_no_node_is_evicted_and_afterwards_its_silence_restarts() -> None:
    bench = leading()
    bench.offline = True
    silent(bench, at=10.0, since=9.0)
    tried(bench, unreached_by="c")
    bench.at(10.5)
    assert is_registered(bench, "b")
    bench.offline = False
    refreshed(bench, 10.6)
    assert suspects(bench) == ["b"]
    assert is_registered(bench, "b")
    bench.at(10.6 + TIMEOUT_S - 0.01)
    assert suspects(bench) == ["b"]
    refreshed(bench, 10.6 + TIMEOUT_S)
    assert suspects(bench) == ["b", "b"]
    tried(bench, unreached_by="c")
    assert not is_registered(bench, "b")


def test_a_silence_that_is_noticed_after_an_outage_begins_when_the_store_is_there_again() -> None:
    bench = leading()
    refreshed(bench, 10.0)
    silent(bench, at=10.2, since=9.2)
    assert suspects(bench) == []
    assert bench.core.wake_at == pytest.approx(10.0 + TIMEOUT_S)
    bench.wake()
    assert suspects(bench) == ["b"]


# --- an evicted node comes back -----------------------------------------------------------------------------------


def evicting() -> Bench:
    """The leader has evicted `b`."""
    bench = leading()
    silent(bench)
    tried(bench, unreached_by="c")
    assert evictions(bench) == ["b"]
    return bench


def test_an_evicted_node_gets_no_vouch_until_it_registers_again() -> None:
    bench = leading()
    created = bench.shelf.view.members["b"].create_revision
    bench.facts.memory = replace(bench.facts.memory, evictions=(evicted("b", "host-b", created, 0.0),))
    bench.offline = True
    bench.shelf.delete(KEYS.member("b"))
    bench.tell(bench.seen())
    assert grantable_seconds(bench.facts, "b", 1, bench.now) == 0.0
    assert grantable_seconds(bench.facts, "c", 1, bench.now) > 0.0


def test_the_leader_says_once_what_follows_for_the_host_of_an_evicted_node_that_registers_again() -> None:
    bench = evicting()
    bench.others("b", link=LINK)
    bench.others("d", link=LINK)
    said = [line for line in bench.lines if "has registered again" in line]
    assert said == ["b has registered again; for 60 min nodes on host-b are lost only when their lease ends"]
    assert bench.facts.memory.evictions[0].returned


@pytest.mark.parametrize(("after_s", "suspected"), [(-1.0, False), (1.0, True)])
def test_its_host_is_suspected_again_after_an_hour(after_s: float, suspected: bool) -> None:
    bench = evicting()
    bench.others("b", link=LINK)
    bench.links("b c")
    heard(bench)
    bench.at(10.0)
    assert bench.facts.generation is not None
    assert bench.facts.generation.index("b") is not None
    count, at = len(suspects(bench)), NOTICED + SILENCE_COUNTS_AFTER_S + after_s
    for before in (3.0, 1.5, 0.1):
        refreshed(bench, at - before)
    silent(bench, at=at, since=at - TIMEOUT_S)
    assert suspects(bench)[count:] == ["b"] * suspected


# --- jobs of parameter servers ------------------------------------------------------------------------------------


def tasks(bench: Bench) -> dict[str, str]:
    """The task of each node in the newest revision."""
    generation = bench.facts.generation
    assert isinstance(generation, ClusterSpec)
    return {place.node: " ".join(f"{task.role} {task.index}" for task in place.tasks) for place in generation.members}


def test_a_member_of_a_cluster_spec_is_evicted_also_below_the_minimum_and_its_task_is_not_given_away_earlier() -> None:
    layout = PsLayout(server_num=1, worker_num=1, separate=True)
    bench = leading(np="2:2", mode=JobMode.PS, layout=layout)
    bench.others("d", link=LINK)
    bench.links("b c d")
    silent(bench)
    tried(bench, unreached_by="c d")
    assert not is_registered(bench, "b")
    free_at = NOTICED + bench.spec.lease_ttl_s * (1 + CLOCK_ERROR) + bench.facts.policy.kill_s
    bench.at(free_at - 0.1)
    assert tasks(bench) == {"a": "server 0", "b": "worker 0", "c": "worker 1"}
    bench.at(free_at)
    bench.at(free_at + BATCH_S)
    assert tasks(bench) == {"a": "server 0", "c": "worker 1", "d": "worker 0"}


def test_the_revisions_of_a_cluster_spec_name_an_eviction_too() -> None:
    layout = PsLayout(server_num=1, worker_num=1, separate=True)
    bench = leading(mode=JobMode.PS, np="1:2", layout=layout)
    created = bench.shelf.view.members["b"].create_revision
    silent(bench)
    tried(bench, unreached_by="c")
    assert bench.facts.generation is not None
    assert bench.facts.generation.evicted == (EvictedNode("b", "host-b", created, SILENCE_COUNTS_AFTER_S),)
