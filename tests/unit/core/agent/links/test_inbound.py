"""Which nodes may have a link to an agent: when that is checked, what is read for it, and whose links are closed."""

from __future__ import annotations

from elastic.core.agent.actions import CloseInbound, LogLine, LookUpNode
from elastic.core.agent.events import InboundLinksChanged, NodeLookedUp, Tick, Vouched
from elastic.core.agent.links.inbound import CHECK_AFTER_S, CHECK_EVERY_S, UNCONFIRMED_MAX
from elastic.core.model import ChangeReason, Predecessor
from tests.support.agent_harness import LEASE_TTL_S, Bench, running, spare
from tests.support.strategies import KEYS


def closed(bench: Bench) -> list[str]:
    """Whose links this agent has closed so far."""
    return [node for action in bench.every(CloseInbound) for node in action.nodes]


def looked_up(bench: Bench) -> list[str]:
    """Which keys this agent has read so far."""
    return [action.node for action in bench.every(LookUpNode)]


# --- links ----------------------------------------------------------------------------------------------------------


def test_the_link_of_a_node_that_is_not_registered_is_closed_after_its_key_was_read() -> None:
    bench = running()
    bench.tell(InboundLinksChanged(("ghost",)))
    bench.at(CHECK_AFTER_S - 0.1)
    assert looked_up(bench) == []
    assert bench.core.wake_at is not None
    assert bench.core.wake_at <= CHECK_AFTER_S
    bench.at(CHECK_AFTER_S)
    assert looked_up(bench) == ["ghost"]
    assert closed(bench) == ["ghost"]


def test_the_link_of_a_member_stays_and_nothing_is_read_for_it() -> None:
    bench = running()
    bench.tell(InboundLinksChanged(("a",)))
    for minute in range(1, 5):
        bench.at(minute * CHECK_EVERY_S)
    assert looked_up(bench) == []
    assert closed(bench) == []


def test_the_link_of_a_member_that_is_not_registered_any_more_stays() -> None:
    bench = running()
    bench.shelf.delete(KEYS.member("a"))
    bench.look()
    bench.tell(InboundLinksChanged(("a",)))
    bench.at(CHECK_AFTER_S)
    assert closed(bench) == []


def test_the_link_of_a_node_of_the_generation_before_stays() -> None:
    bench = running()
    bench.world(2, "b", before=Predecessor(1, ("a", "b"), ChangeReason.NODE_LOST))
    bench.shelf.delete(KEYS.member("a"))
    bench.look()
    bench.tell(InboundLinksChanged(("a",)))
    bench.at(CHECK_AFTER_S)
    assert closed(bench) == []


def test_the_link_of_a_spare_stays_and_its_key_is_read_once_a_minute() -> None:
    bench = running()
    bench.others("c")
    bench.tell(InboundLinksChanged(("c",)))
    bench.at(CHECK_AFTER_S)
    bench.at(CHECK_EVERY_S)
    assert looked_up(bench) == ["c"]
    bench.shelf.delete(KEYS.member("c"))
    bench.at(CHECK_AFTER_S + CHECK_EVERY_S)
    assert looked_up(bench) == ["c", "c"]
    assert closed(bench) == ["c"]


def test_the_link_of_a_leader_that_is_a_spare_stays_and_nothing_is_read_for_it() -> None:
    bench = running()
    bench.others("c")
    bench.lead("c")
    bench.look()
    bench.tell(InboundLinksChanged(("c",)))
    bench.at(CHECK_AFTER_S)
    assert looked_up(bench) == []
    assert closed(bench) == []


def test_a_leader_reads_nothing_for_a_node_that_its_list_of_members_has() -> None:
    bench = Bench("a", "1")
    bench.others("b")
    bench.tell(InboundLinksChanged(("b",)))
    bench.at(CHECK_AFTER_S)
    assert looked_up(bench) == []
    assert closed(bench) == []


def test_links_stay_while_the_store_does_not_answer_and_are_checked_when_it_does() -> None:
    bench = running()
    bench.tell(InboundLinksChanged(("ghost",)))
    bench.offline = True
    bench.at(CHECK_AFTER_S)
    bench.at(2 * CHECK_AFTER_S)
    assert looked_up(bench) == ["ghost", "ghost"]
    assert closed(bench) == []
    bench.offline = False
    bench.at(3 * CHECK_AFTER_S)
    assert closed(bench) == ["ghost"]


def test_the_link_of_a_node_that_has_become_a_member_before_the_late_answer_stays() -> None:
    bench = running()
    bench.tell(InboundLinksChanged(("late",)))
    bench.core.handle(Tick(), CHECK_AFTER_S)
    bench.world(2, "a b late", before=Predecessor(1, ("a", "b"), ChangeReason.SCALE_UP))
    bench.tell(NodeLookedUp("late", registered=False))
    assert closed(bench) == []


def test_one_key_is_read_at_a_time() -> None:
    bench = running()
    bench.tell(InboundLinksChanged(("ghost1", "ghost2")))
    asked = bench.core.handle(InboundLinksChanged(("ghost1", "ghost2", "ghost3")), CHECK_AFTER_S)
    assert [action for action in asked if isinstance(action, LookUpNode)] == [LookUpNode("ghost1")]


def test_of_a_crowd_of_strangers_the_oldest_links_are_closed_at_once_and_none_that_is_confirmed() -> None:
    bench = running()
    bench.others("c")
    bench.tell(InboundLinksChanged(("c",)))
    bench.at(CHECK_AFTER_S)
    ghosts = tuple(f"ghost{number}" for number in range(UNCONFIRMED_MAX + 2))
    bench.tell(InboundLinksChanged(("c", "a", *ghosts)))
    assert closed(bench) == ["ghost0", "ghost1"]
    (line,) = [action for action in bench.every(LogLine) if "closed" in action.text]
    assert line.text.startswith("2 links are closed"), "one line, however many links"


def test_before_the_store_was_read_nothing_is_closed() -> None:
    bench = Bench(offline=True)
    bench.tell(InboundLinksChanged(("a",)))
    bench.at(CHECK_AFTER_S)
    assert looked_up(bench) == []
    assert closed(bench) == []


# --- grants ---------------------------------------------------------------------------------------------------------


def test_a_member_grants_no_more_than_the_time_of_a_lease() -> None:
    bench = running()
    bench.tell(Vouched("a", 1, 3.0, 86_400.0))
    assert bench.facts.workers.run_deadline.until() == 3.0 + LEASE_TTL_S


def test_nobody_but_a_member_of_the_generation_or_the_leader_grants_anything() -> None:
    bench = running()
    bench.others("c")  # It is registered, and a spare.
    before = bench.facts.workers.run_deadline
    for node in ("ghost", "c", "b"):  # The last one is this node.
        bench.tell(Vouched(node, 1, 3.0, 4.0))
    assert bench.facts.workers.run_deadline == before


def test_a_leader_that_is_no_member_of_the_generation_grants() -> None:
    bench = running()
    bench.others("c")
    bench.lead("c")
    bench.look()
    bench.tell(Vouched("c", 1, 3.0, 4.0))
    assert bench.facts.workers.run_deadline.until() == 3.0 + 4.0


def test_a_spare_takes_no_grant() -> None:
    bench = spare()
    bench.tell(Vouched("a", 1, 3.0, 4.0))
    assert bench.facts.workers.run_deadline.vouched_until == float("-inf")
