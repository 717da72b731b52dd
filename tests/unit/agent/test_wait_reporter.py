"""What a node says while it waits."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from elastic.core.agent.state import PendingDrain, Phase
from elastic.core.decide import RESTORE
from elastic.core.membership.decision import ConcludeJob, Decision, Reason, WaitDecision
from elastic.core.model import FinalStatus
from elastic.core.text import COUNTED
from elastic.store.memory import MemoryStore
from launcher.agent import wait_reporter
from launcher.agent.wait_reporter import WaitReporter
from launcher.logs.console import Console
from launcher.logs.logger import AgentLog
from launcher.peers.core_adapter import HeardWait
from launcher.wire.link_messages import wait_told
from tests.support.agent_harness import Bench, done, spare
from tests.support.strategies import KEYS

LIMIT_S = 5.0
"""A task that was cancelled ends much sooner."""


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
        heard = HeardWait("a", Reason.MISSING, "2 of 3 nodes are here; waiting for 1 more", ())
        lines = WaitReporter(bench.core, store, agent_log, lambda: next(clock), lambda: heard)
        running = asyncio.create_task(lines.run())
        await enough.wait()
        running.cancel()

    asyncio.run(main())
    # The clock moves by 20 s with every look at it: one for the sentence, one for how long it has waited.
    assert said == [
        "2 of 3 nodes are here; waiting for 1 more (40 s so far)",
        "2 of 3 nodes are here; waiting for 1 more (80 s so far)",
    ]


def test_the_time_counts_from_the_last_moment_in_which_workers_ran(tmp_path: Path) -> None:
    bench, times = spare(np="3:3"), iter((100.0, 300.0))
    with (tmp_path / "console").open("w") as file:
        agent_log = AgentLog("b", Console(file.fileno()))
    store = MemoryStore(bench.shelf.core, lambda: 0.0)
    lines = WaitReporter(bench.core, store, agent_log, lambda: next(times), lambda: None)
    for phase in (Phase.SPARE, Phase.RUNNING, Phase.DONE):
        bench.core.facts.phase = phase
        lines.after_event()
    assert lines._since == 300.0


@pytest.mark.parametrize("turns", range(5))
def test_it_ends_also_if_it_is_told_something_in_the_moment_in_which_the_agent_ends(turns: int, tmp_path: Path) -> None:
    heard: list[HeardWait | None] = [None]
    lines = lines_of(spare(np="3:3"), tmp_path, lambda text: None, lambda: 0.0, heard=lambda: heard[0])

    async def main() -> bool:
        running = asyncio.create_task(lines.run())
        await asyncio.sleep(0)
        heard[0] = HeardWait("a", Reason.MISSING, "2 of 3 nodes are here; waiting for 1 more", ())
        lines.on_heard()
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running], timeout=LIMIT_S)
        return running.cancelled()

    assert asyncio.run(main())


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
    heard: Callable[[], HeardWait | None] = lambda: None,
) -> WaitReporter:
    """The lines of this bench's node, given to `hear`. Without another `store` it is the bench's own."""

    class Heard(AgentLog):
        def info(self, text: str) -> None:
            hear(text)

    with (folder / "console").open("w") as file:
        agent_log = Heard("b", Console(file.fileno()))
    store = store or MemoryStore(bench.shelf.core, lambda: 0.0)
    return WaitReporter(bench.core, store, agent_log, clock, heard)


ENDS = ConcludeJob(Reason.COMPLETED, "all done", FinalStatus.COMPLETED, 1, 1)


@pytest.mark.parametrize(
    "decision",
    [ENDS, WaitDecision(Reason.TRAINING, "training with 2 nodes")],
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


# What the leader has told


TURNS = 20
"""Turns of the loop in which a node that was told something has said it."""


class Said:
    """What a node says, on a clock that the test sets."""

    def __init__(self, bench: Bench, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wait_reporter, "FIRST_S", 0.001)
        monkeypatch.setattr(wait_reporter, "EVERY_S", 0.001)
        self.now = 100.0
        self.heard: HeardWait | None = None
        self.lines: list[str] = []
        self._came = asyncio.Event()
        self._looks = asyncio.Semaphore(0)
        self.reporter = lines_of(bench, folder, self._hear, lambda: self.now, heard=self._look)

    def _look(self) -> HeardWait | None:
        self._looks.release()
        return self.heard

    def _hear(self, text: str) -> None:
        self.lines.append(text)
        self._came.set()

    async def looked(self) -> None:
        """It has looked at what the leader told it, and has done what follows from that: it looks once more."""
        for _ in range(2):
            await self._looks.acquire()

    async def next(self) -> str:
        """The next line that it says."""
        self._came.clear()
        await self._came.wait()
        return self.lines[-1]


def test_a_node_counts_down_what_the_leader_has_told_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = Said(spare(), tmp_path, monkeypatch)
    text = f"b joins in {COUNTED} (--scale-up-interval 60)"
    said.heard = HeardWait.of("a", wait_told(Reason.SCALE_UP_LATER.name, text, (41.4,)), said.now)

    async def main() -> None:
        running = asyncio.create_task(said.reporter.run())
        assert await said.next() == "b joins in 41 s (--scale-up-interval 60)"
        said.now += 11.0
        assert (await said.next()).startswith("b joins in 30 s (--scale-up-interval 60) (11 s so far)")
        assert said.reporter.sentence == "b joins in 30 s (--scale-up-interval 60)"
        said.now += 100.0
        assert (await said.next()).startswith("b joins in 1 s (--scale-up-interval 60)")
        running.cancel()

    asyncio.run(main())


def test_a_node_that_was_told_nothing_says_only_that_and_not_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whom the leader is linked to, and since when it waits, stands in no document."""
    said = Said(spare(), tmp_path, monkeypatch)

    async def main() -> None:
        running = asyncio.create_task(said.reporter.run())
        await said.looked()
        assert said.lines == []
        said.now += 12.0
        assert await said.next() == "waiting for the leader a, which has not sent the reason yet (12 s so far)"
        running.cancel()

    asyncio.run(main())


