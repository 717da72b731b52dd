"""Many nodes register in one instant: who comes second waits for its watch, and nobody lists or searches for it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from elastic.core.admission import Me
from elastic.core.agent.events import (
    Action,
    Answered,
    FindOlder,
    Follow,
    Granted,
    Older,
    Relist,
    Send,
    Tick,
    ViewChanged,
)
from elastic.core.agent.state import Facts, Limits
from elastic.core.agent.table import AgentCore
from elastic.core.decide import Policy
from elastic.core.keys import Stored, View
from elastic.core.kv import Entry
from elastic.core.model import Np, Spec
from elastic.core.transactions import Transaction
from tests.unit.documents import KEYS
from tests.unit.views import member

SPEC = Spec(np=Np(1, 9, 9), slots=1)
EMPTY = View(revision=5)
HALF = View(revision=6, incarnation=Stored("i", 6, 6))
WHOLE = View(revision=6, incarnation=Stored("i", 6, 6), spec=Stored(SPEC, 6, 6))


def sent(actions: Sequence[Action]) -> list[Transaction]:
    return [action.transaction for action in actions if isinstance(action, Send)]


@pytest.fixture
def core() -> AgentCore:
    """An agent that is about to register in an empty job, with a lease."""
    facts = Facts(Me("n", member("h"), SPEC, "i"), KEYS, Limits(), Policy("n"), now=0.0)
    core = AgentCore(facts)
    core.handle(ViewChanged(EMPTY, 1), 0.0)
    return core


def test_who_comes_second_registers_again_as_soon_as_its_watch_shows_the_spec(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    assert core.handle(Answered(first, False, 9), 0.2) == []
    assert core.handle(Tick(), 0.9) == []
    assert core.handle(ViewChanged(HALF, 1), 1.0) == []
    (second,) = sent(core.handle(ViewChanged(WHOLE, 1), 1.05))
    assert second.kind == "register"


def test_who_came_second_and_has_seen_it_meanwhile_registers_again_at_once(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    core.handle(ViewChanged(WHOLE, 1), 0.2)
    assert sent(core.handle(Answered(first, False, 9), 0.3))


def test_a_watch_that_shows_nothing_is_waited_for_a_second_or_two_and_then_it_lists(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    core.handle(Answered(first, False, 9), 0.2)
    assert core.wake_at is not None
    assert 1.2 <= core.wake_at <= 2.2
    assert core.handle(Tick(), core.wake_at) == [Relist()]
    assert sent(core.handle(ViewChanged(EMPTY, 2), 2.3))


def test_who_knows_who_registered_before_it_follows_it_without_a_search(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    before = Entry(KEYS.member("m"), b"{}", 8, 8, 6)
    actions = core.handle(Answered(first, True, 9, before), 0.2)
    assert Follow(complete=False, node="m", known=before) in actions
    assert not [action for action in actions if isinstance(action, FindOlder)]


def test_whose_name_alone_is_known_is_followed_and_read(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    actions = core.handle(Answered(first, True, 9, Entry(KEYS.member("m"), b"", 0, 0)), 0.2)
    assert Follow(complete=False, node="m") in actions


def test_who_sees_itself_registered_before_it_is_answered_does_not_search(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    me = Stored(member("h"), 9, 9, 7)
    view = View(revision=9, incarnation=WHOLE.incarnation, spec=WHOLE.spec, members={"n": me})
    actions = core.handle(ViewChanged(view, 1), 0.2)
    assert not [action for action in actions if isinstance(action, FindOlder | Follow)]
    assert FindOlder(9) in core.handle(Answered(first, True, 9), 0.3)


def test_where_the_one_before_is_not_there_any_more_it_searches(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    core.handle(Answered(first, True, 9, Entry(KEYS.member("m"), b"", 0, 0)), 0.2)
    me = Stored(member("h"), 9, 9, 7)
    view = View(revision=9, incarnation=WHOLE.incarnation, spec=WHOLE.spec, members={"n": me}, follows="m")
    assert FindOlder(9) in core.handle(ViewChanged(view, 2), 0.3)


def test_a_search_that_the_store_does_not_answer_is_made_again_after_a_pause(core: AgentCore) -> None:
    (first,) = sent(core.handle(Granted(7, 5.0, 0.0), 0.1))
    assert FindOlder(9) in core.handle(Answered(first, True, 9), 0.2)
    assert FindOlder(9) not in core.handle(Older(9, None, failed=True), 0.3)
    assert core.wake_at == pytest.approx(0.8)
    assert FindOlder(9) in core.handle(Tick(), 0.8)
