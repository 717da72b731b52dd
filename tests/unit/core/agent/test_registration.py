"""Many nodes register in one instant: those that come second wait for their watches, and none of them lists."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import Action, FindMember, MirrorKeys, Relist, SendTransaction
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import LeaseGranted, MemberFound, SessionLost, Tick, TransactionAnswered, ViewChanged
from elastic.core.agent.state import AgentState, Timeouts
from elastic.core.kv import Put
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobSpec, Leader, Np
from elastic.core.transactions import Transaction
from elastic.core.view import StoredDocument, StoreView
from tests.support.job_transcript import member
from tests.support.strategies import KEYS

SPEC = JobSpec(np=Np(1, 9, 9), slots=1)
EMPTY = StoreView(revision=5)
HALF = StoreView(revision=6, incarnation=StoredDocument("i", 6, 6))
WHOLE = StoreView(revision=6, incarnation=StoredDocument("i", 6, 6), spec=StoredDocument(SPEC, 6, 6))


def sent(actions: Sequence[Action]) -> list[Transaction]:
    return [action.transaction for action in actions if isinstance(action, SendTransaction)]


@pytest.fixture
def core() -> AgentCore:
    """An agent that is about to register in an empty job, with a lease."""
    facts = AgentState(
        NodeIdentity("n", member("h"), SPEC, "i"), KEYS, Timeouts(15.0, 2.0), DecisionPolicy("n"), now=0.0
    )
    core = AgentCore(facts)
    core.handle(ViewChanged(EMPTY, 1), 0.0)
    return core


def test_who_comes_second_registers_again_as_soon_as_its_watch_shows_the_spec(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    assert core.handle(TransactionAnswered(first, False, 9), 0.2) == []
    assert core.handle(Tick(), 0.9) == []
    assert core.handle(ViewChanged(HALF, 1), 1.0) == []
    (second,) = sent(core.handle(ViewChanged(WHOLE, 1), 1.05))
    assert second.kind == "register"


def test_who_came_second_and_has_seen_it_meanwhile_registers_again_at_once(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    core.handle(ViewChanged(WHOLE, 1), 0.2)
    assert sent(core.handle(TransactionAnswered(first, False, 9), 0.3))


def test_a_watch_that_shows_nothing_is_waited_for_a_second_or_two_and_then_it_lists(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    core.handle(TransactionAnswered(first, False, 9), 0.2)
    assert core.wake_at is not None
    assert 1.2 <= core.wake_at <= 2.2
    assert core.handle(Tick(), core.wake_at) == [Relist()]
    assert sent(core.handle(ViewChanged(EMPTY, 2), 2.3))


def test_a_store_that_was_emptied_before_it_showed_the_registration_is_listed_once_and_registered_in_again(
    core: AgentCore,
) -> None:
    """Its revisions begin again, so that it may never come to that of the first registration."""
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    core.handle(TransactionAnswered(first, True, 9), 0.2)
    core.handle(SessionLost(7, "not found"), 0.3)
    core.handle(ViewChanged(StoreView(revision=1), 2), 0.4)
    core.handle(LeaseGranted(8, 5.0, 0.4), 0.5)
    assert core.wake_at is not None
    assert Relist() in core.handle(Tick(), core.wake_at)
    actions = core.handle(ViewChanged(StoreView(revision=1), 3), 2.5)
    assert Relist() not in actions
    (again,) = sent(actions)
    assert (again.kind, again.lease) == ("register", 8)


def test_a_node_that_registers_in_a_job_with_a_leader_asks_the_store_for_nothing_else(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    actions = core.handle(TransactionAnswered(first, True, 9), 0.2)
    leader = StoredDocument(Leader(node="m", host="h"), 8, 8, 3)
    me = StoredDocument(member("h"), 9, 9, 7)
    view = StoreView(revision=9, incarnation=WHOLE.incarnation, spec=WHOLE.spec, leader=leader, members={"n": me})
    actions += core.handle(ViewChanged(view, 1), 0.3)
    assert not [action for action in actions if isinstance(action, FindMember | MirrorKeys | Relist | SendTransaction)]


OTHER = StoreView(
    revision=6, incarnation=WHOLE.incarnation, spec=StoredDocument(JobSpec(np=Np(1, 2, 2), slots=1), 6, 6)
)


def test_a_search_for_a_member_that_the_store_does_not_answer_is_made_again_after_a_pause(core: AgentCore) -> None:
    core.handle(ViewChanged(OTHER, 1), 0.0)
    assert FindMember() in core.handle(LeaseGranted(7, 5.0, 0.0), 0.1)
    assert FindMember() not in core.handle(MemberFound(None), 0.3)
    assert core.wake_at == pytest.approx(0.8)
    assert FindMember() in core.handle(Tick(), 0.8)


@pytest.mark.parametrize("exists", [False, True])
def test_a_node_with_other_settings_registers_once_it_knows_whether_any_member_is_there(
    core: AgentCore, exists: bool
) -> None:
    core.handle(ViewChanged(OTHER, 1), 0.0)
    assert sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1)) == []
    (transaction,) = sent(core.handle(MemberFound(exists), 0.3))
    assert any(isinstance(put, Put) and put.key == KEYS.spec for put in transaction.then) is not exists