def test_a_node_that_follows_the_first_of_the_generation_names_it_as_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(done(), tmp_path, monkeypatch)

    async def main() -> None:
        said.reporter.after_event()
        said.now += 4.0
        running = asyncio.create_task(said.reporter.run())
        assert await said.next() == "waiting for the leader a, which has not sent the reason yet (4 s so far)"
        running.cancel()

    asyncio.run(main())


def test_a_node_says_what_stands_in_the_documents_without_being_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = spare()
    bench.shelf.delete(KEYS.incarnation)
    bench.look()
    said = Said(bench, tmp_path, monkeypatch)

    async def main() -> None:
        running = asyncio.create_task(said.reporter.run())
        assert await said.next() == f"the key incarnation of this job was deleted; {RESTORE}"
        running.cancel()

    asyncio.run(main())


def test_another_wait_is_said_at_once_and_the_same_again_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = Said(spare(), tmp_path, monkeypatch)
    monkeypatch.setattr(wait_reporter, "EVERY_S", 3600.0)
    monkeypatch.setattr(wait_reporter, "SPARE_EVERY_S", 3600.0)

    def tell(code: Reason, text: str) -> None:
        said.heard = HeardWait("a", code, text, ())
        said.reporter.on_heard()

    async def main() -> None:
        running = asyncio.create_task(said.reporter.run())
        tell(Reason.TRAINING, "training with 2 nodes, 1 spare")
        assert await said.next() == "spare: training with 2 nodes, 1 spare"
        tell(Reason.TRAINING, "training with 3 nodes, 1 spare")
        for _ in range(TURNS):
            await asyncio.sleep(0)  # It would say it now.
        tell(Reason.STOPPING, "waiting for a to stop its old workers")
        assert await said.next() == "waiting for a to stop its old workers"
        assert len(said.lines) == 2
        running.cancel()

    asyncio.run(main())


def test_a_node_that_leads_counts_down_on_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(np="1:3")
    said = Said(bench, tmp_path, monkeypatch)
    text = f"c joins in {COUNTED} (--scale-up-interval 60)"
    bench.core.facts.phase = Phase.SPARE
    bench.core.facts.succession.decision = WaitDecision(Reason.SCALE_UP_LATER, "", 160.0, text, (160.0,))

    async def main() -> None:
        running = asyncio.create_task(said.reporter.run())
        assert await said.next() == "c joins in 60 s (--scale-up-interval 60)"
        said.now += 4.0
        assert await said.next() == "c joins in 56 s (--scale-up-interval 60) (4 s so far)"
        running.cancel()

    asyncio.run(main())
