"""When heartbeats are sent and to which part of the nodes, and what is reported of a process that was held up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from elastic.core.agent.links.silence import BEATS_MIN
from elastic.core.agent.state import SilentPeer
from launcher.peers.heartbeats import PART, Heartbeats
from launcher.peers.silence_detector import NEVER

EVERY_S, TIMEOUT_S = 0.25, 1.0


class Clock:
    """Heartbeats with a clock that the test sets, and what they do."""

    def __init__(self, nodes: int = 1) -> None:
        self.now = 100.0
        self.sent: list[tuple[float, int, int]] = []
        self.told: list[tuple[list[str], float]] = []
        self.nodes = nodes
        self.heartbeats = Heartbeats(self._send, self._tell, heard_otherwise_at=lambda _: NEVER, clock=lambda: self.now)

    def _send(self, every_s: float, part: int, parts: int) -> int:
        self.sent.append((every_s, part, parts))
        return self.nodes

    def _tell(self, peers: Mapping[str, SilentPeer], held_up_at: float, heard: frozenset[str]) -> None:
        self.told.append((sorted(peers), held_up_at))

    def beats(self, node: str) -> None:
        for _ in range(BEATS_MIN):
            self.heartbeats.beat(node, self, EVERY_S)


def in_a_loop(story: Callable[[], None]) -> None:
    async def run() -> None:
        story()

    asyncio.run(run())


def test_a_heartbeat_is_sent_at_once_and_after_a_change_of_the_interval() -> None:
    def story() -> None:
        clock = Clock()
        clock.heartbeats.set(EVERY_S, TIMEOUT_S)
        clock.heartbeats.set(EVERY_S / 2, TIMEOUT_S)
        clock.heartbeats.set(0.0, TIMEOUT_S)
        clock.heartbeats.close()
        assert clock.sent == [(EVERY_S, 0, 1), (EVERY_S / 2, 0, 1)]

    in_a_loop(story)


def test_the_heartbeats_of_a_large_job_are_spread_over_the_interval() -> None:
    async def story() -> None:
        clock = Clock(nodes=3 * PART)
        rounds = asyncio.Semaphore(0)
        send = clock._send

        def counted(every_s: float, part: int, parts: int) -> int:
            rounds.release()
            return send(every_s, part, parts)

        heartbeats = Heartbeats(
            counted, clock._tell, heard_otherwise_at=lambda _: NEVER, clock=asyncio.get_running_loop().time
        )
        heartbeats.set(0.006, 0.0)
        for _ in range(7):
            await rounds.acquire()
        heartbeats.close()
        parts = [(part, parts) for _, part, parts in clock.sent]
        assert parts == [(0, 1), *[(0, 3), (1, 3), (2, 3)] * 2], "all of them at the beginning: none is late"

    asyncio.run(story())


def test_a_process_that_was_held_up_until_it_is_told_another_interval_finds_nobody_silent() -> None:
    def story() -> None:
        clock = Clock()
        clock.heartbeats.set(EVERY_S, TIMEOUT_S)
        clock.beats("a")
        clock.now += 30.0
        clock.heartbeats.set(EVERY_S, TIMEOUT_S / 2)
        assert clock.told == [([], clock.now)]
        clock.heartbeats.close()

    in_a_loop(story)


def test_a_process_that_was_held_up_takes_that_once_before_its_timers() -> None:
    def story() -> None:
        clock = Clock()
        clock.heartbeats.set(EVERY_S, TIMEOUT_S)
        clock.beats("a")
        assert clock.heartbeats.take_hold_up() is None
        clock.now += 30.0
        assert clock.heartbeats.take_hold_up() == ({}, clock.now)
        assert clock.heartbeats.take_hold_up() is None
        assert not clock.told
        clock.heartbeats.close()

    in_a_loop(story)


def test_a_node_that_is_silent_under_a_shorter_timeout_is_told_at_once_and_without_a_timeout_it_is_not_silent() -> None:
    def story() -> None:
        clock = Clock()
        clock.heartbeats.set(0.0, 600.0)
        clock.beats("a")
        clock.now += EVERY_S  # Less than it takes to be held up.
        clock.heartbeats.set(0.0, BEATS_MIN * EVERY_S)
        assert not clock.told, "the timeout is at least three intervals of the node"
        clock.heartbeats.beat("a", clock, EVERY_S / BEATS_MIN)
        clock.now += EVERY_S
        clock.heartbeats.set(0.0, EVERY_S)
        clock.heartbeats.set(0.0, 0.0)
        assert clock.told[0] == (["a"], NEVER)
        assert clock.told[-1] == ([], NEVER)

    in_a_loop(story)


def test_nothing_is_told_after_the_end() -> None:
    def story() -> None:
        clock = Clock()
        clock.heartbeats.set(0.0, TIMEOUT_S)
        clock.beats("a")
        clock.now += 30.0
        clock.heartbeats.close()
        clock.heartbeats.heard("a")
        clock.heartbeats.link_ended("a", clock)
        assert not clock.told

    in_a_loop(story)
