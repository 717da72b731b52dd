"""When heartbeats are sent and to which part of the nodes, and what is reported of silent nodes and of a hold-up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import Context
from typing import TypeVarTuple

import pytest

from elastic.core.agent.links.silence import BEATS_MIN
from elastic.core.agent.state import SilentPeer
from launcher.peers.heartbeats import LATE_INTERVALS, PART, Heartbeats
from launcher.peers.silence_detector import NEVER

Ts = TypeVarTuple("Ts")
EVERY_S, TIMEOUT_S = 0.25, 1.0
BEGAN = 100.0
TIMERS_MAX = 100
"""No story has as many."""


class PlannedLoop(asyncio.SelectorEventLoop):
    """A loop whose timers run when the test lets time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now = BEGAN
        self.planned: list[asyncio.TimerHandle] = []
        """Every timer, in the order in which they were set."""

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Take a timer."""
        timer = asyncio.TimerHandle(self.now + delay, callback, args, self, context)
        self.planned.append(timer)
        return timer


class Harness:
    """Heartbeats on a planned loop: what they send, and what they tell. `answering` are nodes that answer at once."""

    def __init__(self, nodes: int = 1, answering: str = "") -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, PlannedLoop)
        self._loop = loop
        self._timers_run = 0
        self.woken: list[float] = []
        """When a timer ran."""
        self.sent: list[tuple[float, float, int, int]] = []
        self.told: list[tuple[list[str], float, list[str]]] = []
        self.told_at: list[float] = []
        self.stepped_at: dict[str, float] = {}
        self.nodes = nodes
        self.answering = answering
        self.heartbeats = Heartbeats(
            self._send,
            self._tell,
            heard_otherwise_at=lambda node: self.stepped_at.get(node, NEVER),
            clock=lambda: self.now,
        )

    @property
    def now(self) -> float:
        return self._loop.now

    @now.setter
    def now(self, now: float) -> None:
        """Hold the process up until then."""
        self._loop.now = now

    @property
    def woken_at(self) -> list[float]:
        """When each timer was to run."""
        return [timer.when() for timer in self._loop.planned]

    @property
    def sent_at(self) -> list[float]:
        return [at for at, *_ in self.sent]

    def passes(self, seconds: float) -> None:
        """Let this time pass; each timer runs in time, or at once if it is late."""
        until = self.now + seconds
        while self._timers_run < len(self._loop.planned):
            timer = self._loop.planned[self._timers_run]
            if timer.when() > until:
                break
            self._timers_run += 1
            assert self._timers_run < TIMERS_MAX, "a timer sets another one for the same moment"
            if not timer.cancelled():
                self.now = max(self.now, timer.when())
                self.woken.append(self.now)
                timer._run()
        self.now = until

    def beats(self, *nodes: str, count: int = BEATS_MIN) -> None:
        for node in nodes * count:
            self.heartbeats.beat(node, self, EVERY_S)

    def _send(self, every_s: float, part: int, parts: int) -> int:
        self.sent.append((self.now, every_s, part, parts))
        self.beats(*self.answering, count=1)
        return self.nodes

    def _tell(self, peers: Mapping[str, SilentPeer], held_up_at: float, heard: frozenset[str]) -> None:
        self.told.append((sorted(peers), held_up_at, sorted(heard)))
        self.told_at.append(self.now)


def in_a_loop(story: Callable[[], None]) -> None:
    async def run() -> None:
        story()

    with asyncio.Runner(loop_factory=PlannedLoop) as runner:
        runner.run(run())


# When they are sent


def test_a_heartbeat_is_sent_at_once_and_after_a_change_of_the_interval() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.heartbeats.set(EVERY_S / 2, TIMEOUT_S)
        harness.heartbeats.set(0.0, TIMEOUT_S)
        harness.heartbeats.close()
        assert harness.sent == [(100.0, EVERY_S, 0, 1), (100.0, EVERY_S / 2, 0, 1)]

    in_a_loop(story)


def test_an_agent_wakes_once_for_each_interval() -> None:
    def story() -> None:
        harness = Harness(answering="a")
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.passes(1.0)
        assert harness.sent_at == [100.0, 100.25, 100.5, 100.75, 101.0]
        assert harness.woken_at == [100.25, 100.5, 100.75, 101.0, 101.25]

    in_a_loop(story)


def test_the_heartbeats_of_a_large_job_are_spread_over_the_interval() -> None:
    def story() -> None:
        harness = Harness(nodes=3 * PART)
        harness.heartbeats.set(0.75, 0.0)
        harness.passes(1.5)
        assert [(at, part, parts) for at, _, part, parts in harness.sent] == [
            (100.0, 0, 1),  # To all of them at the beginning: none is late.
            (100.25, 0, 3),
            (100.5, 1, 3),
            (100.75, 2, 3),
            (101.0, 0, 3),
            (101.25, 1, 3),
            (101.5, 2, 3),
        ]

    in_a_loop(story)


def test_a_heartbeat_that_is_a_little_late_does_not_delay_the_next() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.now += EVERY_S + 0.0625
        harness.passes(0.5)
        assert harness.sent_at == [100.0, 100.3125, 100.5, 100.75]

    in_a_loop(story)


@pytest.mark.parametrize(("nodes", "every_s"), [(1, 0.25), (3 * PART, 0.75)])
def test_heartbeats_that_a_process_missed_are_not_sent_all_at_once(nodes: int, every_s: float) -> None:
    def story() -> None:
        harness = Harness(nodes)
        harness.heartbeats.set(every_s, TIMEOUT_S)
        harness.now += 30.0
        harness.passes(0.75)
        assert harness.sent_at == [100.0, 130.0, 130.125, 130.375, 130.625]

    in_a_loop(story)


@pytest.mark.parametrize(("timeout_s", "every_s"), [(4.0, 0.25), (1.0, 0.25), (0.5, 0.125)])
def test_an_agent_that_sends_none_wakes_at_least_four_times_in_each_timeout(timeout_s: float, every_s: float) -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(0.0, timeout_s)
        harness.passes(2 * every_s)
        assert harness.woken_at == [100.0 + every_s, 100.0 + 2 * every_s, 100.0 + 3 * every_s]
        assert not harness.sent

    in_a_loop(story)


def test_an_agent_that_sends_none_wakes_by_a_timer_only_where_a_heartbeat_is_late() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(0.0, TIMEOUT_S)
        for _ in range(8):
            harness.passes(EVERY_S - 0.01)
            harness.beats("a", count=1)
        assert harness.woken == []
        heard_at = harness.now
        harness.passes(2 * TIMEOUT_S)
        assert harness.woken[0] == heard_at + LATE_INTERVALS * EVERY_S
        assert (harness.told, harness.told_at) == ([(["a"], NEVER, [])], [heard_at + TIMEOUT_S])

    in_a_loop(story)


def test_an_agent_that_sends_none_was_held_up_if_it_has_done_nothing_for_two_intervals() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(0.0, TIMEOUT_S)
        harness.beats("a")
        harness.now += 2 * EVERY_S
        assert harness.heartbeats.take_hold_up() is None
        harness.now += 0.01
        assert harness.heartbeats.take_hold_up() is not None

    in_a_loop(story)


@pytest.mark.parametrize(("nodes", "every_s"), [(1, 0.25), (3 * PART, 0.75)])
def test_a_node_that_is_silent_between_two_heartbeats_is_told_then_and_the_heartbeats_keep_their_times(
    nodes: int, every_s: float
) -> None:
    def story() -> None:
        harness = Harness(nodes)
        harness.heartbeats.set(every_s, TIMEOUT_S)
        harness.passes(0.125)
        harness.beats("a")
        harness.passes(TIMEOUT_S + 0.125)
        assert (harness.told, harness.told_at) == ([(["a"], NEVER, [])], [101.125])
        assert harness.sent_at == [100.0, 100.25, 100.5, 100.75, 101.0, 101.25]

    in_a_loop(story)


# Nodes that are heard again


@pytest.mark.parametrize("how", ["beat", "heard"])
def test_a_silent_node_is_told_to_be_heard_again_at_once_by_a_heartbeat_or_anything_else(how: str) -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a", "b", "c")
        harness.passes(0.875)
        harness.heartbeats.heard("c")
        harness.passes(0.125)
        if how == "beat":
            harness.heartbeats.beat("a", harness, EVERY_S)
        else:
            harness.heartbeats.heard("a")
        harness.heartbeats.heard("c")
        assert harness.told == [(["a", "b"], NEVER, []), (["b"], NEVER, ["a"])]

    in_a_loop(story)


def test_a_silent_node_is_told_to_be_heard_again_with_the_check_after_a_step() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a", "b")
        harness.passes(TIMEOUT_S)
        harness.stepped_at["a"] = harness.now
        harness.passes(EVERY_S)
        assert harness.told == [(["a", "b"], NEVER, []), (["b"], NEVER, ["a"])]

    in_a_loop(story)


def test_a_silent_node_whose_link_ends_in_order_is_not_told_to_be_heard_again() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a")
        harness.passes(TIMEOUT_S)
        harness.heartbeats.link_ended("a", harness)
        assert harness.told == [(["a"], NEVER, []), ([], NEVER, [])]

    in_a_loop(story)


@pytest.mark.parametrize("by", ["a check", "another node", "another interval"])
def test_a_silence_that_a_hold_up_restarts_does_not_mean_that_the_node_was_heard(by: str) -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a")
        harness.passes(TIMEOUT_S)
        harness.now += 30.0
        if by == "a check":
            harness.passes(0.0)
        elif by == "another node":
            harness.heartbeats.heard("b")
        else:
            harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        assert harness.told == [(["a"], NEVER, []), ([], harness.now, [])]

    in_a_loop(story)


# A process that was held up


def test_a_process_that_was_held_up_until_it_is_told_another_interval_finds_nobody_silent() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a")
        harness.now += 30.0
        harness.heartbeats.set(EVERY_S, TIMEOUT_S / 2)
        assert harness.told == [([], harness.now, [])]
        harness.heartbeats.close()

    in_a_loop(story)


def test_a_process_that_was_held_up_takes_that_once_before_its_timers() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(EVERY_S, TIMEOUT_S)
        harness.beats("a")
        assert harness.heartbeats.take_hold_up() is None
        harness.now += 30.0
        assert harness.heartbeats.take_hold_up() == ({}, harness.now)
        assert harness.heartbeats.take_hold_up() is None
        assert not harness.told
        harness.heartbeats.close()

    in_a_loop(story)


def test_a_node_that_is_silent_under_a_shorter_timeout_is_told_at_once_and_without_a_timeout_it_is_not_silent() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(0.0, 600.0)
        harness.beats("a")
        harness.now += EVERY_S  # Less than it takes to be held up.
        harness.heartbeats.set(0.0, BEATS_MIN * EVERY_S)
        assert not harness.told, "the timeout is at least three intervals of the node"
        harness.heartbeats.beat("a", harness, EVERY_S / BEATS_MIN)
        harness.now += EVERY_S
        harness.heartbeats.set(0.0, EVERY_S)
        harness.heartbeats.set(0.0, 0.0)
        assert harness.told[0] == (["a"], NEVER, [])
        assert harness.told[-1] == ([], NEVER, [])

    in_a_loop(story)


def test_nothing_is_told_after_the_end() -> None:
    def story() -> None:
        harness = Harness()
        harness.heartbeats.set(0.0, TIMEOUT_S)
        harness.beats("a")
        harness.now += 30.0
        harness.heartbeats.close()
        harness.heartbeats.heard("a")
        harness.heartbeats.link_ended("a", harness)
        assert not harness.told

    in_a_loop(story)
