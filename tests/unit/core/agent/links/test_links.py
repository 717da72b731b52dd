"""Whom an agent watches over links, when it doubts them, and what that changes."""

from __future__ import annotations

import msgspec

from elastic.core.agent.actions import AskVouch, DoubtLinks, LinkTarget, WatchLinks
from elastic.core.agent.events import LinksChanged, ProcessProvenDead
from elastic.core.agent.state import Phase
from elastic.core.failure_class import FailureClass
from elastic.core.membership.decision import Reason
from elastic.core.membership.running import CAUSE_S
from elastic.core.model import ChangeReason, Outcome, OutcomeKind, Predecessor
from tests.support.agent_harness import Bench, running, vouched
from tests.support.job_transcript import worker_exit
from tests.support.strategies import KEYS

TTL_S = 5.0
REFRESH_S = TTL_S / 4


def first(nodes: str = "b c") -> Bench:
    """Node `a` runs generation 1 as its M_id 0 with others whose agents listen at port 9000."""
    bench = Bench("a", f"{1 + len(nodes.split())}")
    bench.others(nodes, link=9000)
    bench.links(nodes)
    assert bench.phase is Phase.RUNNING
    return bench


def second() -> Bench:
    """Node `b` runs generation 1 as its M_id 1; it watches `a`, the leader, whose agent listens."""
    bench = running()
    bench.others("a", link=9000)
    bench.lead("a")
    bench.look()
    bench.links("a")
    return bench


def watched(bench: Bench) -> dict[str, LinkTarget]:
    """Whom the agent was last told to watch."""
    return dict(bench.every(WatchLinks)[-1].targets)


def target(bench: Bench, node: str) -> LinkTarget:
    """Where a registered node's agent listens."""
    generation = bench.facts.generation
    member = generation is not None and generation.index(node) is not None
    return LinkTarget(f"host-{node}", 9000, bench.shelf.view.members[node].create_revision, dialable=member)


# --- who is watched -----------------------------------------------------------------------------------------------


def test_the_leader_watches_every_other_registered_node() -> None:
    bench = first()
    bench.others("d", link=9000)
    assert watched(bench) == {node: target(bench, node) for node in "bcd"}


def test_every_other_agent_watches_the_leader() -> None:
    bench = second()
    bench.others("c", link=9000)
    assert watched(bench) == {"a": target(bench, "a")}


def test_a_node_that_takes_the_lead_keeps_its_link_to_the_last_leader_which_may_work_on() -> None:
    bench = second()
    before = target(bench, "a")
    bench.lose("a")
    assert watched(bench) == {"a": before}
    bench.wake()
    assert bench.facts.leads
    assert watched(bench) == {"a": before}


def test_a_leader_whose_death_is_proven_is_watched_no_more() -> None:
    bench = second()
    bench.offline = True  # Nobody takes its place yet.
    bench.tell(ProcessProvenDead("a", bench.shelf.view.members["a"].create_revision, "host-a"))
    assert watched(bench) == {}


def test_a_spare_watches_the_leader_too_and_a_leader_without_a_listener_is_not_watched() -> None:
    bench = Bench(after="a")
    assert bench.every(WatchLinks) == []
    bench.others("c", link=9000)
    bench.lead("c")
    bench.look()
    assert watched(bench) == {"c": target(bench, "c")}


def test_whoever_lost_its_own_key_while_it_works_keeps_its_links() -> None:
    bench = second()
    bench.tell(vouched(60.0))
    told = len(bench.every(WatchLinks))
    bench.offline = True
    bench.expire()
    assert bench.phase is Phase.RUNNING
    assert not bench.registered
    assert len(bench.every(WatchLinks)) == told


def test_an_agent_without_a_listener_is_not_watched() -> None:
    bench = Bench("a", "2")
    bench.others("b")
    assert bench.every(WatchLinks) == []


def test_a_node_whose_death_is_proven_is_watched_no_more_and_one_that_lost_its_key_is() -> None:
    bench = first()
    gone = bench.shelf.view.members["b"].create_revision
    kept = target(bench, "c")
    bench.shelf.delete(KEYS.member("c"))
    bench.look()
    assert watched(bench) == {"b": target(bench, "b"), "c": kept}
    bench.tell(ProcessProvenDead("b", gone, "host-b"))
    assert watched(bench) == {"c": kept}


def test_nothing_is_watched_anew_while_nothing_changes() -> None:
    bench = first()
    told = len(bench.every(WatchLinks))
    for second_ in range(1, 20):
        bench.at(second_ / 10)
    assert len(bench.every(WatchLinks)) == told


# --- what is doubted ----------------------------------------------------------------------------------------------

DOUBTED = DoubtLinks(REFRESH_S)
NOT_DOUBTED = DoubtLinks(0.0)


