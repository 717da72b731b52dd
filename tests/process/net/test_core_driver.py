"""How a core is driven: the order in which an event is told and its actions are performed, and how it ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest

from elastic.core.agent.actions import Action, ExitAgent, LogLine, ReportVerdict
from elastic.core.agent.events import Event, SilenceChanged, ViewChanged
from elastic.core.model import FinalStatus
from elastic.errors import StoreDenied
from elastic.store.memory import MemoryStore
from launcher.agent.core_driver import CoreDriver, EventQueue
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog, Verbosity
from launcher.peers.listener import PeerListener
from tests.support.agent_harness import Bench

LIMIT_S = 30.0


def driven(
    folder: Path,
    bench: Bench,
    story: Callable[[CoreDriver], Coroutine[Any, Any, None]],
    level: Verbosity = Verbosity.NORMAL,
) -> None:
    """Have a driver for the core of `bench`, on its store, for the time of a story."""

    async def main() -> None:
        listener = PeerListener("127.0.0.1", "j1", bench.node)
        with (folder / "console").open("w") as file:
            agent_log = AgentLog(bench.node, Console(file.fileno()), level=level)
        store = MemoryStore(bench.shelf.core, time.monotonic)
        try:
            async with asyncio.timeout(LIMIT_S):
                await story(CoreDriver(bench.core, store, listener, EventQueue(time.monotonic), agent_log))
        finally:
            listener.close()

    asyncio.run(main())


def test_actions_are_performed_between_the_two_observers_of_their_event_until_the_core_ends_its_node(
    tmp_path: Path,
) -> None:
    bench = Bench(offline=True)
    bench.verdict(FinalStatus.FAILED)
    told: list[tuple[str, object]] = []

    def observe(event: Event, wanted: Sequence[Action], arrived_at: float) -> None:
        told.append(("before", type(event)))

    def after(event: Event, wanted: Sequence[Action]) -> None:
        told.append(("after", type(event)))

    async def settle(limit_s: float) -> None:
        told.append(("settle", limit_s > 0))

    async def stop() -> None:
        told.append(("stop", True))

    async def story(driver: CoreDriver) -> None:
        def perform(action: Action) -> None:
            told.append(("perform", type(action)))

        assert await driver.run(perform, observe=observe, after=after, settle=settle, stop=stop) == 1

    driven(tmp_path, bench, story)
    end = [("before", ViewChanged), ("perform", ReportVerdict), ("perform", ExitAgent), ("after", ViewChanged)]
    assert told[-6:] == [*end, ("settle", True), ("stop", True)]


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (LogLine("refused", final=True), "refused"),
        (LogLine("odd", warn=True), "warning: odd"),
        (LogLine("joined"), None),
    ],
)
def test_with_quiet_a_warning_has_its_mark_and_the_reason_for_an_exit_has_none(
    line: LogLine, shown: str | None, tmp_path: Path
) -> None:
    bench = Bench(offline=True)

    async def story(driver: CoreDriver) -> None:
        driver._perform(line, lambda action: None)

    driven(tmp_path, bench, story, Verbosity.QUIET)
    texts = [text.partition("] ")[2] for text in (tmp_path / "console").read_text().splitlines()]
    assert texts == ([] if shown is None else [shown])


def test_that_this_process_was_held_up_comes_before_the_event_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(offline=True)
    bench.verdict(FinalStatus.FAILED)
    events: list[Event] = []
    held_up = [SilenceChanged({}, 7.0)]

    async def story(driver: CoreDriver) -> None:
        monkeypatch.setattr(driver.links, "held_up_events", lambda: tuple(held_up.pop() for _ in held_up[:]))
        await driver.run(lambda _: None, observe=lambda event, *_: events.append(event))

    driven(tmp_path, bench, story)
    assert events[0] == SilenceChanged({}, 7.0)
    assert len(events) > 1


def test_an_error_of_what_runs_with_it_is_raised_as_it_is_after_everything_was_stopped(tmp_path: Path) -> None:
    stopped: list[bool] = []

    async def stop() -> None:
        stopped.append(True)

    async def fails() -> None:
        async with asyncio.TaskGroup() as inner:
            inner.create_task(denied())

    async def denied() -> None:
        raise StoreDenied("this user may not read")

    async def story(driver: CoreDriver) -> None:
        with pytest.raises(StoreDenied, match="this user may not read"):
            await driver.run(lambda action: None, work=(fails(),), stop=stop)

    driven(tmp_path, Bench(), story)
    assert stopped == [True]
