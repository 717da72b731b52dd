"""Evictions: which silent members the leader evicts, and what follows."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from elastic.core.agent.actions import (
    NoteSilence,
    RevokeLease,
    SilenceStep,
    TryPeer,
)
from elastic.core.agent.candidates import RANK_S
from elastic.core.agent.events import (
    SessionLost,
    TransactionAnswered,
)
from elastic.core.agent.links.silence import (
    BEATS_PER_TIMEOUT,
    is_confirmed,
)
from elastic.core.agent.links.vouching import grantable_seconds
from elastic.core.kv import Compare, Delete, KeyRange
from elastic.core.membership.decision import Reason
from elastic.core.membership.evictions import SILENCE_COUNTS_AFTER_S, evicted
from elastic.core.membership.situation import BATCH_S
from elastic.core.model import ChangeReason, EvictedNode, JobMode, Predecessor
from elastic.core.ps.model import ClusterSpec, PsLayout
from elastic.core.run_deadline import CLOCK_ERROR
from tests.support.agent_harness import Bench
from tests.support.job_transcript import member
from tests.support.silence_harness import (
    BEGAN,
    LINK,
    NOTICED,
    REFRESHED,
    TIMEOUT_S,
    Transcript,
    evictions,
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
from tests.support.strategies import KEYS


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
    said = "b (host host-b) has sent nothing for 1.3 s, and c cannot connect to it: evicted"
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
    assert bench.facts.succession.decision is not None
    assert bench.facts.succession.decision.code is Reason.TRAINING, "its key is there: it was not evicted, perhaps"


def test_a_silence_is_confirmed_only_after_a_refresh_that_was_sent_after_it_began() -> None:
    bench = leading()
    silent(bench, at=3.6, since=2.6)
    tried(bench, unreached_by="c")
    assert is_registered(bench, "b")
    refreshed(bench, 3.7)
    assert not is_registered(bench, "b")


def test_a_trial_counts_for_one_timeout_and_is_then_repeated() -> None:
    bench = leading("b c d e")
    silent(bench)
    silent(bench, "b c", at=NOTICED + 0.1)
    tried(bench, unreached_by="d e")
    assert is_registered(bench, "b"), "two of five are silent"
    refreshed(bench, NOTICED + 0.2 + TIMEOUT_S)
    silent(bench, at=bench.now)
    assert suspects(bench) == ["b", "b"]
    assert is_registered(bench, "b")
    tried(bench, unreached_by="d e")
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
    assert bench.facts.generation.before == Predecessor(1, ("x", "b"), ChangeReason.NODE_LOST, broken=True)
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


def test_a_new_leader_counts_members_as_silent_until_it_is_linked_to_them() -> None:
    bench = following()
    silent(bench, "a")
    tried(bench, "a", unreached_by="c")
    bench.wake()
    assert bench.facts.leads
    assert is_registered(bench, "a")
    bench.links("a c")
    assert not is_registered(bench, "a")


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


def test_while_its_own_lease_is_not_refreshed_an_agent_confirms_no_silence() -> None:
    leader, follower = leading(), following()
    for bench, node in ((leader, "b"), (follower, "a")):
        silent(bench, node)
        bench.now = REFRESHED + 2.5
        tried(bench, node, unreached_by="c")
        bench.wake()
    assert is_registered(leader, "b")
    assert not follower.facts.leads


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
    assert said == ["b has registered again; for 60 min, nodes on host-b are not evicted for silence"]
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