def test_nothing_is_doubted_while_nothing_is_wrong() -> None:
    bench = first()
    for quarter in range(1, 100):
        bench.at(quarter * REFRESH_S)
        bench.refreshed()
    assert bench.every(DoubtLinks) == []
    assert bench.every(AskVouch) == []


def test_a_failure_that_is_a_consequence_is_acted_on_after_a_moment() -> None:
    bench = first()
    failed = Outcome(
        ended=OutcomeKind.FAILED, over=False, host="host-b", exits=(worker_exit(1, failure=FailureClass.SECONDARY),)
    )
    bench.shelf.put(KEYS.outcome(1, "b"), failed)
    bench.look()
    assert bench.facts.generation is not None
    assert bench.facts.generation.g == 1
    assert bench.core.wake_at == CAUSE_S
    bench.wake()
    assert bench.facts.generation is not None
    assert (bench.facts.generation.g, bench.facts.generation.why) == (2, ChangeReason.FAILURE)


def test_a_member_whose_key_is_gone_is_doubted_and_works_on_for_as_long_as_it_answers() -> None:
    bench = first()
    bench.shelf.delete(KEYS.member("b"))
    bench.look()
    bench.at(REFRESH_S)
    assert bench.every(DoubtLinks) == [DOUBTED]
    assert bench.facts.succession.decision is not None
    assert bench.facts.succession.decision.code is Reason.TRAINING
    bench.others("b", link=9000)
    assert bench.every(DoubtLinks) == [DOUBTED, NOT_DOUBTED]


def test_a_node_that_left_the_job_is_not_doubted_once_the_others_run_without_it() -> None:
    bench = first()
    bench.shelf.delete(KEYS.member("c"))
    bench.look()
    assert bench.every(DoubtLinks) == [DOUBTED]
    bench.links("b")  # It said goodbye: nothing proves its death.
    bench.world(2, "a b", before=Predecessor(1, ("a", "b", "c"), ChangeReason.NODE_LOST))
    bench.gone()
    bench.shelf.put(KEYS.outcome(1, "b"), Outcome(ended=OutcomeKind.STOPPED, over=True, host="host-b"))
    bench.look()
    bench.go(2)
    assert bench.phase is Phase.RUNNING
    assert bench.every(DoubtLinks) == [DOUBTED, NOT_DOUBTED]


def test_a_silent_spare_does_not_keep_the_leader_from_holding_its_right() -> None:
    bench = first("b")
    bench.others("s", link=9000)
    bench.links("b s", hears="b")
    bench.offline = True
    for quarter in range(1, 9):
        bench.at(quarter * REFRESH_S)
    assert bench.phase is Phase.RUNNING
    assert bench.facts.workers.run_deadline.until() > bench.now


def test_a_member_whose_key_is_gone_and_that_does_not_answer_is_lost() -> None:
    bench = first()
    bench.hears = frozenset("c")
    bench.shelf.delete(KEYS.member("b"))
    bench.look()
    assert bench.facts.generation is not None
    assert [place.node for place in bench.facts.generation.members] == ["a", "c"]
    assert bench.facts.memory.linked == {"c"}


def test_a_member_whose_key_is_gone_may_miss_one_question_and_not_two() -> None:
    bench = first()
    bench.shelf.delete(KEYS.member("b"))
    bench.look()
    bench.hears = frozenset("c")
    bench.at(REFRESH_S)
    assert bench.facts.generation is not None
    assert bench.facts.generation.index("b") is not None
    bench.at(2 * REFRESH_S)
    assert bench.facts.generation.index("b") is None


# --- vouching -----------------------------------------------------------------------------------------------------


def test_a_member_whose_lease_is_not_refreshed_asks_for_a_word_at_each_interval() -> None:
    bench = second()
    bench.offline = True
    bench.at(2 * REFRESH_S)
    bench.at(2 * REFRESH_S + 0.1)
    assert bench.every(AskVouch) == [AskVouch(1)]
    bench.at(3 * REFRESH_S)
    assert bench.every(AskVouch) == [AskVouch(1), AskVouch(1)]


def test_a_link_that_is_not_wanted_any_more_says_nothing_of_its_node() -> None:
    bench = first()
    bench.links("b", "c")
    bench.lead("b")
    bench.look()
    assert watched(bench).keys() == {"b"}
    bench.core.handle(LinksChanged(frozenset({"b"})), bench.now)
    assert bench.facts.memory.unheard == frozenset()


def test_a_member_to_which_no_leader_has_had_a_link_yet_is_not_taken_for_dead_where_nobody_listens() -> None:
    bench = second()
    generation = bench.facts.generation
    assert generation is not None
    assert watched(bench)["a"].dialable
    unlinked = msgspec.structs.replace(generation, g=2, unlinked=("a",))
    bench.shelf.put(KEYS.generation, unlinked)
    bench.look()
    assert not watched(bench)["a"].dialable
