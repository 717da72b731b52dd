"""The heartbeats of an agent: sends them, and detects silent nodes from those that arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping

from elastic.core.agent.links.silence import BEATS_PER_TIMEOUT, HEARTBEAT_S
from elastic.core.agent.state import SilentPeer
from launcher.peers.silence_detector import SilenceDetector

PART = 100
"""Heartbeats that are sent at once; those of a larger job are spread over the interval."""
LATE_INTERVALS = 1.25
"""An agent that sends no heartbeats checks for silence at each one that arrives, and by a timer after this interval."""


class Heartbeats:
    """Sends heartbeats to the watched nodes, and reports which nodes are silent."""

    def __init__(
        self,
        send: Callable[[float, int, int], int],
        on_silence: Callable[[Mapping[str, SilentPeer], float, frozenset[str]], None],
        *,
        heard_otherwise_at: Callable[[str], float],
        clock: Callable[[], float],
    ) -> None:
        """Take `send(every_s, part, parts)`, which sends to that part of the watched nodes and returns the size of all.

        At each change, `on_silence` gets the silent nodes, when this process continued after it had been suspended, and
        the nodes that were silent before and have been heard since. `heard_otherwise_at(node)`: as in
        `SilenceDetector`.
        """
        self._send = send
        self._on_silence = on_silence
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._detector = SilenceDetector(heard_otherwise_at)
        self._every_s = 0.0
        self._look_s = 0.0
        self._parts = 1
        self._part = 0
        self._next_at = 0.0
        self._silent_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def set(self, every_s: float, timeout_s: float) -> None:
        """Send heartbeats at this interval (0.0: none), and detect silences of `timeout_s` (0.0: none)."""
        self._every_s = every_s
        self._look_s = every_s or min(HEARTBEAT_S, timeout_s / BEATS_PER_TIMEOUT)
        had = self._detector.silent
        held_up = self._detector.notice_held_up(self._clock())  # The timer that would show it is replaced below.
        self._detector.set_timeout(timeout_s)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._detector.expect_check(float("inf"), 0.0)
        if timeout_s or every_s:
            self._parts, self._part, self._next_at, self._silent_at = 1, 0, self._clock(), 0.0
            self._tick()
        self._tell(held_up or had != self._detector.silent)

    def sent(self, node: str, link: object) -> None:
        """Record a sent heartbeat, which the node must answer."""
        self._detector.expect_beats(node, link, self._every_s, self._clock())

    def beat(self, node: str, link: object, every_s: float) -> None:
        """Record a heartbeat that arrived over a link."""
        was_silent, now = node in self._detector.silent, self._clock()
        self._tell(self._detector.beat(node, link, every_s, now), {node} if was_silent else ())
        if not self._every_s and self._timer is not None and not self._closed:
            self._timer.cancel()
            self._check(now)
            self._next_at = now + LATE_INTERVALS * self._look_s
            self._wake(now)

    def heard(self, node: str) -> None:
        """Record another message of a node."""
        was_silent = node in self._detector.silent
        self._tell(self._detector.heard(node, self._clock()), {node} if was_silent else ())

    def link_ended(self, node: str, link: object) -> None:
        """Expect no more heartbeats over a link that was closed with a goodbye."""
        self._tell(self._detector.forget(node, link))

    def unwatched(self, node: str) -> None:
        """Forget a node that this agent no longer watches, over whichever link its heartbeats arrived."""
        self._tell(self._detector.forget(node))

    def is_silent(self, node: str) -> bool:
        """Return whether a node is silent now."""
        return node in self._detector.silent

    def take_hold_up(self) -> tuple[Mapping[str, SilentPeer], float] | None:
        """If this process was suspended and `on_silence` has not reported it yet, return the silent nodes and when.

        Other timers may run before the one that detects the suspension.
        """
        if self._closed or not self._detector.notice_held_up(self._clock()):
            return None
        return self._detector.silent, self._detector.held_up_at

    def unheard(self) -> frozenset[str]:
        """Return the nodes that were not heard for some intervals."""
        return self._detector.unheard(self._clock())

    def close(self) -> None:
        """Send no more heartbeats and call no callback."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _tell(self, changed: bool, heard: Collection[str] = ()) -> None:
        if changed and not self._closed:
            self._on_silence(self._detector.silent, self._detector.held_up_at, frozenset(heard))

    def _tick(self) -> None:
        """Check for silence and send in one timer, so that this process wakes up once for both."""
        now = self._clock()
        due = now >= self._next_at
        if now >= self._silent_at or (due and not self._part):
            self._check(now)
        if due:
            if self._every_s:
                self._send_part()
            step_s = self._look_s / self._parts
            self._next_at = max(self._next_at + step_s, now + step_s / 2)  # Do not send missed heartbeats at once.
        self._wake(now)

    def _wake(self, now: float) -> None:
        at = min(self._next_at, self._silent_at)
        self._detector.expect_check(min(at, now + self._look_s), self._look_s)
        self._timer = self._loop.call_later(max(at - now, 0.0), self._tick)

    def _check(self, now: float) -> None:
        before, held_up_at = self._detector.silent, self._detector.held_up_at
        changed, self._silent_at = self._detector.check(now)
        by_step = before.keys() - self._detector.silent.keys() if held_up_at == self._detector.held_up_at else ()
        self._tell(changed, by_step)

    def _send_part(self) -> None:
        count = self._send(self._every_s, self._part, self._parts)
        self._part += 1
        if self._part >= self._parts:
            self._part, self._parts = 0, max(1, count // PART)
