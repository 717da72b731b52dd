"""Whom the leader tells what it waits for, and when."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from elastic.core.membership.decision import ConcludeJob, Decision, Reason, WaitDecision
from elastic.core.model import ChangeReason, FinalStatus, Outcome, OutcomeKind, Predecessor
from elastic.core.text import COUNTED
from launcher.agent import wait_teller
from launcher.agent.wait_teller import WaitTeller, waiting_nodes
from launcher.wire.link_messages import WaitTold
from tests.support.agent_harness import Bench
from tests.support.job_transcript import member
from tests.support.strategies import KEYS

ENDS = ConcludeJob(Reason.COMPLETED, "all done", FinalStatus.COMPLETED, 1, 1)


def later(seconds: float) -> WaitDecision:
    """`c` joins at this time of the leader's clock, which shows 100."""
    text = f"c joins in {COUNTED} (--scale-up-interval 60)"
    return WaitDecision(Reason.SCALE_UP_LATER, "c joins", seconds, text, (seconds,))


class Leader:
    """A leader that is linked to others, and what it tells them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(wait_teller, "TELL_AFTER_S", 0.0)
        self.facts = Bench("a", "1:9").facts
        self.told: list[tuple[str, WaitTold]] = []
        self.teller = WaitTeller(self.facts, self._tell, lambda: 100.0)

    def _tell(self, nodes: Collection[str], told: WaitTold) -> None:
        self.told.append((" ".join(sorted(nodes)), told))

    async def after(self, decision: Decision | None, up: str) -> list[tuple[str, str, tuple[float, ...]]]:
        """Decide this with these links up; whom it has told what then, and the seconds left."""
        self.facts.succession.decision = decision
        if frozenset(up.split()) != self.facts.links.up:
            self.facts.links.up = frozenset(up.split())
        self.teller.after_event()
        for _ in range(3):
            await asyncio.sleep(0.001)
        told, self.told = self.told, []
        return [(nodes, one.text, one.left) for nodes, one in told]


def test_each_node_is_told_a_wait_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"c joins in {COUNTED} (--scale-up-interval 60)"

    async def main() -> None:
        leader = Leader(monkeypatch)
        assert await leader.after(later(141.0), "c d") == [("c d", text, (41.0,))]
        assert await leader.after(later(141.0), "c d") == []
        assert await leader.after(later(141.0), "c d e") == [("e", text, (41.0,))]
        assert await leader.after(later(141.0), "c e") == []
        assert await leader.after(later(141.0), "c d e") == [("d", text, (41.0,))], "its link is a new one"
        assert await leader.after(later(151.0), "c d e") == [("c d e", text, (51.0,))]
        assert await leader.after(WaitDecision(Reason.TRAINING, "training"), "c d e") == [("c d e", "training", ())]

    asyncio.run(main())


def test_who_does_not_lead_or_does_not_wait_tells_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        leader = Leader(monkeypatch)
        assert await leader.after(None, "c") == []
        assert await leader.after(ENDS, "c") == []
        assert len(await leader.after(later(141.0), "c")) == 1
        assert await leader.after(None, "") == []
        assert len(await leader.after(later(141.0), "c")) == 1, "it leads again, and its links are new"

    asyncio.run(main())


def test_of_many_waits_in_a_row_only_the_newest_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        leader = Leader(monkeypatch)
        leader.facts.links.up = frozenset("c")
        for count in range(1000):
            leader.facts.succession.decision = WaitDecision(Reason.SETTLING, f"{count} nodes are here")
            leader.teller.after_event()
        assert await leader.after(WaitDecision(Reason.SETTLING, "1000 nodes are here"), "c") == [
            ("c", "1000 nodes are here", ())
        ]
        leader.facts.succession.decision = WaitDecision(Reason.SETTLING, "nobody is here")
        leader.teller.after_event()
        leader.teller.close()
        await asyncio.sleep(0.01)
        assert leader.told == []

    asyncio.run(main())


def test_who_does_not_count_is_named_to_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        bench = Bench("a", "3", after="c")
        bench.shelf.put(KEYS.member("d"), member("host-d", 4), leased=True)
        leader = Leader(monkeypatch)
        leader.facts.store.view = bench.shelf.view
        ((_, text, _),) = await leader.after(WaitDecision(Reason.MISSING, "2 of 3 nodes are here"), "c")
        assert text == "2 of 3 nodes are here; d does not count: it offers 4 workers per node, the job uses 1"

    asyncio.run(main())


def test_nodes_wait_that_are_outside_at_the_gate_or_done() -> None:
    bench = Bench("a", "1:9")
    bench.others("b c d", link=9000)
    bench.links("b c d")
    bench.world(2, "a b c", before=Predecessor(1, ("b", "c"), ChangeReason.SCALE_UP))
    assert waiting_nodes(bench.facts) == {*"bcd"}
    bench.go(2)
    assert waiting_nodes(bench.facts) == {"d"}
    bench.shelf.put(KEYS.outcome(2, "c"), Outcome(ended=OutcomeKind.OK, over=True, host="host-c"))
    bench.look()
    assert waiting_nodes(bench.facts) == {*"cd"}
