"""The history of a job in a store: one node writes how a recovery began, another one reads it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from elastic.core.keys import JobKeys
from elastic.core.kv import Listing
from elastic.core.model import ChangeReason
from elastic.store.memory import MemoryStore
from elastic.store.memory_core import MemoryCore
from launcher.agent.history_writer import LOOK_AFTER_S, WAITING_MAX, HistoryWriter
from launcher.history.events import of_beginning
from launcher.history.recorder_base import RecoveryBeginning
from launcher.history.recovery import PhaseEnd, Recovery
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog

KEYS = JobKeys("j")
FOUND = Recovery(
    ChangeReason.NODE_LOST,
    "b joins",
    1,
    1,
    0.0,
    ((PhaseEnd.ASSIGNED, 0.1), (PhaseEnd.SPAWNED, 0.1)),
    rev=2,
    foreign=True,
)
NOTE = of_beginning(RecoveryBeginning(1, 2, "b", "a was lost; b joins", ((PhaseEnd.DETECTED, 0.004),)), "a", 1.0)


class Counted(MemoryStore):
    """Counts how often it was listed."""

    def __init__(self) -> None:
        super().__init__(MemoryCore(), time.monotonic)
        self.listed = 0
        self.again = asyncio.Event()

    async def list(self, *args: Any, **options: Any) -> Listing:
        self.listed += 1
        self.again.set()
        return await super().list(*args, **options)


@pytest.fixture
def agent_log() -> Iterator[AgentLog]:
    console = Console(2)
    yield AgentLog("b", console)
    console.close()


def test_events_that_do_not_fit_are_counted(agent_log: AgentLog) -> None:
    history = HistoryWriter(Counted(), KEYS, "b", agent_log)
    for _ in range(WAITING_MAX + 3):
        history.note(NOTE)
    assert history.dropped == 3


def test_what_another_node_notes_a_moment_later_is_found(agent_log: AgentLog) -> None:
    async def run() -> None:
        store = Counted()
        ours = HistoryWriter(store, KEYS, "b", agent_log)
        asking = asyncio.create_task(ours.beginning(FOUND))
        await store.again.wait()
        theirs = HistoryWriter(store, KEYS, "a", agent_log)
        writing = asyncio.create_task(theirs.run())
        theirs.note(NOTE)
        assert await asking == NOTE
        writing.cancel()

    asyncio.run(run())


def test_what_nobody_noted_is_asked_for_a_few_times_and_not_for_ever(agent_log: AgentLog) -> None:
    async def run() -> int:
        store = Counted()
        assert await HistoryWriter(store, KEYS, "b", agent_log).beginning(FOUND) is None
        return store.listed

    assert asyncio.run(run()) == len(LOOK_AFTER_S)
