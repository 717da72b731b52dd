"""Many nodes register in one instant: who comes second waits for its watch, and nobody lists or searches for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elastic.core.admission import NodeIdentity
from elastic.core.agent.actions import Action, FindPredecessor, MirrorKeys, Relist, SendTransaction
from elastic.core.agent.core import AgentCore
from elastic.core.agent.events import LeaseGranted, PredecessorFound, Tick, TransactionAnswered, ViewChanged
from elastic.core.agent.state import AgentState, Timeouts
from elastic.core.kv import KeyValue
from elastic.core.membership.decision import DecisionPolicy
from elastic.core.model import JobSpec, Np
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


def test_who_knows_who_registered_before_it_follows_it_without_a_search(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    before = KeyValue(KEYS.member("m"), b"{}", 8, 8, 6)
    actions = core.handle(TransactionAnswered(first, True, 9, before), 0.2)
    assert MirrorKeys(complete=False, node="m", known=before) in actions
    assert not [action for action in actions if isinstance(action, FindPredecessor)]


def test_whose_name_alone_is_known_is_followed_and_read(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    actions = core.handle(TransactionAnswered(first, True, 9, KeyValue(KEYS.member("m"), b"", 0, 0)), 0.2)
    assert MirrorKeys(complete=False, node="m") in actions


def test_who_sees_itself_registered_before_it_is_answered_does_not_search(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    me = StoredDocument(member("h"), 9, 9, 7)
    view = StoreView(revision=9, incarnation=WHOLE.incarnation, spec=WHOLE.spec, members={"n": me})
    actions = core.handle(ViewChanged(view, 1), 0.2)
    assert not [action for action in actions if isinstance(action, FindPredecessor | MirrorKeys)]
    assert FindPredecessor(9) in core.handle(TransactionAnswered(first, True, 9), 0.3)


def test_where_the_one_before_is_not_there_any_more_it_searches(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    core.handle(TransactionAnswered(first, True, 9, KeyValue(KEYS.member("m"), b"", 0, 0)), 0.2)
    me = StoredDocument(member("h"), 9, 9, 7)
    view = StoreView(revision=9, incarnation=WHOLE.incarnation, spec=WHOLE.spec, members={"n": me}, follows="m")
    assert FindPredecessor(9) in core.handle(ViewChanged(view, 2), 0.3)


def test_a_search_that_the_store_does_not_answer_is_made_again_after_a_pause(core: AgentCore) -> None:
    (first,) = sent(core.handle(LeaseGranted(7, 5.0, 0.0), 0.1))
    assert FindPredecessor(9) in core.handle(TransactionAnswered(first, True, 9), 0.2)
    assert FindPredecessor(9) not in core.handle(PredecessorFound(9, None, failed=True), 0.3)
    assert core.wake_at == pytest.approx(0.8)
    assert FindPredecessor(9) in core.handle(Tick(), 0.8)
