"""The tables of events and answers name all that there is."""

from __future__ import annotations

from typing import get_args

from elastic.core.agent import events
from elastic.core.agent.events import ANSWERS, HANDLERS, Event, Tick


def test_every_event_has_its_handlers() -> None:
    assert set(HANDLERS) == set(get_args(Event))
    assert [event for event, handlers in HANDLERS.items() if not handlers] == [Tick]


def test_a_handler_takes_in_one_kind_of_event() -> None:
    handlers = [handler for each in HANDLERS.values() for handler in each]
    assert len(handlers) == len(set(handlers))


def test_every_kind_of_transaction_has_its_handlers() -> None:
    assert set(ANSWERS) == {"register", "lead", "say", "form", "go", "verdict", "record", "leave", "evict"}


def test_every_event_can_be_imported_from_one_module() -> None:
    assert {event.__name__ for event in get_args(Event)} | {"Event"} == set(events.__all__)
