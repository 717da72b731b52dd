"""What a node says while it waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from elastic.core.agent.state import PendingDrain, Phase
from elastic.core.membership.decision import ConcludeJob, Decision, Reason, WaitDecision
from elastic.core.model import Budget, ChangeReason, FinalStatus, Go, Quarantine, Verdict
from elastic.store.memory import MemoryStore
from launcher.agent import wait_reporter
from launcher.agent.wait_reporter import WaitReporter
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from tests.support.agent_harness import Bench, done, spare
from tests.support.strategies import KEYS


def test_a_node_that_waits_says_for_whom_and_how_long_it_has_been_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reporter, "FIRST_S", 0.0)
    monkeypatch.setattr(wait_reporter, "EVERY_S", 0.0)
    bench = spare(np="3:3")
    clock = itertools.count(100.0, 20.0)
    said: list[str] = []
    enough = asyncio.Event()

    class Heard(AgentLog):
        def info(self, text: str) -> None:
            said.append(text)
            if len(said) == 2:
                enough.set()

    async def main() -> None:
        store = MemoryStore(bench.shelf.core, lambda: 0.0)
        with (tmp_path / "console").open("w") as file:
            agent_log = Heard("b", Console(file.fileno()))
        lines = WaitReporter(bench.core, store, KEYS, agent_log, lambda: next(clock))
        running = asyncio.create_task(lines.run())
        await enough.wait()
        running.cancel()

    asyncio.run(main())
    # The clock moves by 20 s with every look at it: one for the question, one for the answer.
    assert said == [
        "2 of 3 nodes are here; waiting for 1 more (40 s so far)",
        "2 of 3 nodes are here; waiting for 1 more (80 s so far)",
    ]


def test_the_time_counts_from_the_last_moment_in_which_workers_ran(tmp_path: Path) -> None:
    bench, times = spare(np="3:3"), iter((100.0, 300.0))
    with (tmp_path / "console").open("w") as file:
        agent_log = AgentLog("b", Console(file.fileno()))
    lines = WaitReporter(bench.core, MemoryStore(bench.shelf.core, lambda: 0.0), KEYS, agent_log, lambda: next(times))
    for phase in (Phase.SPARE, Phase.RUNNING, Phase.DONE):
        bench.core.facts.phase = phase
        lines.after_event()
    assert lines._since == 300.0


def test_a_line_that_was_just_said_is_not_said_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wait_reporter, "FIRST_S", 0.0)
    monkeypatch.setattr(wait_reporter, "EVERY_S", 10.0)
    said: list[str] = []
    bench = Bench(np="3:3")
    asked, looked = itertools.count(1), asyncio.Event()

    def clock() -> float:
        if next(asked) == 2:  # For how long it has waited: asked last, before it is said.
            looked.set()
        return 0.0

    lines = lines_of(bench, tmp_path, said.append, clock)

    async def main() -> None:
        lines.after_event()
        running = asyncio.create_task(lines.run())
        await looked.wait()
        running.cancel()

    asyncio.run(main())
    assert said == ["1 of 3 nodes is here; waiting for 2 more"]


def test_a_node_that_leaves_does_not_say_that_it_waits_for_nodes(tmp_path: Path) -> None:
    said: list[str] = []
    bench = Bench(np="3:3")
    lines = lines_of(bench, tmp_path, said.append, lambda: 0.0)
    bench.core.facts.leaving.drain = PendingDrain(0.0, 130, "SIGINT")
    lines.after_event()
    assert said == []


def lines_of(
    bench: Bench,
    folder: Path,
    hear: Callable[[str], None],
    clock: Callable[[], float],
    *,
    store: MemoryStore | None = None,
) -> WaitReporter:
    """The lines of this bench's node, given to `hear`. Without another `store` it is the bench's own."""

    class Heard(AgentLog):
        def info(self, text: str) -> None:
            hear(text)

    with (folder / "console").open("w") as file:
        agent_log = Heard("b", Console(file.fileno()))
    return WaitReporter(bench.core, store or MemoryStore(bench.shelf.core, lambda: 0.0), KEYS, agent_log, clock)


OVER = Verdict(status=FinalStatus.COMPLETED, reason="all done", run=1, g=1, tag="", at=0.0)


@pytest.mark.parametrize(
    "decision",
    [ConcludeJob(Reason.COMPLETED, "all done", OVER), WaitDecision(Reason.TRAINING, "training with 2 nodes")],
)
def test_a_node_that_is_done_says_that_etcd_is_gone(
    decision: Decision, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reporter, "FIRST_S", 0.0)
    monkeypatch.setattr(wait_reporter, "EVERY_S", 0.0)
    said: list[str] = []
    bench, clock, enough = done(), itertools.count(100.0, 20.0), asyncio.Event()
    bench.core.facts.succession.decision = decision
    store = MemoryStore(bench.shelf.core, lambda: 0.0)

    def hear(text: str) -> None:
        said.append(text)
        if len(said) == 2:
            enough.set()

    lines = lines_of(bench, tmp_path, hear, lambda: next(clock), store=store)

    async def main() -> None:
        await store.close()
        running = asyncio.create_task(lines.run())
        await enough.wait()
        running.cancel()

    asyncio.run(main())
    gone = "etcd does not answer (this client of the store was closed)"
    assert said == [f"{gone} (20 s so far)", f"{gone} (40 s so far)"]
    assert lines.sentence == gone


def test_a_node_whose_workers_are_gone_does_not_repeat_that_the_world_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reporter, "FIRST_S", 0.0)
    monkeypatch.setattr(wait_reporter, "EVERY_S", 0.001)
    said: list[str] = []
    bench = done()
    bench.core.facts.succession.decision = WaitDecision(Reason.TRAINING, "training with 2 nodes")
    heard = asyncio.Event()

    def clock() -> float:  # It is asked first when the first look has begun.
        asyncio.get_running_loop().call_soon(finish)
        return 0.0

    def finish() -> None:
        bench.core.facts.succession.decision = WaitDecision(
            Reason.FINISHING, "1 of 2 nodes done; waiting for the others"
        )

    def hear(text: str) -> None:
        said.append(text)
        heard.set()

    lines = lines_of(bench, tmp_path, hear, clock)

    async def main() -> None:
        running = asyncio.create_task(lines.run())
        await heard.wait()
        running.cancel()

    asyncio.run(main())
    assert said == ["1 of 2 nodes done; waiting for the others"]


def test_a_node_that_others_do_not_reach_does_not_say_for_ever_that_it_joins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wait_reporter, "FIRST_S", 0.0)
    said: list[str] = []
    heard = asyncio.Event()
    bench = spare()
    budget = Budget(hosts=(Quarantine("host-b", times=1, g=1, words="a does not reach it", unreachable=True),))
    bench.shelf.put(KEYS.go, Go(g=2, tag="", master="host-a:7000", budget=budget))
    bench.world(2, "a", why=ChangeReason.QUARANTINED)
    listens = msgspec.structs.replace(bench.shelf.view.members["b"].value, link=9000)
    bench.shelf.put(KEYS.member("b"), listens, leased=True)

    def hear(text: str) -> None:
        said.append(text)
        heard.set()

    lines = lines_of(bench, tmp_path, hear, lambda: 100.0)

    async def main() -> None:
        running = asyncio.create_task(lines.run())
        await heard.wait()
        running.cancel()

    asyncio.run(main())
    assert said == ["spare: training with 1 node, 1 spare; host-b is kept out until it can be reached"]
